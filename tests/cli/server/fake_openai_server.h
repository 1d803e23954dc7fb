#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "server/http_server.h"

namespace quire::testing {

using server::HttpRequest;
using server::HttpResponder;

// A server of completions and chat completions whose tokens and times are known: max_tokens tokens, the first
// after first_delay, the others each after gap.
class FakeOpenAiServer {
 public:
  struct Behaviour {
    std::chrono::milliseconds first_delay{0};
    std::chrono::milliseconds gap{0};
    std::string api_key = {};               // empty: any
    std::string line_end = "\n";            // of events
    std::size_t piece = std::string::npos;  // bytes of a chunk of the body; otherwise an event each
    bool usage = true;
    bool lists_models = true;
    std::optional<int> cut_after = {};            // tokens, then the connection breaks
    std::function<bool(int index)> refuses = {};  // with 429: of the completions asked for, from 0
    std::function<bool(int index)> holds = {};    // these get no answer
  };

  explicit FakeOpenAiServer(Behaviour behaviour)
      : behaviour_(std::move(behaviour)),
        server_(config(), [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          answer(std::move(request), std::move(responder));
        }) {
    server_.start();
  }
  ~FakeOpenAiServer() {
    server_.stop({});
    threads_.clear();
  }
  FakeOpenAiServer(const FakeOpenAiServer&) = delete;
  FakeOpenAiServer& operator=(const FakeOpenAiServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_.port()); }

  // The bodies of the completions asked for, in order.
  std::vector<nlohmann::json> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  int max_at_once() const { return max_at_once_; }

 private:
  static server::HttpServerConfig config() {
    server::HttpServerConfig config;
    config.port = 0;
    return config;
  }

  void answer(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    if (!behaviour_.api_key.empty() && request.header("Authorization") != "Bearer " + behaviour_.api_key)
      return refuse(*responder, 401, "wrong key");
    if (request.path() == "/v1/models" && behaviour_.lists_models)
      return responder->send(200, {}, R"({"object":"list","data":[{"id":"fake-model"}]})");
    const bool chat = request.path() == "/v1/chat/completions";
    if (!chat && request.path() != "/v1/completions") return refuse(*responder, 404, "no such path");
    const std::lock_guard lock(mutex_);
    const int index = static_cast<int>(requests_.size());
    requests_.push_back(nlohmann::json::parse(request.body));
    if (behaviour_.refuses && behaviour_.refuses(index)) return refuse(*responder, 429, "come back later");
    if (behaviour_.holds && behaviour_.holds(index)) return held_.push_back(std::move(responder));
    threads_.emplace_back([this, chat, body = requests_.back(), responder = std::move(responder)]() mutable {
      max_at_once_ = std::max(max_at_once_.load(), ++at_once_);
      complete(body, chat, *responder);
      --at_once_;
      responder.reset();
    });
  }

  static void refuse(HttpResponder& responder, int status, const std::string& message) {
    responder.send(status, {}, nlohmann::json{{"error", {{"message", message}}}}.dump());
  }

  void complete(const nlohmann::json& body, bool chat, HttpResponder& responder) const {
    const int tokens = body.at(chat ? "max_completion_tokens" : "max_tokens");
    const nlohmann::json usage = {{"prompt_tokens", chat ? 77 : body.at("prompt").size()},
                                  {"completion_tokens", tokens}};
    const bool stream = body.at("stream");
    if (stream) responder.begin(200, {{"Content-Type", "text/event-stream"}});
    for (int token = 0; token < tokens; ++token) {
      std::this_thread::sleep_for(token == 0 ? behaviour_.first_delay : behaviour_.gap);
      if (behaviour_.cut_after == token) return;  // dropped unfinished
      if (stream) write_event(R"({"choices":[{"index":0}]})", responder);
    }
    if (!stream) return responder.send(200, {}, nlohmann::json{{"choices", {{}}}, {"usage", usage}}.dump());
    if (behaviour_.usage)
      write_event(nlohmann::json{{"choices", nlohmann::json::array()}, {"usage", usage}}.dump(), responder);
    write_event("[DONE]", responder);
    responder.end();
  }

  void write_event(const std::string& data, HttpResponder& responder) const {
    const std::string event = "data: " + data + behaviour_.line_end + behaviour_.line_end;
    for (std::size_t at = 0; at < event.size(); at += std::min(behaviour_.piece, event.size()))
      responder.write(event.substr(at, behaviour_.piece));
  }

  const Behaviour behaviour_;
  std::mutex mutex_;  // of the next three
  std::vector<nlohmann::json> requests_;
  std::vector<std::shared_ptr<HttpResponder>> held_;
  std::vector<std::jthread> threads_;
  std::atomic<int> at_once_{0};
  std::atomic<int> max_at_once_{0};
  server::HttpServer server_;
};

}  // namespace quire::testing
