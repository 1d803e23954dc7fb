#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/ranks.h"
#include "inspect/bench.h"

namespace quire {

// How models were run before there were engines: short loops, to be measured beside one. They give the ranks
// plans of their own, so models and kernels are the engine's; scheduler and cache have no part in it. A
// sequence has blocks for all tokens that it may ever have. Requests are greedy and ignore EOS, whatever
// their parameters say; only max_tokens counts.
class PlainLoops {
 public:
  // Memory for `batch` sequences of config.max_model_len tokens; max_num_seqs is not looked at. Error as when
  // an engine starts.
  PlainLoops(EngineConfig config, ModelFiles model, int batch, EngineHooks hooks = {});

  // One request after the other, and for each token all those before it again. Keys and values live as long
  // as a step.
  Round run_without_cache(std::span<const EngineRequest> requests);
  // `batch` at a time: prompts are padded to the longest of them, and all go on until the longest output is
  // done. One alone has nothing to pad or to wait for.
  Round run_in_batches(std::span<const EngineRequest> requests);

  RankGroup& ranks() { return *ranks_; }

 private:
  // A span of `seat`, whose keys and values lie in the blocks of `place`; no tokens: the seat's last sample.
  void add_span(StepPlan& plan, int seat, int place, int first_position, std::vector<TokenId> tokens);
  std::vector<TokenId> run(StepPlan plan);  // what is sampled, in the plan's order

  EngineSetup setup_;
  const int batch_;
  std::unique_ptr<RankGroup> ranks_;
  std::vector<int> num_rows_;  // of each seat's block table, as the ranks have it
  std::uint64_t num_steps_ = 0;
};

}  // namespace quire
