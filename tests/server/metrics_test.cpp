#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/prometheus_parser.h"

namespace quire::server {
namespace {

using test::Scrape;
using test::scrape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RuntimeConfig runtime() {
  RuntimeConfig runtime;
  runtime.dtype = DType::kBF16;
  runtime.max_model_len = 4096;
  runtime.cache.layout.block_size = 16;
  runtime.num_blocks = 100;
  runtime.num_host_blocks = 7;
  return runtime;
}

// A request whose updates the test makes, as the engine would, at times it chooses.
class FakeRequest {
 public:
  FakeRequest(Metrics& metrics, int n, int num_prompt, int num_cached) : metrics_(metrics, params(n)) {
    output_.prompt_token_ids.resize(static_cast<std::size_t>(num_prompt));
    output_.num_cached_tokens = num_cached;
    output_.arrival = TimePoint::clock::now();
    output_.outputs.resize(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) output_.outputs[static_cast<std::size_t>(i)].index = i;
  }

  CompletionOutput& output(std::size_t index = 0) { return output_.outputs[index]; }
  TimePoint after(double seconds) const {
    return output_.arrival +
           std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  }
  void schedule(double seconds, std::size_t index = 0) { output(index).times.scheduled = after(seconds); }
  void token(double seconds, std::size_t index = 0, FinishReason finish = FinishReason::kNone,
             bool last = false) {
    OutputTimes& times = output(index).times;
    times.last_token = after(seconds);
    if (!times.first_token) times.first_token = times.last_token;
    output(index).token_ids.push_back(1);
    if (finish != FinishReason::kNone) return end(seconds, index, finish, last);
    metrics_.update({1, output_, output(index), "", false, {}});
  }
  void end(double seconds, std::size_t index, FinishReason finish, bool last) {
    output(index).finish_reason = finish;
    output(index).times.finished = after(seconds);
    metrics_.update({1, output_, output(index), "", last, {}});
  }

 private:
  static SamplingParams params(int n) {
    SamplingParams params;
    params.n = n;
    params.max_tokens = 30;
    return params;
  }

  RequestMetrics metrics_;
  RequestOutput output_;
};

std::vector<std::string> bounds_of(const Scrape& found, const std::string& name) {
  std::map<double, std::string> sorted;
  for (const auto& [labels, value] : found.samples.at(name + "_bucket")) {
    const std::string& bound = labels.at("le");
    sorted[bound == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(bound)] = bound;
  }
  std::vector<std::string> bounds;
  for (const auto& [number, text] : sorted) bounds.push_back(text);
  return bounds;
}

TEST(MetricsTest, WhatTheGrafanaBoardAsksForIsThere) {
  const Metrics metrics("model", {}, runtime());
  const Scrape found = scrape(metrics.render({}));
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason",
        "vllm:kv_cache_usage_perc", "vllm:engine_sleep_state", "vllm:cache_config_info",
        "process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"})
    EXPECT_EQ(found.types.at(name), "gauge") << name;
  for (const char* name :
       {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
        "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_by_source_total", "http_requests_total",
        "process_cpu_seconds_total"})
    EXPECT_EQ(found.types.at(name), "counter") << name;
  for (const char* name : {"vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds",
                           "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds",
                           "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
                           "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds",
                           "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
                           "vllm:request_max_num_generation_tokens", "vllm:request_params_n",
                           "vllm:request_params_max_tokens", "vllm:request_prefill_kv_computed_tokens",
                           "vllm:request_num_preemptions", "vllm:iteration_tokens_total"}) {
    EXPECT_EQ(found.types.at(name), "histogram") << name;
    EXPECT_EQ(found.value(std::string(name) + "_count"), 0) << name;
    EXPECT_EQ(found.value(std::string(name) + "_sum"), 0) << name;
  }
  for (const auto& [name, samples] : found.samples) {
    for (const auto& [labels, value] : samples) {
      if (name.starts_with("process_")) continue;
      ASSERT_TRUE(name.starts_with("vllm:") || name.starts_with("quire:structured_outputs_") ||
                  name == "quire:prefix_cache_ends_total" || name == "quire:broken_invariants_total" ||
                  name == "quire:saved_blocks_total" || name == "quire:restored_blocks_total")
          << name;
      EXPECT_EQ(labels.at("engine"), "0") << name;
      EXPECT_TRUE(name == "vllm:cache_config_info" || labels.at("model_name") == "model") << name;
    }
  }
}

TEST(MetricsTest, BucketsAreThoseOfVllm) {
  const Metrics metrics("model", {}, runtime());
  const Scrape found = scrape(metrics.render({}));
  EXPECT_THAT(bounds_of(found, "vllm:time_to_first_token_seconds"),
              ElementsAre("0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5",
                          "0.75", "1.0", "2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0",
                          "640.0", "2560.0", "+Inf"));
  EXPECT_THAT(bounds_of(found, "vllm:inter_token_latency_seconds"),
              ElementsAre("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5", "0.75",
                          "1.0", "2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "+Inf"));
  EXPECT_EQ(bounds_of(found, "vllm:request_time_per_output_token_seconds"),
            bounds_of(found, "vllm:inter_token_latency_seconds"));
  for (const char* name : {"e2e_request_latency", "request_queue_time", "request_prefill_time",
                           "request_decode_time", "request_inference_time"})
    EXPECT_THAT(
        bounds_of(found, std::string("vllm:") + name + "_seconds"),
        ElementsAre("0.3", "0.5", "0.8", "1.0", "1.5", "2.0", "2.5", "5.0", "10.0", "15.0", "20.0", "30.0",
                    "40.0", "50.0", "60.0", "120.0", "240.0", "480.0", "960.0", "1920.0", "7680.0", "+Inf"))
        << name;
  EXPECT_THAT(bounds_of(found, "vllm:iteration_tokens_total"),
              ElementsAre("1.0", "8.0", "16.0", "32.0", "64.0", "128.0", "256.0", "512.0", "1024.0", "2048.0",
                          "4096.0", "8192.0", "16384.0", "+Inf"));
  EXPECT_THAT(bounds_of(found, "vllm:request_params_n"),
              ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "+Inf"));
  EXPECT_THAT(bounds_of(found, "vllm:request_prompt_tokens"),
              ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "1000.0",
                          "2000.0", "+Inf"));
}

TEST(MetricsTest, SeriesOfOneTwoFiveEndWithTheLongestContext) {
  EXPECT_THAT(bounds_up_to(100), ElementsAre(1, 2, 5, 10, 20, 50, 100));
  EXPECT_THAT(bounds_up_to(99), ElementsAre(1, 2, 5, 10, 20, 50));
  EXPECT_THAT(bounds_up_to(2), ElementsAre(1, 2));
  PrometheusText text({});
  const Histogram tokens(bounds_up_to(2'000'000));
  text.histogram("tokens", "", {{tokens}});
  const std::string written = text.take();
  EXPECT_THAT(written, HasSubstr("le=\"500000.0\""));
  EXPECT_THAT(written, HasSubstr("le=\"2e+06\""));
}

TEST(MetricsTest, AValueIsInTheFirstBucketThatHoldsIt) {
  Histogram histogram({1, 2, 5});
  for (const double value : {0.0, 1.0, 1.001, 2.0, 5.0, 5.1, 100.0}) histogram.observe(value);
  EXPECT_THAT(histogram.counts(), ElementsAre(2, 2, 1, 2));
  PrometheusText text({});
  text.histogram("h", "help", {{histogram}});
  const Scrape found = scrape(text.take());
  EXPECT_EQ(found.bucket("h", "1.0"), 2);
  EXPECT_EQ(found.bucket("h", "2.0"), 4);
  EXPECT_EQ(found.bucket("h", "5.0"), 5);
  EXPECT_EQ(found.bucket("h", "+Inf"), 7);
  EXPECT_EQ(found.value("h_count"), 7);
  EXPECT_DOUBLE_EQ(found.value("h_sum"), 114.101);
}

TEST(MetricsTest, LabelsAreEscaped) {
  const std::string name = "a\\b\"c\nd, ü}";
  const Metrics metrics(name, {}, runtime());
  const std::string text = metrics.render({});
  EXPECT_THAT(text, HasSubstr(R"(model_name="a\\b\"c\nd, ü}")"));
  EXPECT_EQ(scrape(text).value("vllm:num_requests_running", {{"model_name", name}}), 0);
}

TEST(MetricsTest, TheEnginesStateIsTold) {
  EngineConfig config;
  config.enable_prefix_caching = false;
  config.gpu_memory_utilization = 0.85;
  const Metrics metrics("model", config, runtime());
  EngineStats stats;
  stats.scheduler.num_running = 3;
  stats.scheduler.num_waiting = 4;
  stats.scheduler.num_blocks = 100;
  stats.scheduler.num_free_blocks = 75;
  stats.scheduler.num_state_slots = 9;
  stats.scheduler.num_free_state_slots = 4;
  stats.scheduler.num_preemptions = 5;
  stats.scheduler.num_saved_blocks = 70;
  stats.scheduler.num_restored_blocks = 60;
  stats.scheduler.prefix_cache_queries = 600;
  stats.scheduler.prefix_cache_hits = 400;
  stats.scheduler.num_invalid_logits = 2;
  const Scrape found = scrape(metrics.render(stats));
  EXPECT_EQ(found.value("vllm:num_requests_running"), 3);
  EXPECT_EQ(found.value("vllm:num_requests_waiting"), 4);
  EXPECT_EQ(found.value("vllm:num_requests_waiting_by_reason", {{"reason", "capacity"}}), 4);
  EXPECT_EQ(found.value("vllm:kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(found.value("quire:state_slots"), 9);
  EXPECT_EQ(found.value("quire:free_state_slots"), 4);
  EXPECT_FALSE(scrape(metrics.render({})).types.contains("quire:state_slots")) << "of a model without";
  EXPECT_EQ(found.value("vllm:num_preemptions_total"), 5);
  EXPECT_EQ(found.value("quire:saved_blocks_total"), 70);
  EXPECT_EQ(found.value("quire:restored_blocks_total"), 60);
  EXPECT_EQ(found.value("vllm:prefix_cache_queries_total"), 600);
  EXPECT_EQ(found.value("vllm:prefix_cache_hits_total"), 400);
  EXPECT_EQ(found.value("vllm:corrupted_requests_total"), 2);
  EXPECT_EQ(found.value("vllm:cache_config_info", {{"block_size", "16"},
                                                   {"cache_dtype", "bfloat16"},
                                                   {"enable_prefix_caching", "False"},
                                                   {"gpu_memory_utilization", "0.85"},
                                                   {"kv_cache_size_tokens", "1600"},
                                                   {"kv_cache_max_concurrency", "0.390625"},
                                                   {"num_cpu_blocks", "7"},
                                                   {"num_gpu_blocks", "100"}}),
            1);
}

TEST(MetricsTest, TheEngineIsAwake) {
  const Metrics metrics("model", {}, runtime());
  const Scrape found = scrape(metrics.render({}));
  const auto state = [&](const char* name) {
    return found.value("vllm:engine_sleep_state", {{"sleep_state", name}, {"model_name", "model"}});
  };
  EXPECT_EQ(found.types.at("vllm:engine_sleep_state"), "gauge");
  EXPECT_EQ(state("awake"), 1);
  EXPECT_EQ(state("weights_offloaded"), 0);
  EXPECT_EQ(state("discard_all"), 0);
}

TEST(MetricsTest, TheProcessIsToldOf) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const auto read = [] { return scrape(process_metrics()); };
  const Scrape before = read();
  EXPECT_EQ(before.types.at("process_cpu_seconds_total"), "counter");
  EXPECT_LE(before.value("process_start_time_seconds"), now());
  EXPECT_GT(before.value("process_start_time_seconds"), now() - 86'400);
  EXPECT_GE(before.value("process_max_fds"), before.value("process_open_fds"));
  EXPECT_GT(before.value("process_virtual_memory_bytes"), before.value("process_resident_memory_bytes"));

  std::vector<char> memory(64 << 20, 'x');
  const int file = ::dup(0);
  while (read().value("process_cpu_seconds_total") < before.value("process_cpu_seconds_total") + 0.05) {
  }
  const Scrape after = read();
  ::close(file);
  EXPECT_EQ(after.value("process_open_fds"), before.value("process_open_fds") + 1);
  EXPECT_GT(after.value("process_resident_memory_bytes"),
            before.value("process_resident_memory_bytes") + static_cast<double>(memory.size()) / 2);
  EXPECT_EQ(after.value("process_start_time_seconds"), before.value("process_start_time_seconds"));
}

TEST(MetricsTest, ARequestIsToldOfByItsTimes) {
  Metrics metrics("model", {}, runtime());
  FakeRequest request(metrics, 1, 40, 16);
  request.schedule(0.4);
  request.token(1.2);
  request.token(1.24);
  Scrape found = scrape(metrics.render({}));
  EXPECT_EQ(found.value("vllm:prompt_tokens_total"), 40);
  EXPECT_EQ(found.value("vllm:prompt_tokens_cached_total"), 16);
  EXPECT_EQ(found.value("vllm:prompt_tokens_by_source_total", {{"source", "local_compute"}}), 24);
  EXPECT_EQ(found.value("vllm:prompt_tokens_by_source_total", {{"source", "local_cache_hit"}}), 16);
  EXPECT_EQ(found.value("vllm:generation_tokens_total"), 2);
  EXPECT_EQ(found.value("vllm:e2e_request_latency_seconds_count"), 0);

  request.output().num_preemptions = 2;
  request.token(2.2, 0, FinishReason::kLength, true);
  found = scrape(metrics.render({}));
  EXPECT_EQ(found.value("vllm:generation_tokens_total"), 3);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "length"}}), 1);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "stop"}}), 0);
  const auto sum = [&](const char* name) { return found.value(std::string("vllm:") + name + "_sum"); };
  EXPECT_NEAR(sum("time_to_first_token_seconds"), 1.2, 1e-6);
  EXPECT_NEAR(sum("inter_token_latency_seconds"), 1.0, 1e-6);
  EXPECT_EQ(found.value("vllm:inter_token_latency_seconds_count"), 2);
  EXPECT_EQ(found.bucket("vllm:inter_token_latency_seconds", "0.05"), 1);
  EXPECT_NEAR(sum("request_time_per_output_token_seconds"), 0.5, 1e-6);
  EXPECT_NEAR(sum("e2e_request_latency_seconds"), 2.2, 1e-6);
  EXPECT_NEAR(sum("request_queue_time_seconds"), 0.4, 1e-6);
  EXPECT_NEAR(sum("request_prefill_time_seconds"), 0.8, 1e-6);
  EXPECT_NEAR(sum("request_decode_time_seconds"), 1.0, 1e-6);
  EXPECT_NEAR(sum("request_inference_time_seconds"), 1.8, 1e-6);
  EXPECT_EQ(sum("request_prompt_tokens"), 40);
  EXPECT_EQ(sum("request_generation_tokens"), 3);
  EXPECT_EQ(sum("request_prefill_kv_computed_tokens"), 24);
  EXPECT_EQ(sum("request_max_num_generation_tokens"), 3);
  EXPECT_EQ(sum("request_params_n"), 1);
  EXPECT_EQ(sum("request_params_max_tokens"), 30);
  EXPECT_EQ(sum("request_num_preemptions"), 2);
}

TEST(MetricsTest, EachOfSeveralOutputsCountsAndTheirPromptOnce) {
  Metrics metrics("model", {}, runtime());
  FakeRequest request(metrics, 2, 10, 0);
  request.schedule(0.1, 0);
  request.token(0.2, 0);
  request.schedule(0.2, 1);
  request.token(0.3, 1);
  request.token(0.35, 0);
  request.token(0.4, 1, FinishReason::kStop, false);
  request.token(0.45, 0, FinishReason::kLength, true);
  const Scrape found = scrape(metrics.render({}));
  EXPECT_EQ(found.value("vllm:prompt_tokens_total"), 10);
  EXPECT_EQ(found.value("vllm:generation_tokens_total"), 5);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "length"}}), 1);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "stop"}}), 1);
  EXPECT_EQ(found.value("vllm:time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(found.value("vllm:inter_token_latency_seconds_count"), 3);
  EXPECT_EQ(found.value("vllm:request_prompt_tokens_count"), 2);
  EXPECT_EQ(found.value("vllm:request_params_n_count"), 1);
  EXPECT_EQ(found.value("vllm:request_params_n_sum"), 2);
  EXPECT_EQ(found.value("vllm:request_max_num_generation_tokens_sum"), 3);
}

TEST(MetricsTest, WhatEndedInTheQueueHasNoTimesOfWork) {
  Metrics metrics("model", {}, runtime());
  FakeRequest queued(metrics, 1, 10, 0);
  queued.end(0.5, 0, FinishReason::kAbort, true);
  FakeRequest prefilling(metrics, 1, 10, 0);
  prefilling.schedule(0.1);
  prefilling.end(0.5, 0, FinishReason::kTimeout, true);
  const Scrape found = scrape(metrics.render({}));
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "abort"}}), 1);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "timeout"}}), 1);
  EXPECT_EQ(found.value("vllm:e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(found.value("vllm:request_queue_time_seconds_count"), 1);
  EXPECT_EQ(found.value("vllm:request_prefill_time_seconds_count"), 0);
  EXPECT_EQ(found.value("vllm:time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(found.value("vllm:prompt_tokens_total"), 0);
}

TEST(MetricsTest, OutputsGivenAsAWholeHaveNoTimeBetweenTokens) {
  Metrics metrics("model", {}, runtime());
  FakeRequest request(metrics, 1, 10, 0);
  request.schedule(0.1);
  request.output().token_ids.resize(4);
  request.output().times.first_token = request.after(0.2);
  request.token(1.2, 0, FinishReason::kLength, true);
  const Scrape found = scrape(metrics.render({}));
  EXPECT_EQ(found.value("vllm:generation_tokens_total"), 5);
  EXPECT_EQ(found.value("vllm:inter_token_latency_seconds_count"), 0);
  EXPECT_NEAR(found.value("vllm:time_to_first_token_seconds_sum"), 0.2, 1e-6);
  EXPECT_NEAR(found.value("vllm:request_time_per_output_token_seconds_sum"), 0.25, 1e-6);
}

TEST(MetricsTest, StepsAndRefusalsAreCounted) {
  Metrics metrics("model", {}, runtime());
  metrics.add_step({.tokens = 1, .sampled_tokens = 1});
  metrics.add_step({.tokens = 9, .prefill_tokens = 8, .sampled_tokens = 1});
  metrics.add_step(
      {.tokens = 16, .prefill_tokens = 16, .sampled_tokens = 1});  // the last one's is sampled, too
  metrics.add_step({.tokens = 20000, .prefill_tokens = 20000});
  metrics.add_rejection(QueueFullError::Limit::kPromptTokens);
  const Scrape found = scrape(metrics.render({}));
  EXPECT_EQ(found.bucket("vllm:iteration_tokens_total", "1.0"), 1);
  EXPECT_EQ(found.bucket("vllm:iteration_tokens_total", "16.0"), 2);
  EXPECT_EQ(found.bucket("vllm:iteration_tokens_total", "16384.0"), 3);
  EXPECT_EQ(found.value("vllm:iteration_tokens_total_count"), 4);
  EXPECT_EQ(found.value("vllm:admission_rejections_total", {{"reason", "max_num_queued_reqs"}}), 0);
  EXPECT_EQ(found.value("vllm:admission_rejections_total", {{"reason", "max_num_queued_tokens"}}), 1);
}

TEST(MetricsTest, AnswersAreCountedByRouteMethodAndClassOfStatus) {
  Metrics metrics("model", {}, runtime());
  metrics.add_response("/v1/completions", "POST", 200, 0.05);
  metrics.add_response("/v1/completions", "POST", 204, 0.7);
  metrics.add_response("/v1/completions", "POST", 503, 2);
  metrics.add_response("none", "BREW", 404, 0.01);
  const Scrape found = scrape(metrics.render({}));
  const auto requests = [&](const char* handler, const char* method, const char* status) {
    return found.value("http_requests_total", {{"handler", handler}, {"method", method}, {"status", status}});
  };
  EXPECT_EQ(requests("/v1/completions", "POST", "2xx"), 2);
  EXPECT_EQ(requests("/v1/completions", "POST", "5xx"), 1);
  EXPECT_EQ(requests("none", "other", "4xx"), 1);
  const test::LabelMap route{{"handler", "/v1/completions"}};
  EXPECT_EQ(found.value("http_request_duration_seconds_count", route), 3);
  EXPECT_DOUBLE_EQ(found.value("http_request_duration_seconds_sum", route), 2.75);
  EXPECT_EQ(
      found.value("http_request_duration_seconds_bucket", {{"handler", "/v1/completions"}, {"le", "1.0"}}),
      2);
}

// Everything that is counted by eight threads is there, and whoever scrapes meanwhile sees counters grow and
// histograms that agree with themselves.
TEST(MetricsTest, ManyThreadsMayRecordWhileOneReads) {
  constexpr int kThreads = 8;
  constexpr int kRequests = 2000;
  Metrics metrics("model", {}, runtime());
  std::atomic<int> running = kThreads;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kRequests; ++k) {
        FakeRequest request(metrics, 1, 10, 4);
        request.schedule(0.25);
        request.token(0.5);
        request.token(0.75, 0, FinishReason::kStop, true);
        metrics.add_step({.tokens = 2, .sampled_tokens = 2});
      }
      --running;
    });
  }
  double last = 0;
  while (running > 0) {
    const Scrape found = scrape(metrics.render({}));
    EXPECT_GE(found.value("vllm:prompt_tokens_total"), last);
    last = found.value("vllm:prompt_tokens_total");
    EXPECT_EQ(found.value("vllm:iteration_tokens_total_count"),
              found.bucket("vllm:iteration_tokens_total", "+Inf"));
  }
  for (std::thread& thread : threads) thread.join();
  constexpr double kAll = kThreads * kRequests;
  const Scrape found = scrape(metrics.render({}));
  EXPECT_EQ(found.value("vllm:prompt_tokens_total"), 10 * kAll);
  EXPECT_EQ(found.value("vllm:generation_tokens_total"), 2 * kAll);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "stop"}}), kAll);
  EXPECT_EQ(found.value("vllm:iteration_tokens_total_sum"), 2 * kAll);
  EXPECT_EQ(found.bucket("vllm:request_queue_time_seconds", "0.3"), kAll);
  EXPECT_NEAR(found.value("vllm:request_queue_time_seconds_sum"), 0.25 * kAll, 1e-3);
}

}  // namespace
}  // namespace quire::server
