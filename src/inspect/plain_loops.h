#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/ranks.h"
#include "inspect/request_round.h"

namespace quire {

// A greedy request of a bench; EOS is ignored.
struct TokenRequest {
  std::vector<TokenId> prompt;
  int output_tokens = 1;
};

// How models were run before there were engines: short loops, to be measured beside one. They give the ranks
// plans of their own, so models and kernels are the engine's, and scheduler and cache have no part in it. A
// sequence has a seat, and with it blocks for all tokens that it may ever have.
class PlainLoops {
 public:
  // Memory for `batch` sequences of config.max_model_len tokens. Error as when an engine starts.
  PlainLoops(EngineConfig config, ModelFiles model, int batch, EngineHooks hooks = {});

  // One request after the other, and for each token all tokens before it again. Keys and values live as long
  // as a step. on_token: may be empty, here and below.
  Round run_without_cache(std::span<const TokenRequest> requests, const std::function<void()>& on_token = {});
  // Batches of requests, in their order: prompts are padded to the batch's longest, and all go on until its
  // longest output is done. With batches of one there is nothing to pad or to wait for.
  Round run_in_batches(std::span<const TokenRequest> requests, const std::function<void()>& on_token = {});

  const RuntimeConfig& config() const { return ranks_->own().config(); }
  std::size_t weight_bytes() { return ranks_->own().plan_memory().weights; }

 private:
  // A step in the making. results: whose tokens it samples, in the plan's order; null: nobody's.
  struct PlainStep {
    StepPlan plan;
    std::vector<TimedOutput*> outputs;
  };

  static Round begin(std::size_t num_requests);
  // Appends a span of `seat`, whose keys and values lie in the blocks of `place`; empty tokens: the seat's
  // last sample. output: gets what is sampled behind it; null: nothing is.
  void add_span(PlainStep& step, int seat, int place, int first_position, std::vector<TokenId> tokens,
                TimedOutput* output);
  PlainStep prompt_step(std::span<const TokenRequest> requests, std::span<TimedOutput> outputs);
  void submit(PlainStep step, const std::function<void()>& on_token);
  void collect(const std::function<void()>& on_token);

  const EngineSetup setup_;
  const int batch_;
  std::unique_ptr<RankGroup> ranks_;
  std::vector<int> num_rows_;  // of each seat's block table, as the ranks have it
  std::uint64_t num_steps_ = 0;
  std::vector<std::vector<TimedOutput*>> in_flight_;  // of the steps, the oldest first
};

}  // namespace quire
