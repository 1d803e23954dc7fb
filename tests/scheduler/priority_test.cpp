// Who goes first, who makes way, and when time is up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "scheduler/driver.h"

namespace quire::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SchedulerConfig priorities(int max_num_seqs) {
  SchedulerConfig config = small_config();
  config.policy = SchedulingPolicy::kPriority;
  config.max_num_seqs = max_num_seqs;
  return config;
}

SequenceId add(Engine& engine, int priority, int num_prompt, int max_tokens) {
  SequenceRequest request =
      Engine::request_of(num_prompt, max_tokens, 100 * static_cast<TokenId>(max_tokens));
  request.priority = priority;
  return engine.add(request);
}

// The sequences of the next step, which is applied.
std::vector<SequenceId> step(Engine& engine) {
  std::vector<SequenceId> ids;
  if (const auto plan = engine.submit())
    for (const SequencePlan& sequence : plan->sequences) ids.push_back(sequence.sequence);
  engine.apply();
  return ids;
}

TEST(SchedulerPriorityTest, LowerNumbersAreAdmittedFirstAndEqualOnesInOrderOfArrival) {
  Engine engine(priorities(1));
  const SequenceId last = add(engine, 2, 5, 1);
  const SequenceId second = add(engine, 0, 5, 1);
  const SequenceId third = add(engine, 0, 5, 1);
  const SequenceId first = add(engine, -1, 5, 1);
  std::vector<SequenceId> order;
  for (int i = 0; i < 4; ++i) order.push_back(step(engine).at(0));
  EXPECT_THAT(order, ElementsAre(first, second, third, last));
}

TEST(SchedulerPriorityTest, PrioritiesMeanNothingWhereTheFirstToComeIsServedFirst) {
  SchedulerConfig config = priorities(1);
  config.policy = SchedulingPolicy::kFcfs;
  Engine engine(config);
  const SequenceId first = add(engine, 9, 5, 1);
  const SequenceId second = add(engine, 0, 5, 1);
  EXPECT_THAT(step(engine), ElementsAre(first));
  EXPECT_THAT(step(engine), ElementsAre(second));
}

TEST(SchedulerPriorityTest, AWaitingSequenceTakesTheSeatOfTheRunningOneWithTheHighestNumber) {
  for (const int depth : {1, 2}) {
    Engine engine(priorities(2), depth);
    const SequenceId middle = add(engine, 1, 5, 30);
    const SequenceId low = add(engine, 2, 5, 29);
    for (int i = 0; i < 3; ++i) step(engine);
    if (depth == 2) engine.submit();  // then it takes the seat when this one is applied
    const SequenceId high = add(engine, 0, 5, 4);
    if (depth == 2) {
      EXPECT_THAT(step(engine), ElementsAre(middle));
      engine.apply();
    }
    EXPECT_THAT(step(engine), ElementsAre(high, middle));
    EXPECT_EQ(engine.scheduler.stats().num_preemptions, 1U);
    engine.run();
    EXPECT_EQ(engine.outcomes[high].tokens, engine.reference(high, 4));
    EXPECT_EQ(engine.outcomes[middle].tokens, engine.reference(middle, 30));
    EXPECT_EQ(engine.outcomes[low].tokens, engine.reference(low, 29));
  }
}

TEST(SchedulerPriorityTest, EqualNumbersDoNotPreemptEachOther) {
  Engine engine(priorities(1));
  const SequenceId running = add(engine, 1, 5, 20);
  step(engine);
  add(engine, 1, 5, 4);
  for (int i = 0; i < 19; ++i) EXPECT_THAT(step(engine), ElementsAre(running));
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
}

TEST(SchedulerPriorityTest, NobodyMakesWayForOneThatWouldNotFitAllTheSame) {
  SchedulerConfig config = priorities(4);
  config.num_blocks = 16;  // of 8 tokens
  Engine engine(config);
  const SequenceId high = add(engine, 0, 60, 30);
  const SequenceId low = add(engine, 2, 8, 25);
  step(engine);
  EXPECT_THAT(step(engine), ElementsAre(high, low));
  const SequenceId large = add(engine, 1, 62, 4);
  EXPECT_THAT(step(engine), ElementsAre(high, low));
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
  engine.run();
  EXPECT_EQ(engine.outcomes[large].tokens, engine.reference(large, 4));
}

TEST(SchedulerPriorityTest, APromptOfLowerNumberComesBeforeAChunkOfAHigherOne) {
  SchedulerConfig config = priorities(4);
  config.max_num_batched_tokens = 8;
  Engine engine(config);
  const SequenceId low = add(engine, 1, 40, 2);
  step(engine);
  const SequenceId high = add(engine, 0, 8, 3);
  EXPECT_THAT(step(engine), ElementsAre(high));
  EXPECT_THAT(step(engine), ElementsAre(high, low));
}

TEST(SchedulerPriorityTest, OneThatFindsRoomWhileAStepIsPlannedGivesNobodyASecondTurn) {
  SchedulerConfig config = priorities(4);
  config.num_blocks = 22;  // of 8 tokens
  config.max_num_batched_tokens = 32;
  Engine engine(config);
  add(engine, 5, 8, 60);
  add(engine, 9, 40, 59);
  for (int i = 0; i < 3; ++i) step(engine);
  add(engine, 0, 80, 40);
  // It begins as the one before. Once that has computed what both have, it fits when the last makes way.
  const SequenceId late = add(engine, 1, 104, 40);
  while (engine.scheduler.has_unfinished()) {
    std::vector<SequenceId> ids = step(engine);
    std::ranges::sort(ids);
    ASSERT_EQ(std::ranges::adjacent_find(ids), ids.end());
  }
  EXPECT_GT(engine.outcomes[late].num_cached_tokens, 0);
  for (const auto& [id, outcome] : engine.outcomes)
    EXPECT_EQ(outcome.tokens, engine.reference(id, static_cast<int>(outcome.tokens.size())));
}

TEST(SchedulerDeadlineTest, EndsASequenceInEveryState) {
  using std::chrono::seconds;
  SchedulerConfig config = small_config();
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 8;
  Engine engine(config, 2);
  const TimePoint start;
  const auto add_with_deadline = [&](int num_prompt, int after) {
    SequenceRequest request = Engine::request_of(num_prompt, 50);
    request.deadline = start + seconds(after);
    return engine.add(request);
  };
  const SequenceId decoding = add_with_deadline(5, 2);
  const SequenceId prefilling = add_with_deadline(60, 1);
  const SequenceId waiting = add_with_deadline(5, 1);
  const SequenceId later = add_with_deadline(5, 9);
  for (int i = 0; i < 3; ++i) step(engine);
  engine.submit();  // in flight
  EXPECT_THAT(engine.scheduler.expire(start), IsEmpty());
  EXPECT_THAT(engine.scheduler.expire(start + seconds(1)), ElementsAre(prefilling, waiting));
  EXPECT_THAT(engine.scheduler.expire(start + seconds(1)), IsEmpty());
  EXPECT_THAT(engine.scheduler.expire(start + seconds(5)), ElementsAre(decoding));
  engine.apply();
  EXPECT_THAT(step(engine), ElementsAre(later));
  engine.run();
  EXPECT_EQ(engine.outcomes[later].tokens, engine.reference(later, 50));
  EXPECT_THAT(engine.scheduler.expire(start + seconds(99)), IsEmpty());
}

TEST(SchedulerQueueTest, ARequestIsQueuedUntilItsFirstSequenceIsAdmitted) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  Engine engine(config);
  const auto queued = [&] {
    const SchedulerStats stats = engine.scheduler.stats();
    return std::pair(stats.num_queued_requests, stats.num_queued_tokens);
  };
  SequenceRequest siblings = Engine::request_of(10, 3);
  siblings.first_sibling = 1;
  for (int i = 0; i < 3; ++i) engine.add(siblings);
  const SequenceId other = engine.add(20, 3);
  EXPECT_EQ(queued(), std::pair(2L, 30L));
  step(engine);
  EXPECT_EQ(queued(), std::pair(1L, 20L));
  EXPECT_TRUE(engine.scheduler.abort(other));
  EXPECT_EQ(queued(), std::pair(0L, 0L));
  engine.run();
}

}  // namespace
}  // namespace quire::testing
