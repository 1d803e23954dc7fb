// Sequences whose blocks go to host memory and come back are those that never had to give them up.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/ranks.h"
#include "engine/submit.h"

namespace quire {
namespace {

constexpr int kSwappedBlock = 8;
constexpr std::size_t kSwappedBytes =
    std::size_t{2} * 3 * 2 * kSwappedBlock * 32 * sizeof(float);  // of "qwen3"
constexpr double kRoomForAll = 1.0 / 64;                          // GiB

struct Result {
  std::vector<RequestOutput> outputs;
  std::uint64_t num_computed = 0;  // tokens
  SchedulerStats stats;
};

std::vector<TokenId> prompt_of(int num_tokens, int which) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < num_tokens; ++i) prompt.push_back((i * 37 + which * 101 + i * i % 11) % 512);
  return prompt;
}

// Three requests that begin side by side. A cache of 24 blocks holds two of them to their ends.
Result run(const SamplingParams& params, int num_blocks, double swap_space, EngineHooks hooks = {}) {
  EngineConfig config = testing::golden_config("qwen3");
  config.deterministic = true;
  config.block_size = kSwappedBlock;
  config.max_num_batched_tokens = 60;
  config.kv_cache_memory = static_cast<std::size_t>(num_blocks) * kSwappedBytes;
  config.swap_space = swap_space;
  config.preemption_mode = swap_space > 0 ? "swap" : "recompute";
  config.enable_prefix_caching = false;
  std::promise<void> all_there;
  hooks.fault = [ready = all_there.get_future().share()](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kSubmit) ready.wait();
  };
  Engine engine(config, open_model(config.model), std::move(hooks));
  Result result;
  engine.observe_steps(
      [&](const StepRecord& step) { result.num_computed += static_cast<std::uint64_t>(step.tokens); });
  std::vector<std::future<RequestOutput>> outputs;
  for (int i = 0; i < 3; ++i) {
    EngineRequest request;
    request.prompt = prompt_of(30 + 5 * i, i);
    request.params = params;
    outputs.push_back(testing::submit(engine, std::move(request)));
  }
  all_there.set_value();
  for (auto& output : outputs) result.outputs.push_back(output.get());
  result.stats = engine.stats().scheduler;
  return result;
}

void expect_equal(const Result& actual, const Result& expected) {
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    const RequestOutput& one = actual.outputs[i];
    const RequestOutput& other = expected.outputs[i];
    ASSERT_EQ(one.outputs.size(), other.outputs.size());
    for (std::size_t n = 0; n < one.outputs.size(); ++n) {
      EXPECT_EQ(one.outputs[n].token_ids, other.outputs[n].token_ids) << "request " << i << ", output " << n;
      EXPECT_EQ(one.outputs[n].cumulative_logprob, other.outputs[n].cumulative_logprob);
    }
    ASSERT_EQ(one.prompt_logprobs.size(), other.prompt_logprobs.size());
    for (std::size_t p = 0; p < one.prompt_logprobs.size(); ++p)
      EXPECT_EQ(one.prompt_logprobs[p].token.logprob, other.prompt_logprobs[p].token.logprob);
  }
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 50;
  params.ignore_eos = true;
  return params;
}

struct SwappedWish {
  std::string name;
  void (*ask)(SamplingParams&);
};
void PrintTo(const SwappedWish& wish, std::ostream* out) { *out << wish.name; }

class SwappedWishTest : public ::testing::TestWithParam<SwappedWish> {};

TEST_P(SwappedWishTest, ChangesNoTokenAndComputesNothingAgain) {
  SamplingParams params = greedy();
  GetParam().ask(params);
  const Result roomy = run(params, 200, 0);
  const Result swapped = run(params, 24, kRoomForAll);
  EXPECT_EQ(roomy.stats.num_preemptions, 0U);
  EXPECT_GT(swapped.stats.num_preemptions, 0U);
  EXPECT_GT(swapped.stats.num_restored_blocks, 0U);
  EXPECT_EQ(swapped.stats.num_free_host_blocks, swapped.stats.num_host_blocks);
  expect_equal(swapped, roomy);
  EXPECT_EQ(swapped.num_computed, roomy.num_computed);
}

INSTANTIATE_TEST_SUITE_P(Wishes, SwappedWishTest,
                         ::testing::Values(SwappedWish{"greedy", [](SamplingParams&) {}},
                                           SwappedWish{"sampled",
                                                       [](SamplingParams& params) {
                                                         params.temperature = 1.2F;
                                                         params.seed = 11;
                                                         params.repetition_penalty = 1.2F;
                                                         params.frequency_penalty = 0.3F;
                                                       }},
                                           SwappedWish{"logprobs",
                                                       [](SamplingParams& params) {
                                                         params.logprobs = 3;
                                                         params.prompt_logprobs = 1;
                                                       }}),
                         [](const auto& test) { return test.param.name; });

TEST(SwappingTest, BlocksThatOutputsOfOnePromptShareAreSavedByNone) {
  SamplingParams params = greedy();
  params.temperature = 1.2F;
  params.seed = 3;
  params.n = 3;
  params.max_tokens = 30;
  const Result roomy = run(params, 400, 0);
  const Result swapped = run(params, 20, kRoomForAll);
  EXPECT_GT(swapped.stats.num_restored_blocks, 0U);
  expect_equal(swapped, roomy);
}

TEST(SwappingTest, WhatFindsNoRoomIsComputedAgain) {
  const Result roomy = run(greedy(), 200, 0);
  const Result cramped = run(greedy(), 24, 3.0 * kSwappedBytes / (1 << 30));
  EXPECT_EQ(cramped.stats.num_host_blocks, 3);
  EXPECT_GT(cramped.num_computed, roomy.num_computed);
  expect_equal(cramped, roomy);
}

TEST(SwappingTest, NeedsNothingOfWhatABlockHeldBefore) {
  const Result roomy = run(greedy(), 200, 0);
  const Result poisoned = run(greedy(), 24, kRoomForAll, {.poison_blocks = true});
  EXPECT_GT(poisoned.stats.num_restored_blocks, 0U);
  expect_equal(poisoned, roomy);
}

TEST(PreemptionCostsTest, AreMeasured) {
  EngineConfig config = testing::golden_config("qwen3");
  config.swap_space = kRoomForAll;
  Engine engine(config);
  const auto measured = [](const StartupPhase& phase) { return phase.name == std::string("swap costs"); };
  const auto& phases = engine.startup();
  EXPECT_TRUE(std::any_of(phases.begin(), phases.end(), measured));
  EngineRequest request;
  request.prompt = prompt_of(20, 1);
  request.params = greedy();
  const RequestOutput output = testing::submit(engine, std::move(request)).get();
  EXPECT_EQ(output.outputs[0].token_ids.size(), 50U);  // the measurement leaves nothing behind
}

}  // namespace
}  // namespace quire
