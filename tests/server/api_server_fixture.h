#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/api_server.h"
#include "server/http_server_fixture.h"

namespace quire::server {

// A body that a server is busy with for a while.
constexpr const char* kLongCompletion =
    R"({"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": true, "stream": true})";

// Lets an engine come to the submission of a step, and no further until it is opened.
class StepGate {
 public:
  explicit StepGate(int step) : step_(step) {}

  EngineHooks hooks() {
    EngineHooks hooks;
    hooks.fault = [this](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kSubmit) pass();
    };
    return hooks;
  }
  void wait_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return steps_ >= step_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  int steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  void pass() {
    std::unique_lock lock(mutex_);
    ++steps_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_ || steps_ < step_; });
  }

  const int step_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int steps_ = 0;
  bool is_open_ = false;
};

// The API over the bundled model.
class ApiServerTest : public ::testing::Test {
 protected:
  static ApiServerConfig quiet() {
    ApiServerConfig config;
    config.http.port = 0;
    config.access_log = AccessLogFormat::kOff;
    return config;
  }
  // What is sent first is handed to the engine first.
  static ApiServerConfig in_order() {
    ApiServerConfig config = quiet();
    config.http.num_threads = config.num_workers = 1;
    return config;
  }
  static EngineConfig small() {
    EngineConfig config;
    config.device = "cpu";
    config.cpu_threads = 1;
    config.kv_cache_memory = 8 << 20;
    return config;
  }

  void listen(const ApiServerConfig& config = quiet()) { server_.emplace(config); }
  void load(const EngineConfig& config = small(), EngineHooks hooks = {},
            const ServiceOptions& options = {}) {
    auto engine = std::make_unique<Engine>(config, open_model(config.model), std::move(hooks));
    engine_ = engine.get();
    service_ = std::make_shared<ApiService>(std::move(engine), config, options);
    server_->serve(service_);
  }
  void start(const EngineConfig& config = small(), EngineHooks hooks = {}) {
    listen();
    load(config, std::move(hooks));
  }

  HttpClient connect() const { return HttpClient(server_->port()); }
  static std::string post_json(std::string_view path, std::string_view body, std::string_view headers = {}) {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + std::string(headers) +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
  }
  // A server that computes one completion at a time, in whose queue so many may be. Returns the client of one
  // that has come to its first step, where the gate holds it, and that of one that waits.
  std::pair<HttpClient, HttpClient> run_one(StepGate& gate, int max_num_queued_reqs, std::string_view body) {
    EngineConfig config = small();
    config.max_num_seqs = 1;
    config.max_num_queued_reqs = max_num_queued_reqs;
    listen(in_order());
    load(config, gate.hooks());
    HttpClient running = connect();
    running.send(post_json("/v1/completions", body));
    gate.wait_reached();
    HttpClient waiting = connect();
    waiting.send(post_json("/v1/completions", body));
    EXPECT_EQ(ask("/tokenize", R"({"prompt": "a"})").status, 200);  // so the engine has it
    return {std::move(running), std::move(waiting)};
  }
  HttpReply ask(std::string_view bytes) const {
    HttpClient client = connect();
    client.send(bytes);
    return client.read_reply(bytes.starts_with("HEAD"));
  }
  HttpReply ask(std::string_view path, std::string_view body) const { return ask(post_json(path, body)); }

  static OrderedJson json_of(const HttpReply& reply) { return OrderedJson::parse(reply.body); }
  static std::string error_of(const HttpReply& reply) {
    return json_of(reply).at("error").at("message").get<std::string>();
  }
  bool all_blocks_free() const {
    const SchedulerStats stats = engine_->stats().scheduler;
    return stats.num_free_blocks == stats.num_blocks && stats.num_running == 0 && stats.num_waiting == 0;
  }

  Engine* engine_ = nullptr;  // the service's
  std::shared_ptr<ApiService> service_;
  std::optional<ApiServer> server_;
};

}  // namespace quire::server
