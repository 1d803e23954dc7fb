#include "server/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace quire::server {
namespace {

// Before main, which is as good as when the process was started.
const std::chrono::duration<double> kStartTime = std::chrono::system_clock::now().time_since_epoch();

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}
double seconds(TimePoint::duration time) { return std::chrono::duration<double>(time).count(); }

Labels cache_info(const EngineConfig& config, const RuntimeConfig& runtime) {
  const double concurrency =
      runtime.num_blocks / static_cast<double>(runtime.max_blocks_held(runtime.max_model_len));
  return {
      {"block_size", format_text("{}", runtime.block_size())},
      {"cache_dtype", runtime.cache_policy.code == CacheCode::kNone ? std::string(to_string(runtime.dtype))
                                                                    : config.kv_cache_dtype},
      {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"},  // as Python has it
      {"gpu_memory_utilization", format_text("{}", config.gpu_memory_utilization)},
      {"kv_cache_max_concurrency", format_text("{}", concurrency)},
      {"kv_cache_size_tokens", format_text("{}", runtime.cached_tokens())},
      {"num_cpu_blocks", format_text("{}", runtime.num_host_blocks)},
      {"num_gpu_blocks", format_text("{}", runtime.num_blocks)},
      {"swap_space", format_text("{}", config.swap_space)}};
}

}  // namespace

Metrics::Metrics(std::string model_name, const EngineConfig& config, const RuntimeConfig& runtime)
    : model_name_(std::move(model_name)),
      cache_info_(cache_info(config, runtime)),
      token_counts_(bounds_up_to(runtime.max_model_len)) {}

void Metrics::add_step(const StepRecord& step) {
  iteration_tokens_.observe(static_cast<double>(step.prefill_tokens + step.sampled_tokens));
  if (step.mask_seconds > 0) masks_.observe(step.mask_seconds);
}

void Metrics::add_response(const std::string& handler, std::string_view method, int status, double seconds) {
  constexpr std::array<std::string_view, 6> kMethods = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
  const bool is_known = std::ranges::find(kMethods, method) != kMethods.end();
  const std::lock_guard lock(mutex_);
  Responses& responses = responses_[{handler, is_known ? std::string(method) : "other"}];
  ++responses.by_class[status / 100];
  responses.seconds.observe(seconds);
}

std::string Metrics::render(const EngineStats& stats) const {
  PrometheusText text({{"engine", "0"}, {"model_name", model_name_}});
  render_state(text, stats);
  render_counters(text, stats.scheduler);
  for (const NamedHistogram* histogram :
       {&iteration_tokens_, &first_token_, &inter_token_, &token_mean_, &latency_, &queue_, &inference_,
        &prefill_, &decode_, &request_prompt_, &request_generation_, &request_computed_, &request_longest_,
        &request_n_, &request_max_tokens_, &request_preemptions_, &compilation_, &masks_})
    text.histogram(histogram->name, histogram->help, {{*histogram}});
  PrometheusText info(Labels{{"engine", "0"}});  // there, it is told of no model
  info.gauge("vllm:cache_config_info", "What the KV cache is, in labels.", {{1, cache_info_}});
  return text.take() + info.take() + render_http() + process_metrics();
}

// What vLLM's boards show of its HTTP server, which tells it without a model.
std::string Metrics::render_http() const {
  const std::lock_guard lock(mutex_);
  std::vector<PrometheusText::Sample> requests;
  std::vector<PrometheusText::Counted> seconds;
  for (const auto& [key, responses] : responses_) {
    const Labels labels = {{"handler", key.first}, {"method", key.second}};
    seconds.push_back({responses.seconds, labels});
    for (const auto& [status, count] : responses.by_class) {
      requests.emplace_back(count, labels);
      requests.back().labels.emplace_back("status", format_text("{}xx", status));
    }
  }
  PrometheusText text({});
  text.counter("http_requests_total", "Requests answered, by route, method and class of status.", requests);
  text.histogram("http_request_duration_seconds", "From a request to the end of its answer.", seconds);
  return text.take();
}

void Metrics::render_state(PrometheusText& text, const EngineStats& stats) const {
  const SchedulerStats& now = stats.scheduler;
  const double used = now.num_blocks > 0 ? 1 - static_cast<double>(now.num_free_blocks) / now.num_blocks : 0;
  text.gauge("vllm:num_requests_running", "Requests that steps are computed of.", {now.num_running});
  text.gauge("vllm:num_requests_waiting", "Requests that wait for room.", {now.num_waiting});
  text.gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by what they wait for.",
             {{now.num_waiting, {{"reason", "capacity"}}}});
  text.gauge("vllm:engine_sleep_state", "1 for the state that the engine is in, which never sleeps.",
             {{1, {{"sleep_state", "awake"}}},
              {0, {{"sleep_state", "weights_offloaded"}}},
              {0, {{"sleep_state", "discard_all"}}}});
  text.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that is taken; 1 is all.", {used});
  text.counter("quire:broken_invariants_total", "Times that an invariant of the scheduler did not hold.",
               {stats.broken_invariants});
  text.gauge("quire:structured_outputs_bytes", "What compiled structured outputs take, with their masks.",
             {stats.structured_outputs_bytes});
  if (now.num_state_slots == 0) return;
  text.gauge("quire:state_slots", "Slots for fixed states of sequences.", {now.num_state_slots});
  text.gauge("quire:free_state_slots", "Those of them that no sequence holds, checkpoints included.",
             {now.num_free_state_slots});
}

void Metrics::render_counters(PrometheusText& text, const SchedulerStats& stats) const {
  text.counter("vllm:num_preemptions_total", "Times that a request lost its blocks.",
               {stats.num_preemptions});
  text.counter("quire:saved_blocks_total", "Blocks of preempted requests that were copied to host memory.",
               {stats.num_saved_blocks});
  text.counter("quire:restored_blocks_total", "Those of them that were copied back.",
               {stats.num_restored_blocks});
  text.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               {stats.prefix_cache_queries});
  text.counter("vllm:prefix_cache_hits_total", "Those of them that were found.", {stats.prefix_cache_hits});
  text.counter("vllm:corrupted_requests_total", "Requests whose logits were not finite numbers.",
               {stats.num_invalid_logits});
  const std::uint64_t computed = computed_tokens_;
  const std::uint64_t cached = cached_tokens_;
  text.counter("vllm:prompt_tokens_total", "Tokens of prompts.", {computed + cached});
  text.counter("vllm:prompt_tokens_cached_total", "Those of them that came from the prefix cache.", {cached});
  text.counter("vllm:prompt_tokens_by_source_total",
               "Tokens of prompts, by where their keys and values came from.",
               {{computed, {{"source", "local_compute"}}}, {cached, {{"source", "local_cache_hit"}}}});
  text.counter("vllm:generation_tokens_total", "Tokens generated.", {generation_tokens_.load()});

  const auto labelled = [](const auto& counts, auto key, const char* label, std::string_view value) {
    return PrometheusText::Sample(counts[static_cast<std::size_t>(key)].load(),
                                  {{label, std::string(value)}});
  };
  std::vector<PrometheusText::Sample> cache_ends;
  for (std::size_t i = 1; i < cache_ends_.size(); ++i)
    cache_ends.push_back(labelled(cache_ends_, i, "reason", to_string(static_cast<CacheEnd::Reason>(i))));
  text.counter("quire:prefix_cache_ends_total", "Prompts, by why no more of them came from the prefix cache.",
               cache_ends);

  std::vector<PrometheusText::Sample> ended;
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort,
                                    FinishReason::kTimeout, FinishReason::kError})
    ended.push_back(labelled(ended_, reason, "finished_reason", to_string(reason)));
  text.counter("vllm:request_success_total", "Requests that have ended, by why.", ended);
  text.counter(
      "vllm:admission_rejections_total", "Requests refused because the queue was full, by its limit.",
      {labelled(rejections_, QueueFullError::Limit::kRequests, "reason", "max_num_queued_reqs"),
       labelled(rejections_, QueueFullError::Limit::kPromptTokens, "reason", "max_num_queued_tokens")});
}

void RequestMetrics::update(const RequestUpdate& update) {
  const CompletionOutput& output = update.output;
  if (output.times.first_token) add_token(update.request, output);
  if (!update.request.embedding.empty()) add_prompt(update.request);  // it has no token
  if (output.finished()) finish(update.request, output);
  if (!update.finished) return;
  metrics_.request_n_.observe(static_cast<double>(seen_.size()));
  const auto longest = std::ranges::max(seen_, {}, &Seen::num_tokens);
  metrics_.request_longest_.observe(static_cast<double>(longest.num_tokens));
}

void RequestMetrics::add_prompt(const RequestOutput& request) {
  has_prompt_ = true;
  const auto cached = static_cast<std::uint64_t>(request.num_cached_tokens);
  metrics_.computed_tokens_ += request.prompt_token_ids.size() - cached;
  metrics_.cached_tokens_ += cached;
  ++metrics_.cache_ends_[static_cast<std::size_t>(request.cache_end.reason)];
}

// Of outputs that are given as a whole there is one update, and no time between tokens.
void RequestMetrics::add_token(const RequestOutput& request, const CompletionOutput& output) {
  if (!has_prompt_) add_prompt(request);
  Seen& seen = seen_[static_cast<std::size_t>(output.index)];
  const OutputTimes& times = output.times;
  if (!seen.last_token)
    metrics_.first_token_.observe(seconds(*times.first_token - request.arrival));
  else if (times.last_token != seen.last_token)
    metrics_.inter_token_.observe(seconds(*times.last_token - *seen.last_token));
  seen.last_token = times.last_token;
  metrics_.generation_tokens_ += output.token_ids.size() - seen.num_tokens;
  seen.num_tokens = output.token_ids.size();
}

void RequestMetrics::finish(const RequestOutput& request, const CompletionOutput& output) {
  ++metrics_.ended_[static_cast<std::size_t>(output.finish_reason)];
  const OutputTimes& times = output.times;
  const auto num_prompt = static_cast<double>(request.prompt_token_ids.size());
  const auto num_tokens = static_cast<double>(output.token_ids.size());
  metrics_.latency_.observe(seconds(*times.finished - request.arrival));
  metrics_.request_prompt_.observe(num_prompt);
  metrics_.request_generation_.observe(num_tokens);
  metrics_.request_max_tokens_.observe(max_tokens_);
  metrics_.request_preemptions_.observe(output.num_preemptions);
  if (!times.scheduled) return;
  metrics_.queue_.observe(seconds(*times.scheduled - request.arrival));
  if (!times.first_token) return;
  const double decode = seconds(*times.last_token - *times.first_token);
  metrics_.prefill_.observe(seconds(*times.first_token - *times.scheduled));
  metrics_.decode_.observe(decode);
  metrics_.inference_.observe(seconds(*times.last_token - *times.scheduled));
  metrics_.request_computed_.observe(num_prompt - request.num_cached_tokens);
  if (num_tokens > 1) metrics_.token_mean_.observe(decode / (num_tokens - 1));
}

std::string process_metrics() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  double virtual_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  std::error_code ignored;
  const auto open_files = std::distance(std::filesystem::directory_iterator("/proc/self/fd", ignored), {});

  PrometheusText text({});
  text.counter("process_cpu_seconds_total", "Processor time that was used, in seconds.",
               {seconds(usage.ru_utime) + seconds(usage.ru_stime)});
  text.gauge("process_resident_memory_bytes", "Memory in use.", {resident_pages * page_bytes});
  text.gauge("process_virtual_memory_bytes", "Addresses in use.", {virtual_pages * page_bytes});
  text.gauge("process_open_fds", "Open files.", {open_files - 1});  // not the folder itself
  text.gauge("process_max_fds", "Files that may be open.", {files.rlim_cur});
  text.gauge("process_start_time_seconds", "When it was started, in seconds since 1970.",
             {kStartTime.count()});
  return text.take();
}

}  // namespace quire::server
