#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "inspect/workload.h"

namespace quire {

// A request of so many output tokens: EOS is ignored.
EngineRequest sized_request(std::vector<TokenId> prompt, int output_tokens, float temperature = 0);

struct BenchOptions {
  EngineConfig engine;                                 // max_model_len 0: what the longest request needs
  std::vector<RequestSize> requests;                   // of a round, all submitted at once
  int rounds = 1;                                      // one after the other
  EngineRequest request = sized_request({}, 1, 0.6F);  // what each is like, but for prompt and length
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // output tokens; from another thread
};

struct Percentiles {
  double p50 = 0;
  double p99 = 0;
};

// Where the time of a decode step goes, on average over the profiled ones.
struct DecodeBreakdown {
  OpTimes ms{};                // by kind of op, each run for itself
  double step_ms = 0;          // the whole step as it runs otherwise
  double gap_ms = 0;           // what is left of it: launches, copies, the host; below 0 where ops overlap
  double attention_share = 0;  // bytes of keys and values a second, of the reading ceiling
  double linear_share = 0;     // bytes of weights a second, or operations where that is more, of its ceiling
};

// What was not measured, such as decoding where each output is one token, is NaN.
struct BenchResult {
  double prefill_tokens_per_s = 0;  // prompt tokens, by their share of the time of steps that have some
  double decode_tokens_per_s = 0;   // sampled tokens, in steps without prompt tokens
  double output_tokens_per_s = 0;   // sampled tokens by the time from the first request to the last answer
  Percentiles ttft_ms;              // a request's submission to the first token of an output
  Percentiles itl_ms;               // between tokens of an output
  DeviceCeiling ceiling;
  double read_share = 0;    // decode: bytes of weights, keys and values a second, of the reading ceiling
  double matrix_share = 0;  // prefill: operations of products and attention a second, of the matrix ceiling
  std::optional<DecodeBreakdown> decode;  // on a backend that can profile
  std::vector<StartupPhase> startup;
};

// Operations and bytes of a model's steps, from the plan of one rank: those of `ranks` such ranks, as share a
// machine whose ceilings they are compared with.
struct StepWork {
  double flop_per_token = 0;  // of the linear layers, the head apart
  double flop_per_logits = 0;
  double flop_per_attention_pair = 0;
  double weight_bytes = 0;  // read by every step
  double expert_bytes = 0;  // of all routed experts
  double routed_share = 0;  // of them, for one token
  double kv_bytes_per_pair = 0;

  StepWork(const MemoryPlan& plan, const RuntimeConfig& config, int ranks = 1);
  double linear_flop(const StepRecord& step) const {
    return flop_per_token * static_cast<double>(step.tokens) +
           flop_per_logits * static_cast<double>(step.sampled_tokens);
  }
  double flop(const StepRecord& step) const {  // with attention
    return linear_flop(step) + flop_per_attention_pair * static_cast<double>(step.attention_pairs);
  }
  double kv_bytes(const StepRecord& step) const {  // of a step in which every sequence has one token
    return kv_bytes_per_pair * static_cast<double>(step.attention_pairs);
  }
  double decode_bytes(const StepRecord& step) const;
};

// What this machine's CPU can do at best: best of eight each, on all CPUs this process may use. Reading: 1.2
// GB once, one contiguous stream a thread. Matrix: products of bfloat16 pairs in registers where the CPU has
// an instruction for them (AVX512-BF16), else fused multiply-adds of float32. Takes about a second.
DeviceCeiling probe_machine();

// What the machine or device of an engine can do at best, which has nothing to do meanwhile.
DeviceCeiling measure_ceiling(Engine& engine);

// Random prompts, EOS ignored, after a short run to warm up. The machine is probed before and after; the
// better one counts. Error when a request does not fit, or its structured outputs are complete before its
// end.
BenchResult run_bench(const BenchOptions& options, ModelFiles model);

using BenchClock = std::chrono::steady_clock;
double seconds_between(BenchClock::time_point from, BenchClock::time_point to);

// An output of a request, as its caller saw it come.
struct TimedOutput {
  std::vector<TokenId> tokens;
  std::vector<BenchClock::time_point> times;  // of its submission, then of each token
};

struct Round {
  double seconds = 0;                // from the first submission to the last answer
  std::vector<TimedOutput> outputs;  // [requests, outputs of a request]
};

// Submits the first `at_once` of the requests, and the others when each output of those has two tokens; waits
// for all. on_token: on the output thread; may be empty. Error where one ends with an error, or before
// max_tokens.
Round run_round(Engine& engine, std::vector<EngineRequest> requests,
                const std::function<void()>& on_token = {},
                std::size_t at_once = std::numeric_limits<std::size_t>::max());

// Has an engine answer requests of these sizes, random prompts that come at once. Error where it fails one.
void answer_requests(Engine& engine, std::span<const RequestSize> sizes, std::mt19937_64& random);

// With linear interpolation between the nearest two values; NaN when there is none.
double percentile(std::vector<double> values, double fraction);

}  // namespace quire
