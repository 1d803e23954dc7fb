#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "quire/engine_config.h"
#include "server/prometheus_text.h"

namespace quire::server {

// What Prometheus is told, under vLLM's names and in its buckets. Like there, each of several outputs counts
// as a request; a prompt's tokens count once. Thread contract: everything from any thread.
class Metrics {
 public:
  Metrics(std::string model_name, const EngineConfig& config, const RuntimeConfig& runtime);

  void add_step(const StepRecord& step);  // for Engine::observe_steps
  void add_rejection(QueueFullError::Limit limit);
  // An HTTP request was answered, which took so many seconds. handler: its route, never a path that a client
  // makes up: "none" where there is no route.
  void add_response(const std::string& handler, std::string_view method, int status, double seconds);
  // PrometheusText::kContentType. stats: the engine's.
  std::string render(const EngineStats& stats) const;

 private:
  friend class RequestMetrics;
  using Counter = std::atomic<std::uint64_t>;
  struct NamedHistogram {
    const char* name;
    const char* help;
    Histogram values;
  };

  // The answers of a route to a method.
  struct Responses {
    std::map<int, std::uint64_t> by_class;  // 2: 2xx
    Histogram seconds{{0.1, 0.5, 1}};
  };

  std::string render_http() const;
  void render_state(PrometheusText& text, const EngineStats& stats) const;
  void render_counters(PrometheusText& text, const SchedulerStats& stats) const;

  std::string model_name_;
  Labels cache_info_;
  Counter computed_tokens_ = 0;  // of prompts, as are the cached ones
  Counter cached_tokens_ = 0;
  Counter generation_tokens_ = 0;
  std::array<Counter, 6> ended_{};       // by FinishReason
  std::array<Counter, 2> rejections_{};  // by QueueFullError::Limit
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Responses> responses_;  // guarded by mutex_; by route, method
  NamedHistogram iteration_tokens_;
  NamedHistogram first_token_;
  NamedHistogram inter_token_;
  NamedHistogram token_mean_;
  NamedHistogram latency_;
  NamedHistogram queue_;
  NamedHistogram inference_;
  NamedHistogram prefill_;
  NamedHistogram decode_;
  NamedHistogram request_prompt_;
  NamedHistogram request_generation_;
  NamedHistogram request_computed_;
  NamedHistogram request_longest_;
  NamedHistogram request_n_;
  NamedHistogram request_max_tokens_;
  NamedHistogram request_preemptions_;
};

// Tells the metrics of one request. Thread contract: one thread at a time.
class RequestMetrics {
 public:
  // params: as they were submitted. The metrics must live longer.
  RequestMetrics(Metrics& metrics, const SamplingParams& params);

  void update(const RequestUpdate& update);  // each that the request has

 private:
  struct Seen {
    std::uint64_t num_tokens = 0;
    std::optional<TimePoint> last_token;
  };

  void add_prompt(const RequestOutput& request);
  void add_token(const RequestOutput& request, const CompletionOutput& output);
  void finish(const RequestOutput& request, const CompletionOutput& output);

  Metrics& metrics_;
  int n_;
  int max_tokens_;
  bool has_prompt_ = false;
  std::vector<Seen> seen_;  // by output
};

}  // namespace quire::server
