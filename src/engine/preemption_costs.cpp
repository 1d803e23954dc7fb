#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/log.h"
#include "engine/ranks.h"

namespace quire {
namespace {

// Of the second time: the first one may prepare something.
double seconds(RankGroup& ranks, const StepPlan& plan) {
  std::chrono::duration<double> taken{};
  for (int round = 0; round < 2; ++round) {
    const auto start = std::chrono::steady_clock::now();
    ranks.submit(plan);
    ranks.collect();
    taken = std::chrono::steady_clock::now() - start;
  }
  return taken.count();
}

StepPlan copy_plan(int num_blocks) {
  StepPlan plan;
  for (BlockId block = 0; block < num_blocks; ++block) {
    plan.saves.push_back({block, block});
    plan.restores.push_back({block, block});
  }
  return plan;
}

// `num_tokens` of a prompt behind `first` others.
StepPlan prefill_plan(int first, int num_tokens, const RuntimeConfig& config) {
  const CacheLayout& layout = config.cache.layout;
  StepPlan plan;
  plan.num_tokens = num_tokens;
  SequencePlan& sequence = plan.sequences.emplace_back();
  sequence.start.emplace();
  sequence.first_position = first;
  sequence.num_tokens = num_tokens;
  sequence.tokens.assign(static_cast<std::size_t>(num_tokens), 0);
  if (config.num_state_slots > 0) sequence.state_to = 0;
  BlockId block = 0;
  for (int row = 0; row < layout.rows_for(first + num_tokens); ++row)
    for (int lane = 0; lane < layout.num_lanes(); ++lane)
      sequence.new_blocks.push_back(row < layout.num_outside(lane, first) ? kNoBlock : block++);
  return plan;
}

}  // namespace

PreemptionCosts measure_preemption_costs(RankGroup& ranks, const RuntimeConfig& config) {
  constexpr int kMostBlocks = 256, kFirstTokens = 32, kMostTokens = 2048;
  constexpr double kEnough = 0.02;  // seconds
  PreemptionCosts costs;
  costs.blocks_of_states = static_cast<int>(config.cache.state_bytes() / config.block_bytes());
  const int num_blocks = std::min({kMostBlocks, config.num_host_blocks, config.num_blocks});
  costs.block_copied = seconds(ranks, copy_plan(num_blocks)) / num_blocks;

  const auto capacity =
      static_cast<int>(std::min(config.cached_tokens(), std::int64_t{config.max_model_len}));
  const int most = std::min({kMostTokens, config.max_num_batched_tokens, capacity});
  int num_tokens = std::min(kFirstTokens, most);
  double alone = seconds(ranks, prefill_plan(0, num_tokens, config));
  while (alone < kEnough && num_tokens < most) {
    num_tokens = std::min(2 * num_tokens, most);
    alone = seconds(ranks, prefill_plan(0, num_tokens, config));
  }
  const int before = capacity - num_tokens;
  if (before >= num_tokens) {
    const double behind = seconds(ranks, prefill_plan(before, num_tokens, config));
    costs.pair = std::max(0.0, behind - alone) / num_tokens / before;
  }
  costs.token = std::max(0.0, alone / num_tokens - 0.5 * num_tokens * costs.pair);
  log_info(
      "preemption: a block to the host and back takes {:.1f} us, a token computed again {:.1f} us, {:.1f} us "
      "more after {} others",
      1e6 * costs.block_copied, 1e6 * costs.token, 1e6 * costs.pair * before, before);
  return costs;
}

}  // namespace quire
