// Fixed states: where they are kept, and what a hit takes of them. The fake runner finds states of other
// tokens.
#include <gtest/gtest.h>

#include "scheduler/driver.h"

namespace quire::testing {
namespace {

SchedulerConfig with_states(int num_slots) {
  SchedulerConfig config = small_config();
  config.layout.state_interval = 16;
  config.num_state_slots = num_slots;
  return config;
}

// Of the same first tokens, then others.
SequenceRequest parting(int num_common, int num_prompt) {
  SequenceRequest request = Engine::request_of(num_prompt, 1);
  for (std::size_t i = static_cast<std::size_t>(num_common); i < request.prompt.size(); ++i)
    request.prompt[i] += 5000;
  return request;
}

int num_cached(Engine& engine, SequenceRequest request) {
  const SequenceId id = engine.add(std::move(request));
  engine.run();
  return engine.outcomes[id].num_cached_tokens;
}

TEST(SchedulerStatesTest, AHitTakesTheLastWholeIntervalOfThePromptBefore) {
  Engine engine(with_states(8));
  EXPECT_EQ(num_cached(engine, Engine::request_of(60, 1)), 0);
  EXPECT_EQ(num_cached(engine, Engine::request_of(60, 1)), 48);
  EXPECT_EQ(num_cached(engine, parting(60, 80)), 48);
}

TEST(SchedulerStatesTest, APromptOfUnderTwoIntervalsHasTheFirst) {
  Engine engine(with_states(8));
  EXPECT_EQ(num_cached(engine, Engine::request_of(30, 1)), 0);
  EXPECT_EQ(num_cached(engine, Engine::request_of(30, 1)), 16);
}

TEST(SchedulerStatesTest, AConversationGoesOnFromTheLastIntervalOfItsOutput) {
  Engine engine(with_states(8));
  const SequenceId first = engine.add(20, 60);
  engine.run();
  SequenceRequest next = Engine::request_of(20, 1);
  const std::vector<TokenId>& tokens = engine.outcomes[first].tokens;
  next.prompt.insert(next.prompt.end(), tokens.begin(), tokens.end());
  next.prompt.push_back(3);
  EXPECT_EQ(num_cached(engine, next), 64);  // of 79 that were computed
}

TEST(SchedulerStatesTest, WhereAPromptPartsFromOthersItsStatesAreKeptForTheNext) {
  Engine engine(with_states(8));
  num_cached(engine, Engine::request_of(90, 1));
  EXPECT_EQ(num_cached(engine, parting(40, 90)), 0);  // 40 tokens are known, and no states behind them
  SequenceRequest third = parting(40, 90);
  third.prompt.back() = 9;
  third.prompt[45] = 9;
  EXPECT_EQ(num_cached(engine, third), 32);
}

TEST(SchedulerStatesTest, WithinALongPromptStatesAreKeptNowAndThen) {
  SchedulerConfig config = with_states(8);
  config.max_model_len = 3000;
  config.max_num_batched_tokens = 500;
  config.num_blocks = 800;
  Engine engine(config);
  num_cached(engine, Engine::request_of(2900, 1));
  EXPECT_EQ(num_cached(engine, parting(2500, 2900)), 2048);
}

TEST(SchedulerStatesTest, OneSlotServesOneSequenceAtATime) {
  Engine engine(with_states(1));
  for (int i = 0; i < 3; ++i) engine.add(parting(16, 30 + i));
  engine.run();
  EXPECT_EQ(engine.scheduler.stats().num_free_state_slots, 1);
}

TEST(SchedulerStatesTest, SiblingsShareThePromptAlsoWhereItEndsWithinABlock) {
  Engine engine(with_states(8));
  SequenceRequest request = Engine::request_of(45, 4);
  request.id = 1;
  request.num_outputs = 3;
  request.first_sibling = 1;
  for (SequenceId id = 1; id <= 3; ++id) {
    SequenceRequest sibling = request;
    sibling.sampling.seed += id - 1;
    engine.runner.histories.emplace(id, History(sibling));
  }
  engine.scheduler.add(std::make_shared<SequenceRequest>(request));
  int num_prompt_tokens = 0;
  while (engine.scheduler.has_unfinished()) {
    const auto plan = engine.submit();
    ASSERT_TRUE(plan);
    for (const SequencePlan& sequence : plan->sequences)
      num_prompt_tokens += std::max(0, std::min(45 - sequence.first_position, sequence.num_tokens));
    engine.apply();
  }
  EXPECT_EQ(num_prompt_tokens, 45 + 2);  // each computes the last one
}

}  // namespace
}  // namespace quire::testing
