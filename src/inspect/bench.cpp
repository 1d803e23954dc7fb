#include "inspect/bench.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <ranges>

#include "base/error.h"

namespace quire {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

double ratio(double amount, double by) { return by > 0 && amount > 0 ? amount / by : kNotMeasured; }

Percentiles percentiles(const std::vector<double>& values) {
  return {percentile(values, 0.5), percentile(values, 0.99)};
}

std::vector<EngineRequest> make_requests(Engine& engine, const BenchOptions& options,
                                         std::span<const RequestSize> sizes, std::mt19937_64& random) {
  std::vector<EngineRequest> requests;
  for (const RequestSize& size : sizes) {
    EngineRequest& request = requests.emplace_back(options.request);
    request.prompt = random_tokens(size.prompt_tokens, engine.config().spec.vocab_size, random);
    request.params.max_tokens = size.output_tokens;
  }
  return requests;
}

std::size_t num_outputs(std::span<const EngineRequest> requests) {
  std::size_t count = 0;
  for (const EngineRequest& request : requests) count += static_cast<std::size_t>(request.params.n);
  return count;
}

// Steps with prompt tokens and steps without, added up.
struct StepTotals {
  double prefill_tokens = 0, prefill_seconds = 0;  // the prompt tokens' share of the time
  double mixed_seconds = 0, mixed_flop = 0;        // all of the steps that have prompt tokens
  double decode_tokens = 0, decode_seconds = 0, decode_bytes = 0;

  void add(const StepRecord& step, const StepWork& work) {
    if (step.prefill_tokens > 0) {
      prefill_tokens += static_cast<double>(step.prefill_tokens);
      prefill_seconds += step.seconds * step.prefill_share();
      mixed_seconds += step.seconds;
      mixed_flop += work.flop(step);
    } else {
      decode_tokens += static_cast<double>(step.sampled_tokens);
      decode_seconds += step.seconds;
      decode_bytes += work.decode_bytes(step);
    }
  }
};

// Adds up decode steps whose ops were timed, and steps shortly before them, which were not. The step right
// before may still be in flight while the profiled one waits: the one before that counts.
class DecodeProfile {
 public:
  void add(const StepRecord& step, const StepWork& work) {
    const double step_before = before_.front();
    before_ = {before_.back(), step.prefill_tokens > 0 || step.ops ? 0 : step.seconds};
    if (step.prefill_tokens == 0 && step.ops && step_before > 0) {
      ++steps_;
      for (std::size_t kind = 0; kind < kNumOpKinds; ++kind) seconds_[kind] += (*step.ops)[kind];
      step_seconds_ += step_before;
      kv_bytes_ += work.kv_bytes(step);
      weight_bytes_ += work.decode_bytes(step) - work.kv_bytes(step);
      linear_flop_ += work.linear_flop(step);
    }
  }

  std::optional<DecodeBreakdown> breakdown(const DeviceCeiling& ceiling) const {
    if (steps_ == 0) return {};
    DecodeBreakdown result;
    result.step_ms = 1e3 * step_seconds_ / steps_;
    result.gap_ms = result.step_ms;
    for (std::size_t kind = 0; kind < kNumOpKinds; ++kind) {
      result.ms[kind] = 1e3 * seconds_[kind] / steps_;
      result.gap_ms -= result.ms[kind];
    }
    const double linear = seconds_[static_cast<std::size_t>(OpKind::kLinear)];
    const double attention = seconds_[static_cast<std::size_t>(OpKind::kAttention)];
    result.attention_share = 1e-9 * kv_bytes_ / attention / ceiling.read_gb_per_s;
    result.linear_share = std::max(1e-9 * weight_bytes_ / linear / ceiling.read_gb_per_s,
                                   1e-9 * linear_flop_ / linear / ceiling.matrix_gflop_per_s);
    return result;
  }

 private:
  int steps_ = 0;
  std::array<double, 2> before_{};  // seconds of the last two steps; 0: no decode step as it runs otherwise
  OpTimes seconds_{};
  double step_seconds_ = 0, kv_bytes_ = 0, weight_bytes_ = 0, linear_flop_ = 0;
};

void warm_up(Engine& engine, const BenchOptions& options, std::mt19937_64& random) {
  constexpr std::size_t kRequests = 8;
  constexpr RequestSize kLargest{64, 4};
  std::vector<RequestSize> sizes;
  for (const auto& [prompt_tokens, output_tokens] : options.requests | std::views::take(kRequests))
    sizes.push_back(
        {std::min(prompt_tokens, kLargest.prompt_tokens), std::min(output_tokens, kLargest.output_tokens)});
  run_round(engine, make_requests(engine, options, sizes, random));
}

// A round in which every eighth step is timed op by op, on a backend that can.
DecodeProfile profile_round(Engine& engine, const BenchOptions& options, const StepWork& work,
                            std::mt19937_64& random) {
  constexpr int kEvery = 8;
  if (!engine.can_profile()) return {};
  // The observer's own, should the round fail with steps in flight.
  const auto profile = std::make_shared<DecodeProfile>();
  engine.observe_steps([profile, work](const StepRecord& step) { profile->add(step, work); }, kEvery);
  run_round(engine, make_requests(engine, options, options.requests, random));
  engine.observe_steps({});
  return *profile;
}

}  // namespace

EngineRequest sized_request(std::vector<TokenId> prompt, int output_tokens, float temperature) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.params.max_tokens = output_tokens;
  request.params.temperature = temperature;
  request.params.ignore_eos = true;
  return request;
}

double seconds_between(BenchClock::time_point from, BenchClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// As far as there is memory for it: the others end by themselves, later.
void abort_all(Engine& engine, std::span<const RequestId> ids) {
  try {
    for (const RequestId id : ids) engine.abort(id);
  } catch (const std::exception&) {
  }
}

Round run_round(Engine& engine, std::vector<EngineRequest> requests, const std::function<void()>& on_token,
                std::size_t at_once) {
  constexpr std::size_t kUnderWay = 3;  // times: of the submission and of two tokens
  at_once = std::min(at_once, requests.size());
  Round round;
  round.outputs.resize(num_outputs(requests));
  const std::size_t num_first = num_outputs(std::span(requests).first(at_once));
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t unfinished = requests.size(), under_way = 0;  // guarded by mutex, as is the next one
  std::string error;
  const auto all_ended = [&] { return unfinished == 0; };
  std::vector<RequestId> ids(requests.size());
  auto output = round.outputs.begin();
  const BenchClock::time_point start = BenchClock::now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i == at_once) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return under_way == num_first || unfinished + at_once == requests.size(); });
    }
    const std::span<TimedOutput> outputs(output, static_cast<std::size_t>(requests[i].params.n));
    output += requests[i].params.n;
    const auto on_update = [&, outputs](const RequestUpdate& update) {
      const BenchClock::time_point now = BenchClock::now();
      TimedOutput& own = outputs[update.output.index];
      const bool has_token = update.output.token_ids.size() >= own.times.size();
      if (has_token) {
        own.times.push_back(now);
        if (on_token) on_token();
      }
      const std::lock_guard lock(mutex);
      if (has_token && own.times.size() == kUnderWay && ++under_way == num_first) changed.notify_all();
      if (!update.output.finished()) return;
      own.tokens = update.output.token_ids;
      if (!update.output.error.empty()) error = update.output.error;
      if (update.output.finish_reason == FinishReason::kStop)
        error = format_text("an output was complete after {} tokens; a schema that never is would do",
                            update.output.token_ids.size());
      if (!update.finished) return;
      round.seconds = seconds_between(start, now);
      --unfinished;
      changed.notify_all();  // under the lock: all this may be gone right after
    };
    try {
      for (TimedOutput& own : outputs) own.times.push_back(BenchClock::now());
      requests[i].on_update = on_update;
      ids[i] = engine.submit(std::move(requests[i]));
    } catch (...) {  // the queue is full, say; all this must stay until those under way have ended
      abort_all(engine, std::span(ids).first(i));
      std::unique_lock lock(mutex);
      unfinished -= requests.size() - i;
      changed.wait(lock, all_ended);
      throw;
    }
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, all_ended);
  if (!error.empty()) fail("bench: {}", error);
  return round;
}

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return kNotMeasured;
  std::ranges::sort(values);
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

DeviceCeiling measure_ceiling(Engine& engine) {
  const std::optional<DeviceCeiling> device = engine.measure_ceiling();
  return device ? *device : probe_machine();
}

// The matrices of the vocabulary's height are the embedding and the head, or one for both. A token reads one
// row of an embedding, and is multiplied with the head only where it is sampled from.
StepWork::StepWork(const MemoryPlan& plan, const RuntimeConfig& config, int ranks) {
  const int shards = config.spec.num_heads / config.num_heads;
  const std::int64_t vocab_rows = (config.spec.vocab_size + shards - 1) / shards;
  double head_bytes = 0;
  for (const LinearWeights& matrix : plan.matrices) {
    const double flop =
        2.0 * static_cast<double>(matrix.out_features()) * static_cast<double>(matrix.in_features());
    if (matrix.out_features() == vocab_rows) {
      flop_per_logits = flop;
      head_bytes = static_cast<double>(matrix.bytes());
    } else {
      flop_per_token += flop;
      weight_bytes += static_cast<double>(matrix.bytes());
    }
  }
  weight_bytes += head_bytes;
  for (const ExpertWeights& experts : plan.experts) {
    const ExpertShape& shape = experts.shape();
    flop_per_token += 6.0 * shape.top_k * static_cast<double>(shape.hidden_size) *
                      static_cast<double>(shape.intermediate_size);
    expert_bytes += static_cast<double>(experts.bytes());
    routed_share = static_cast<double>(shape.top_k) / shape.num_experts;
  }
  // A product with the key and one with the value, in every head; of layers of several kinds the mean.
  const auto layers = static_cast<double>(config.cache.places.size());
  for (std::size_t i = 0; i < config.cache.places.size(); ++i)
    flop_per_attention_pair += 4.0 * config.cache.spec_of(i).num_heads * config.cache.spec_of(i).head_dim;
  flop_per_attention_pair /= layers;
  kv_bytes_per_pair = static_cast<double>(config.cache.used_bytes) / layers;
  for (double* amount : {&flop_per_token, &flop_per_logits, &flop_per_attention_pair, &weight_bytes,
                         &expert_bytes, &kv_bytes_per_pair})
    *amount *= ranks;
}

// Of the experts, those that tokens routed at random would meet.
double StepWork::decode_bytes(const StepRecord& step) const {
  const double met = 1 - std::pow(1 - routed_share, static_cast<double>(step.tokens));
  return weight_bytes + expert_bytes * met + kv_bytes(step);
}

BenchResult run_bench(const BenchOptions& options, ModelFiles model) {
  QUIRE_CHECK(!options.requests.empty() && options.rounds > 0);
  EngineConfig config = options.engine;
  int longest = 0;
  std::size_t total = 0;  // tokens of all outputs
  for (const auto& [prompt_tokens, output_tokens] : options.requests) {
    longest = std::max(longest, prompt_tokens + output_tokens);
    total += static_cast<std::size_t>(output_tokens);
  }
  total *= static_cast<std::size_t>(options.rounds) * static_cast<std::size_t>(options.request.params.n);
  if (config.max_model_len == 0) config.max_model_len = longest;
  if (config.max_model_len < longest)
    fail("max-model-len is {}; the longest request has {} tokens of prompt and output", config.max_model_len,
         longest);
  StepTotals totals;  // written on the engine's thread, which has booked a step before its tokens are seen
  Engine engine(config, std::move(model));
  DeviceCeiling ceiling = measure_ceiling(engine);
  std::mt19937_64 random(0);
  warm_up(engine, options, random);

  // A GPU is one rank's own; ranks on CPUs share the machine.
  const StepWork work(engine.memory_plan(), engine.config(),
                      engine.can_profile() ? 1 : config.tensor_parallel_size);
  engine.observe_steps([&totals, work](const StepRecord& step) { totals.add(step, work); });
  std::size_t done = 0;
  std::vector<double> first_token_ms, between_tokens_ms;
  double seconds = 0;
  for (int i = 0; i < options.rounds; ++i) {
    const Round round = run_round(engine, make_requests(engine, options, options.requests, random), [&] {
      ++done;
      if (options.on_progress) options.on_progress(done, total);
    });
    seconds += round.seconds;
    for (const auto& [tokens, times] : round.outputs)
      for (std::size_t j = 1; j < times.size(); ++j)
        (j == 1 ? first_token_ms : between_tokens_ms)
            .push_back(1e3 * seconds_between(times[j - 1], times[j]));
  }
  engine.observe_steps({});
  const DecodeProfile profile = profile_round(engine, options, work, random);
  const DeviceCeiling after = measure_ceiling(engine);
  ceiling.read_gb_per_s = std::max(ceiling.read_gb_per_s, after.read_gb_per_s);
  ceiling.matrix_gflop_per_s = std::max(ceiling.matrix_gflop_per_s, after.matrix_gflop_per_s);

  return {.prefill_tokens_per_s = ratio(totals.prefill_tokens, totals.prefill_seconds),
          .decode_tokens_per_s = ratio(totals.decode_tokens, totals.decode_seconds),
          .output_tokens_per_s = ratio(static_cast<double>(total), seconds),
          .ttft_ms = percentiles(first_token_ms),
          .itl_ms = percentiles(between_tokens_ms),
          .ceiling = ceiling,
          .read_share = ratio(totals.decode_bytes * 1e-9, totals.decode_seconds) / ceiling.read_gb_per_s,
          .matrix_share = ratio(totals.mixed_flop * 1e-9, totals.mixed_seconds) / ceiling.matrix_gflop_per_s,
          .decode = profile.breakdown(ceiling),
          .startup = engine.startup()};
}

void answer_requests(Engine& engine, std::span<const RequestSize> sizes, std::mt19937_64& random) {
  run_round(engine, make_requests(engine, BenchOptions{}, sizes, random));
}

}  // namespace quire
