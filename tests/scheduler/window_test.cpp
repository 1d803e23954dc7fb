// Positions that attend to the last tokens alone: what stands before their window is given back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <vector>

#include "scheduler/driver.h"

namespace quire::testing {
namespace {

using ::testing::HasSubstr;

// Blocks of 8 tokens; a window of 20 lies in four of them at most.
SchedulerConfig windowed_config() {
  SchedulerConfig config = small_config();
  config.layout.windows = {20};
  config.max_num_batched_tokens = 16;
  config.max_model_len = 1024;
  config.enable_prefix_caching = false;
  return config;
}

int num_used(const Engine& engine) {
  const SchedulerStats stats = engine.scheduler.stats();
  return stats.num_blocks - stats.num_free_blocks;
}

// Of a sequence of `length` tokens whose positions from `next` on are yet to be computed.
int blocks_wanted(const SchedulerConfig& config, int next, int length) {
  int count = 0;
  for (int first = 0; first < length; first += config.layout.block_size)
    count += first + config.layout.block_size - 1 > next - config.layout.windows.front() ? 1 : 0;
  return count;
}

TEST(SchedulerWindowTest, ASequenceHoldsItsWindowAndItsStepsInFlightAlone) {
  const SchedulerConfig config = windowed_config();
  for (const int depth : {1, 2}) {
    Engine engine(config, depth);
    const SequenceId id = engine.add(150, 60);
    std::deque<int> starts;  // of the steps in flight
    int num_planned = 0;
    while (engine.scheduler.has_unfinished()) {
      if (const auto plan = engine.runner.num_in_flight() < depth ? engine.submit() : std::nullopt) {
        starts.push_back(num_planned);
        num_planned += plan->num_tokens;
      } else {
        engine.apply();
        starts.pop_front();
        if (!engine.scheduler.has_unfinished()) break;
      }
      const int next = starts.empty() ? num_planned : starts.front();
      ASSERT_EQ(num_used(engine), blocks_wanted(config, next, num_planned)) << num_planned;
    }
    engine.run();
    EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 60));
  }
}

TEST(SchedulerWindowTest, APromptLongerThanTheCacheRunsWhereItsWindowFits) {
  for (const int depth : {1, 2}) {
    for (const OutputKind output : {OutputKind::kLast, OutputKind::kAll, OutputKind::kHiddenMean}) {
      SchedulerConfig config = windowed_config();
      config.num_blocks = 4;
      Engine engine(config, depth);
      SequenceRequest request = Engine::request_of(200, 30);
      request.prompt_output = output;
      const SequenceId id = engine.add(request);
      engine.run();
      EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, is_pooled(output) ? 0 : 30));
      EXPECT_EQ(engine.outcomes[id].finish, is_pooled(output) ? FinishReason::kStop : FinishReason::kLength);
      EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
    }
  }
}

TEST(SchedulerWindowTest, APromptLongerThanTheCacheIsRefusedWhereItsWindowDoesNotFit) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 3;
  Engine engine(config);
  EXPECT_THAT(error_of([&] { engine.add(25, 4); }), HasSubstr("25 tokens; the whole KV cache holds 24"));
  const SequenceId id = engine.add(20, 30);
  engine.run();
  EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 5));  // the last one needs no place
  config.layout.windows = {-1};
  EXPECT_THAT(error_of([&] { const Scheduler refused(config); }), HasSubstr("sliding window of -1 tokens"));
}

TEST(SchedulerWindowTest, AsManySequencesRunAsTheirWindowsFit) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 24;  // 192 tokens; without windows they would hold not even two of 200
  Engine engine(config, 2);
  for (int i = 0; i < 4; ++i) engine.add(Engine::request_of(100, 100, 100 * i));
  while (engine.scheduler.stats().num_running < 4) {
    if (engine.runner.num_in_flight() == 2 || !engine.submit()) engine.apply();
    ASSERT_TRUE(engine.outcomes[1].tokens.size() < 100);
  }
  engine.run();
  for (const SequenceId id : {1, 2, 3, 4}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 100));
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
}

TEST(SchedulerWindowTest, OneThatWaitsIsAdmittedWhenBlocksLeaveTheWindowOfAnother) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 12;
  Engine engine(config, 2);
  engine.add(100, 40);
  engine.add(Engine::request_of(100, 40, 500));
  while (engine.scheduler.stats().num_running < 2) {
    if (engine.runner.num_in_flight() == 2 || !engine.submit()) engine.apply();
    ASSERT_TRUE(engine.scheduler.has_unfinished());
  }
  EXPECT_TRUE(engine.outcomes[1].tokens.empty());
  engine.run();
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
}

TEST(SchedulerWindowTest, ASequenceWaitsForWhatItsOwnStepsGiveBackBeforeAnotherIsPreempted) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 10;
  config.policy = SchedulingPolicy::kPriority;
  Engine engine(config, 6);  // so many steps of the longer one that they fill the cache
  SequenceRequest shorter = Engine::request_of(10, 60);
  shorter.priority = 1;
  const SequenceId first = engine.add(shorter);
  engine.submit();
  const SequenceId longer = engine.add(400, 4);
  bool filled = false;
  while (engine.runner.num_in_flight() < 6 && engine.submit())
    filled = engine.scheduler.stats().num_free_blocks == 0;
  EXPECT_TRUE(filled);
  engine.run();
  EXPECT_EQ(engine.outcomes[first].tokens, engine.reference(first, 60));
  EXPECT_EQ(engine.outcomes[longer].tokens, engine.reference(longer, 4));
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
}

TEST(SchedulerWindowTest, APreemptedSequenceIsSavedAndBroughtBackWithWhatItHolds) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 7;
  config.num_host_blocks = 8;
  config.policy = SchedulingPolicy::kPriority;
  Engine engine(config);
  SequenceRequest urgent = Engine::request_of(60, 10);
  urgent.priority = -1;
  const SequenceId id = engine.add(100, 40);
  for (int i = 0; i < 12; ++i) {
    engine.submit();
    engine.apply();
  }
  const int num_held = num_used(engine);
  engine.add(urgent);
  engine.submit();
  EXPECT_EQ(engine.scheduler.stats().num_saved_blocks, static_cast<std::uint64_t>(num_held));
  engine.run();
  EXPECT_EQ(engine.scheduler.stats().num_restored_blocks, static_cast<std::uint64_t>(num_held));
  EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 40));
}

// What is thrown out of schedule() leaves a plan that nobody executes.
TEST(SchedulerWindowTest, WhatALostPlanWouldHaveRestoredIsGivenBackOnce) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 7;
  config.num_host_blocks = 8;
  config.policy = SchedulingPolicy::kPriority;
  SequenceId last = 0;
  config.on_plan = [&](SequenceId id) {
    if (id == last) throw 1;
  };
  Engine engine(config);
  engine.add(100, 40);
  for (int i = 0; i < 12; ++i) {
    engine.submit();
    engine.apply();
  }
  SequenceRequest urgent = Engine::request_of(60, 10), patient = Engine::request_of(8, 4);
  urgent.priority = -1;
  patient.priority = 1;
  engine.add(urgent);
  last = engine.add(patient);
  const auto run = [&] {
    for (int i = 0; i < 40; ++i) {
      engine.submit();
      engine.apply();
    }
  };
  EXPECT_THROW(run(), int);
  EXPECT_GT(engine.scheduler.stats().num_restored_blocks, 0U);
  engine.scheduler.fail_in_flight();
  engine.scheduler.fail_all();
  engine.scheduler.check();
  EXPECT_EQ(engine.scheduler.stats().num_free_host_blocks, 8);
}

TEST(SchedulerWindowTest, APrefixHitTakesTheBlocksOfItsWindowAlone) {
  SchedulerConfig config = windowed_config();
  config.enable_prefix_caching = true;
  Engine engine(config);
  engine.add(100, 1);
  engine.run();
  const SequenceId again = engine.add(100, 5);
  const auto plan = engine.submit();
  EXPECT_EQ(plan->sequences[0].first_position, 96);
  EXPECT_EQ(plan->sequences[0].first_new_row, 9);       // position 96 attends to 77 and later
  EXPECT_EQ(plan->sequences[0].new_blocks.size(), 4U);  // to 103
  EXPECT_EQ(num_used(engine), 4);
  engine.run();
  EXPECT_EQ(engine.outcomes[again].num_cached_tokens, 96);
  EXPECT_EQ(engine.outcomes[again].tokens, engine.reference(again, 5));
}

TEST(SchedulerWindowTest, APrefixWhoseFirstBlockIsReusedIsNotHit) {
  SchedulerConfig config = windowed_config();
  config.enable_prefix_caching = true;
  Engine engine(config);
  engine.add(100, 1);
  engine.run();
  const SequenceId other = engine.add(Engine::request_of(180, 1, 500));  // takes what was free for longest
  engine.run();
  const SequenceId again = engine.add(100, 5);
  engine.run();
  EXPECT_EQ(engine.outcomes[other].tokens, engine.reference(other, 1));
  EXPECT_EQ(engine.outcomes[again].num_cached_tokens, 0);
  EXPECT_EQ(engine.outcomes[again].tokens, engine.reference(again, 5));
}

TEST(SchedulerWindowTest, BlocksGivenBackByASequenceWithoutFiniteLogitsLeaveThePrefixCache) {
  SchedulerConfig config = windowed_config();
  config.enable_prefix_caching = true;
  Engine engine(config);
  engine.runner.poison_next();
  const SequenceId broken = engine.add(100, 5);
  engine.run();
  EXPECT_EQ(engine.outcomes[broken].finish, FinishReason::kError);
  const SequenceId again = engine.add(100, 5);
  engine.run();
  EXPECT_EQ(engine.outcomes[again].num_cached_tokens, 0);
}

std::vector<SequenceRequest> siblings_of(int num_outputs, int num_prompt, int max_tokens) {
  std::vector<SequenceRequest> requests;
  for (int i = 0; i < num_outputs; ++i) {
    requests.push_back(Engine::request_of(num_prompt, max_tokens));
    requests.back().first_sibling = 1;
    requests.back().sampling.seed = static_cast<std::uint64_t>(i);
  }
  return requests;
}

TEST(SchedulerWindowTest, APreemptedSiblingIsSavedWithTheBlocksThatItShares) {
  SchedulerConfig config = windowed_config();
  config.num_blocks = 11;
  config.num_host_blocks = 8;
  config.policy = SchedulingPolicy::kPriority;
  Engine engine(config);
  for (const SequenceRequest& request : siblings_of(2, 100, 40)) engine.add(request);
  int num_planned = 0;  // of the second
  for (int i = 0; i < 10; ++i) {
    const auto plan = engine.submit();
    for (const SequencePlan& sequence : plan->sequences)
      if (sequence.sequence == 2) num_planned = sequence.first_position + 1;
    engine.apply();
  }
  SequenceRequest urgent = Engine::request_of(60, 10);
  urgent.priority = -1;
  engine.add(urgent);
  const auto plan = engine.submit();
  EXPECT_EQ(std::ssize(plan->saves), blocks_wanted(config, num_planned, num_planned));
  engine.run();
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 1U);
  EXPECT_EQ(engine.scheduler.stats().num_restored_blocks, plan->saves.size());
  for (const SequenceId id : {1, 2}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 40));
}

TEST(SchedulerWindowTest, SiblingsShareTheWindowOfTheirPrompt) {
  Engine engine(windowed_config());
  for (const SequenceRequest& request : siblings_of(3, 100, 30)) engine.add(request);
  int num_tokens = 0;
  for (int i = 0; i < 8; ++i) {
    num_tokens += engine.submit()->num_tokens;
    engine.apply();
  }
  EXPECT_EQ(num_tokens, 100 + 3);  // the prompt once, then a token each
  engine.run();
  for (const SequenceId id : {1, 2, 3}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 30));
}

// A fork never had the blocks before its window, and goes on from those that the cache knows.
TEST(SchedulerWindowTest, WhatAForkWritesIsHitBehindThePromptOfItsSiblings) {
  SchedulerConfig config = windowed_config();
  config.enable_prefix_caching = true;
  Engine engine(config);
  for (const SequenceRequest& request : siblings_of(2, 100, 30)) engine.add(request);
  engine.run();
  SequenceRequest next = Engine::request_of(100, 5);
  for (const TokenId token : engine.outcomes[2].tokens) next.prompt.push_back(token);
  const SequenceId id = engine.add(next);
  engine.run();
  EXPECT_EQ(engine.outcomes[id].num_cached_tokens, 128);
  EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 5));
}

TEST(SchedulerWindowTest, AMemberThatComesTooLateComputesThePromptItself) {
  SchedulerConfig config = windowed_config();
  config.max_num_seqs = 2;
  Engine engine(config);
  std::vector<SequenceRequest> siblings = siblings_of(3, 100, 60);
  siblings[1].max_tokens = 20;  // its seat goes to the last one, when the first has left the prompt behind
  for (const SequenceRequest& request : siblings) engine.add(request);
  engine.run();
  EXPECT_EQ(engine.outcomes[2].tokens, engine.reference(2, 20));
  for (const SequenceId id : {1, 3}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 60));
}

// The lanes of Gemma 3 1B: two of four layers that attend to all tokens, eleven of 22 with a window of 512.
// Its whole context would take 26,624 blocks if all lanes held all of it; the cache has a third of them.
TEST(SchedulerWindowTest, OfTwoKindsOfLayersOneHoldsItsWindowAndTheOtherAll) {
  SchedulerConfig config = small_config();
  config.layout = {.block_size = 16, .windows = std::vector(11, 512)};
  config.layout.windows.insert(config.layout.windows.end(), {0, 0});
  config.max_num_batched_tokens = 2048;
  config.max_model_len = 32768;
  config.num_blocks = 9000;
  config.num_host_blocks = 12000;
  config.policy = SchedulingPolicy::kPriority;
  config.preemption.block_copied = 1e-9;
  Engine engine(config, 2);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i)
      if (engine.runner.num_in_flight() == 2 || !engine.submit()) engine.apply();
  };
  const SequenceId first = engine.add(32000, 300);
  steps(60);
  EXPECT_LT(num_used(engine), 2 * 2010 + 11 * 36);  // its prompt is there: 2,000 rows in two lanes
  EXPECT_GT(num_used(engine), 2 * 2000 + 11 * 32);
  SequenceRequest turn = Engine::request_of(31000, 200);  // of which the cache has all but the end
  for (int i = 0; i < 1000; ++i) turn.prompt.push_back(7);
  turn.priority = -1;
  const SequenceId second = engine.add(turn);
  steps(20);
  EXPECT_EQ(engine.scheduler.stats().num_running, 2);
  SequenceRequest other = Engine::request_of(32000, 100, 100000);
  other.priority = -2;
  const SequenceId third = engine.add(other);
  engine.run();
  EXPECT_EQ(engine.outcomes[first].tokens, engine.reference(first, 300));
  EXPECT_EQ(engine.outcomes[second].tokens, engine.reference(second, 200));
  EXPECT_EQ(engine.outcomes[third].tokens, engine.reference(third, 100));
  EXPECT_EQ(engine.outcomes[second].num_cached_tokens, 30992);
  const SchedulerStats stats = engine.scheduler.stats();
  EXPECT_GE(stats.num_preemptions, 1U);
  EXPECT_GT(stats.num_restored_blocks, 4000U);
}

}  // namespace
}  // namespace quire::testing
