#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "inspect/bench.h"
#include "record/recording.h"
#include "server/api_server.h"

namespace quire::cli {
namespace {

// SIGINT and SIGTERM end the program; without a handler the kernel would spare process 1 of a container.
// After arm() the first one ends wait(), a later one the program. One at a time.
class StopSignal {
 public:
  StopSignal() {
    event_ = ::eventfd(0, EFD_CLOEXEC);
    QUIRE_CHECK(event_ >= 0, "no eventfd");
    first_ = kLongAgo;
    struct sigaction action {};
    action.sa_handler = [](int signal) {
      const Ticks now = Clock::now().time_since_epoch().count();
      Ticks first = kNone;
      if (first_.compare_exchange_strong(first, now)) return raise();
      if (now - first > kOneSignal.count()) ::_exit(128 + signal);
    };
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
  }

  static void arm() { first_ = kNone; }
  // As if the first one had come.
  static void raise() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);
  }
  static void wait() {
    std::uint64_t count = 0;
    while (::read(event_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Ticks = Clock::rep;

  // Some send a signal twice: timeout(1) to its child and to its group, a terminal's shell beside it.
  static constexpr Clock::duration kOneSignal = std::chrono::milliseconds(100);
  static constexpr Ticks kNone = std::numeric_limits<Ticks>::max();
  static constexpr Ticks kLongAgo = std::numeric_limits<Ticks>::min() / 2;

  static inline int event_ = -1;
  static inline std::atomic<Ticks> first_{kLongAgo};  // when the first one came
};

constexpr double kLostDrain = 1;  // seconds: every request has its error already

server::WindowLimits window_limits(Engine& engine, const EngineConfig& config) {
  const DeviceCeiling ceiling = measure_ceiling(engine);
  const int ranks = engine.can_profile() ? 1 : config.tensor_parallel_size;  // that share a machine
  const StepWork work(engine.memory_plan(), engine.config(), ranks);
  return {.read_gb_per_s = ceiling.read_gb_per_s,
          .matrix_gflop_per_s = ceiling.matrix_gflop_per_s,
          .weight_bytes = work.weight_bytes,
          .expert_bytes = work.expert_bytes,
          .routed_share = work.routed_share,
          .block_bytes = ranks * static_cast<double>(engine.config().block_bytes()),
          .flop_per_token = work.flop_per_token};
}

struct Serve : EngineOptions {
  server::ApiServerConfig server;
  server::ServiceOptions service;
  int port = 8000;
  std::string access_log = "text";
  std::string uvicorn_log_level = "info";
  bool no_access_log = false;
  std::string template_kwargs = "{}";
  std::string pooling = "last";
  double drain_timeout = 30;
  bool window = false;
  bool window_text = false;
  bool share_prefix_cache = false;

  void add_to(Flags flags) {
    config.max_num_queued_reqs = 4096;
    // An eighth of the memory, which weights and cache share.
    config.max_num_queued_tokens =
        static_cast<std::int64_t>(allowed_memory()) / 8 / SequenceRequest::kBytesPerQueuedToken;
    add_config_file(flags);  // before the flags that it gives
    flags.shown("--host", server.http.host, "address to listen on; 0.0.0.0: all of this machine");
    flags.shown("--port", port, "0: any that is free", CLI::Range(0, 65535));
    EngineOptions::add_to(flags);
    add_shape_to(flags);
    flags.value("--model", config.model, "as MODEL")
        ->excludes(flags.command.get_option("MODEL"), flags.command.get_option("--shape"));
    add_default_options(flags, config);
    add_form_options(flags);
    add_model_options(flags);
    add_access_options(flags);
    add_limit_options(flags);
    flags.shown("--access-log", access_log,
                "a line a request on standard output, without its text: text, json or off");
    flags.on("--window", window, "a page at /window shows the cache, the steps and the sequences live");
    flags.on("--window-text", window_text, "it shows the end of what sequences say, too")->needs("--window");
    flags.shown("--http-threads", server.http.num_threads, "threads that read and write", CLI::Range(1, 256));
    add_taken_flags(flags);
  }

  int run() {
    limit_kept_memory();
    std::signal(SIGPIPE, SIG_IGN);  // of a log that nobody reads any more
    const StopSignal stop;
    settle_options();
    source.interruptible = false;  // SIGINT is StopSignal's
    if (follows()) return 0;
    std::atomic<bool> lost = false;  // the device, or a rank
    server::ApiServer http(server);
    print_text(stderr, "quire: loading the model; {} answers 503 until then\n", address(http.port()));
    const std::string asked_for = config.model;
    ModelFiles files = open();
    if (service.served_model_names.empty() && config.model != asked_for)
      service.served_model_names = {asked_for};  // a hub id; the folder's name is a commit
    auto loaded = std::make_unique<Engine>(config, std::move(files));
    loaded->on_lost([&lost](const std::string& why) {
      print_text(stderr, "quire: stopping: {}\n", why);
      lost = true;
      StopSignal::raise();
    });
    Engine& engine = *loaded;
    const server::WindowLimits limits = window ? window_limits(engine, config) : server::WindowLimits();
    const auto model = std::make_shared<server::ApiService>(std::move(loaded), config, service);
    StopSignal::arm();
    http.serve(model);
    if (window) {
      http.show(server::make_window(engine, {.model = model->model().names.front(),
                                             .device = std::string(engine.device_name()),
                                             .dtype = std::string(to_string(engine.config().dtype)),
                                             .limits = limits,
                                             .with_text = window_text}));
      print_text(stderr, "quire: what it does is shown on {}/window\n", address(http.port()));
    }
    print_text(stderr, "quire: serving {} on {} (Ctrl-C stops)\n", model->model().names.front(),
               address(http.port()));
    StopSignal::wait();
    const auto longest = std::chrono::duration<double>(lost ? kLostDrain : drain_timeout);
    if (!lost)
      print_text(stderr, "quire: stopping; requests under way have {} s (a second signal: none)\n",
                 drain_timeout);
    http.stop(std::chrono::duration_cast<std::chrono::milliseconds>(longest));
    if (!lost) return 0;
    std::fflush(nullptr);
    std::_Exit(kFailed);  // the device, or MPI, may still be at work in what would be destroyed
  }

 private:
  // What flags mean together. Error where that cannot be, before the model is loaded.
  void settle_options() {
    check_names();
    server.http.port = static_cast<std::uint16_t>(port);
    server.access_log = server::parse_access_log_format(access_log);
    if (no_access_log ||
        (uvicorn_log_level != "info" && uvicorn_log_level != "debug" && uvicorn_log_level != "trace"))
      server.access_log = server::AccessLogFormat::kOff;
    if (!server.root_path.empty() && !server.root_path.starts_with('/'))
      fail("--root-path is {}; it must begin with a slash", in_quotes(server.root_path));
    while (server.root_path.ends_with('/')) server.root_path.pop_back();
    service.root_path = server.root_path;
    service.separate_keys = server.api_keys.size() > 1 && !share_prefix_cache;
    service.answers.chat_template_kwargs =
        parse_ordered_json(template_kwargs, "--default-chat-template-kwargs");
    service.pooling = pooling == "mean" ? Pooling::kMean : Pooling::kLast;
    if (window) server::require_window();
    server::check_options(service);
    given_defaults({}, config);
  }

  // --served-model-name takes all words that follow it, a MODEL too.
  void check_names() const {
    const std::vector<std::string>& names = service.served_model_names;
    if (names.size() < 2 || !config.model.empty() || shape) return;
    std::error_code ec;
    if (names.back().find('/') != std::string::npos || std::filesystem::exists(names.back(), ec))
      fail("--served-model-name has taken {} for a name, and there is no MODEL, which goes first",
           in_quotes(names.back()));
  }

  void add_access_options(Flags flags) {
    flags
        .list("--api-key", server.api_keys,
              "a key that every request must bring, but /health, /live and /ping (repeatable; or in "
              "QUIRE_API_KEY, where ps does not show it)")
        ->envname("QUIRE_API_KEY");
    flags.on("--public-metrics", server.public_metrics, "/metrics needs no key");
    flags.on("--share-prefix-cache", share_prefix_cache,
             "with several keys: what was computed for one is reused for all, which its speed tells them");
    flags.comma_list(
        "--allowed-origins", server.allowed_origins,
        "origins of web pages that may use the server, https://example.com; *: all (default: none)");
    flags.comma_list("--allowed-hosts", server.allowed_hosts,
                     "names by which requests may call the server, beside localhost and --host, such as a "
                     "reverse proxy's; *: any (default: none on loopback without a key, else any)");
    flags.value("--ssl-certfile", server.http.tls_certificate, "PEM file with a certificate chain: TLS");
    flags.value("--ssl-keyfile", server.http.tls_key, "PEM file with its key (default: in the same file)")
        ->needs("--ssl-certfile");
  }

  // As vLLM has them.
  void add_form_options(Flags flags) {
    flags.shown(
        "--chat-template-content-format", service.content_format,
        "how templates get messages: as a string, as openai's list of parts, or auto, as they want it",
        CLI::IsMember({"auto", "string", "openai"}));
    flags.value("--default-chat-template-kwargs", template_kwargs,
                "a JSON object of what templates may read, under the request's own chat_template_kwargs");
    flags.on("--enable-force-include-usage", service.answers.include_usage,
             "every chunk of a stream has its usage so far, and the last one all");
    flags.on("--return-tokens-as-token-ids", service.answers.return_tokens_as_token_ids,
             "log-probabilities name tokens token_id:7, unless the request says otherwise");
    flags.on("--enable-per-request-metrics", service.answers.metrics,
             "answers have their times, as `metrics`");
    flags.value("--root-path", server.root_path,
                "a reverse proxy's prefix, such as /quire: paths are served with it and without");
    flags.shown("--seed", config.seed, "from which requests without a seed get theirs",
                CLI::NonNegativeNumber);
    flags.on("--disable-uvicorn-access-log", no_access_log, "as --access-log off");
    flags.shown("--uvicorn-log-level", uvicorn_log_level, "above info: as --access-log off",
                CLI::IsMember({"critical", "error", "warning", "info", "debug", "trace"}));
  }

  void add_model_options(Flags flags) {
    flags.value("--served-model-name", service.served_model_names,
                "names that requests may call the model by; answers have the first (default: the directory's "
                "name, or the hub id)");
    flags.shown("--tool-call-parser", service.tool_call_parser,
                "how the model writes tool calls: none, auto, by its chat template, or a name, vLLM's or of "
                "docs/openai_api.md, such as hermes");
    flags.shown("--pooling-type", pooling,
                "what an embedding is made of: the last token's hidden state, or the mean of all",
                CLI::IsMember({"last", "mean"}));
    flags.value(
        "--hf-overrides,--hf_overrides", service.hf_overrides,
        "makes a classifier of a causal model, as JSON: classifier_from_token, is_original_qwen3_reranker "
        "(with which /score and /rerank are as Qwen3-Reranker's), architectures");
    flags.shown("--reasoning-parser", service.reasoning_parser,
                "how it marks reasoning: none, auto, or a name, such as qwen3");
  }

  void add_limit_options(Flags flags) {
    flags.command.get_option("--max-num-queued-reqs")
        ->description("answer 429 while so many requests wait for their first step; 0: never")
        ->capture_default_str();
    flags.command.get_option("--max-num-queued-tokens")
        ->description(
            "answer 429 while requests of so many tokens wait for their first step; 0: never (default: what "
            "an eighth of the memory holds)");
    flags.shown("--request-timeout", service.request_timeout, "seconds a request may take",
                CLI::Range(1e-3, 1e9));
    flags.shown("--drain-timeout", drain_timeout,
                "seconds that requests under way have left after SIGTERM or SIGINT", CLI::Range(0.0, 1e6));
    flags.shown("--max-connections", server.http.limits.max_connections, "connections at once",
                CLI::Range(1, 1 << 20));
    flags
        .bytes("--max-body-size", server.http.limits.max_body_bytes,
               "bytes of a request, or with a unit: 16MiB")
        ->capture_default_str();
    flags.shown("--max-n", service.max_n, "outputs that a request may have of a prompt",
                CLI::Range(1, kMaxOutputs));
    flags.shown("--max-prompts", service.max_prompts, "prompts that a request may have",
                CLI::Range(1, 1 << 20));
    flags
        .bytes("--response-store-size", service.response_store_size,
               "bytes of conversations kept for /v1/responses, or with a unit: 64MiB; 0: none")
        ->capture_default_str();
  }

  std::string address(std::uint16_t bound_port) const {
    const bool is_ipv6 = server.http.host.find(':') != std::string::npos;
    return format_text("{}://{}{}{}:{}", server.http.tls_certificate.empty() ? "http" : "https",
                       is_ipv6 ? "[" : "", server.http.host, is_ipv6 ? "]" : "", bound_port);
  }
};

}  // namespace

void add_serve(CLI::App& app, Command& chosen) {
  add_command<Serve>(app, chosen, "serve", "Serve a model over HTTP, as OpenAI's API");
}

int serve_recording(const std::string& path, int port) {
  std::signal(SIGPIPE, SIG_IGN);
  const StopSignal stop;
  server::require_window();
  std::shared_ptr<server::Window> window = server::make_window(Recording(path));
  server::ApiServerConfig config;
  config.http.port = static_cast<std::uint16_t>(port);
  config.access_log = server::AccessLogFormat::kOff;
  server::ApiServer http(config);
  StopSignal::arm();
  http.show(std::move(window));
  print_text(stderr, "quire: {} is shown on http://{}:{}/window (Ctrl-C stops)\n", path, config.http.host,
             http.port());
  StopSignal::wait();
  http.stop({});
  return 0;
}

}  // namespace quire::cli
