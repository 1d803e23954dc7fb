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

  void add_step(const StepRecord& step);                                   // for Engine::observe_steps
  void add_compilation(double seconds) { compilation_.observe(seconds); }  // for Engine::observe_compilations
  void add_rejection(QueueFullError::Limit limit) { ++rejections_[static_cast<std::size_t>(limit)]; }
  // An HTTP request was answered. handler: its route, or "none", and never a path that a client makes up.
  void add_response(const std::string& handler, std::string_view method, int status, double seconds);
  // PrometheusText::kContentType. stats: the engine's.
  std::string render(const EngineStats& stats) const;

 private:
  friend class RequestMetrics;
  using Counter = std::atomic<std::uint64_t>;
  struct NamedHistogram : Histogram {
    NamedHistogram(const char* its_name, const char* its_help, std::vector<double> bounds)
        : Histogram(std::move(bounds)), name(its_name), help(its_help) {}
    const char* name;
    const char* help;
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
  std::array<Counter, 6> ended_{};  // by FinishReason
  std::array<Counter, CacheEnd::kNumReasons> cache_ends_{};
  std::array<Counter, 2> rejections_{};  // by QueueFullError::Limit
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Responses> responses_;  // guarded by mutex_; by route, method

  static inline const std::vector<double> kTokenSeconds = {
      0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
  static inline const std::vector<double> kRequestSeconds = {
      0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  const std::vector<double> token_counts_;  // up to the longest context
  NamedHistogram iteration_tokens_{"vllm:iteration_tokens_total",
                                   "Tokens of prompts and outputs in a step.",
                                   {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}};
  NamedHistogram first_token_{"vllm:time_to_first_token_seconds",
                              "From arrival to the first token.",
                              {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                               1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560}};
  NamedHistogram inter_token_{"vllm:inter_token_latency_seconds", "From one token to the next.",
                              kTokenSeconds};
  NamedHistogram token_mean_{"vllm:request_time_per_output_token_seconds",
                             "From one token to the next, the mean of a request.", kTokenSeconds};
  NamedHistogram latency_{"vllm:e2e_request_latency_seconds", "From arrival to the end.", kRequestSeconds};
  NamedHistogram queue_{"vllm:request_queue_time_seconds", "From arrival to the first step.",
                        kRequestSeconds};
  NamedHistogram inference_{"vllm:request_inference_time_seconds", "From the first step to the last token.",
                            kRequestSeconds};
  NamedHistogram prefill_{"vllm:request_prefill_time_seconds", "From the first step to the first token.",
                          kRequestSeconds};
  NamedHistogram decode_{"vllm:request_decode_time_seconds", "From the first token to the last.",
                         kRequestSeconds};
  NamedHistogram request_prompt_{"vllm:request_prompt_tokens", "Tokens of a prompt.", token_counts_};
  NamedHistogram request_generation_{"vllm:request_generation_tokens", "Tokens generated for a request.",
                                     token_counts_};
  NamedHistogram request_computed_{"vllm:request_prefill_kv_computed_tokens",
                                   "Tokens of a prompt that no cache had.", token_counts_};
  NamedHistogram request_longest_{"vllm:request_max_num_generation_tokens",
                                  "Tokens of the longest output of each request.", token_counts_};
  NamedHistogram request_n_{"vllm:request_params_n", "The parameter n of requests.", {1, 2, 5, 10, 20}};
  NamedHistogram request_max_tokens_{"vllm:request_params_max_tokens",
                                     "The parameter max_tokens of requests.", token_counts_};
  NamedHistogram request_preemptions_{
      "vllm:request_num_preemptions", "Preemptions of a request.", {1, 2, 3, 4, 5, 10, 20}};
  NamedHistogram compilation_{"quire:structured_outputs_compile_seconds",
                              "To compile a source of structured outputs.",
                              {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3}};
  NamedHistogram masks_{"quire:structured_outputs_mask_seconds",
                        "To find out what may follow in all constrained sequences of a step.",
                        {0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3}};
};

// Tells the metrics of one request. Thread contract: one thread at a time.
class RequestMetrics {
 public:
  // params: as they were submitted. The metrics must live longer.
  RequestMetrics(Metrics& metrics, const SamplingParams& params)
      : metrics_(metrics), max_tokens_(params.max_tokens), seen_(static_cast<std::size_t>(params.n)) {}

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
  int max_tokens_;
  bool has_prompt_ = false;
  std::vector<Seen> seen_;  // by output
};

// What this process uses, by the names of Prometheus' client libraries: process_cpu_seconds_total and others.
std::string process_metrics();

}  // namespace quire::server
