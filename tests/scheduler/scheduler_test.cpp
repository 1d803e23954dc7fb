#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "scheduler/driver.h"

namespace quire::testing {
namespace {

using ::testing::HasSubstr;

TEST(SchedulerTest, RefusesImpossibleConfigurations) {
  const auto refusal = [](auto member, auto value) {
    SchedulerConfig config = small_config();
    config.*member = value;
    return error_of([&] { const Scheduler scheduler(config); });
  };
  EXPECT_THAT(refusal(&SchedulerConfig::max_num_seqs, 0), HasSubstr("max-num-seqs is 0"));
  EXPECT_THAT(refusal(&SchedulerConfig::max_num_batched_tokens, 0), HasSubstr("max-num-batched-tokens is 0"));
  EXPECT_THAT(refusal(&SchedulerConfig::max_span, -1), HasSubstr("long-prefill-token-threshold is -1"));
  EXPECT_THAT(refusal(&SchedulerConfig::max_model_len, 1), HasSubstr("max-model-len is 1"));
  EXPECT_THAT(refusal(&SchedulerConfig::max_model_len, 2'000'000'000),
              HasSubstr("max-model-len is 2000000000"));
  EXPECT_THAT(refusal(&SchedulerConfig::num_blocks, 0), HasSubstr("no room for a block of 8 tokens"));
  for (const int size : {-8, 0, 4, 12, 512})
    EXPECT_THAT(refusal(&SchedulerConfig::layout, CacheLayout{.block_size = size, .windows = {0}}),
                HasSubstr("power of two from 8 to 256"));
}

// The five small requests that end nano-vllm, or its engine.

TEST(SchedulerTest, RefusesAPromptLargerThanTheWholeCacheAndGoesOn) {
  SchedulerConfig config = small_config();
  config.layout.block_size = 256;
  config.num_blocks = 2;
  config.max_model_len = 4096;
  config.max_num_batched_tokens = 4096;
  Engine engine(config);
  const SequenceId other = engine.add(10, 3);
  EXPECT_THAT(error_of([&] { engine.add(768, 4); }), HasSubstr("768 tokens; the whole KV cache holds 512"));
  engine.run();
  EXPECT_EQ(engine.outcomes[other].tokens, engine.reference(other, 3));
}

TEST(SchedulerTest, ASequenceThatOutgrowsTheCacheAloneEndsByLength) {
  SchedulerConfig config = small_config();
  config.layout.block_size = 256;
  config.num_blocks = 2;
  config.max_model_len = 4096;
  config.max_num_batched_tokens = 4096;
  for (const int depth : {1, 2}) {
    Engine engine(config, depth);
    const SequenceId id = engine.add(500, 64);
    engine.run();
    EXPECT_EQ(engine.outcomes[id].finish, FinishReason::kLength);
    EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 13));  // the last one needs no place
    EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0U);
  }
}

TEST(SchedulerTest, RefusesMaxTokensZero) {
  Engine engine(small_config());
  EXPECT_THAT(error_of([&] { engine.add(5, 0); }), HasSubstr("max_tokens is 0; it must be at least 1"));
  EXPECT_FALSE(engine.scheduler.has_unfinished());
}

TEST(SchedulerTest, RefusesAnEmptyPrompt) {
  Engine engine(small_config());
  EXPECT_THAT(error_of([&] { engine.add(0, 5); }), HasSubstr("the prompt is empty"));
}

TEST(SchedulerTest, ServesThirtyMixedRequestsWithPreemptionAndLeavesNothingBehind) {
  for (const int depth : {1, 2, 3}) {
    SchedulerConfig config = small_config();
    config.max_num_seqs = 16;
    config.num_blocks = 40;
    Engine engine(config, depth);
    for (int i = 0; i < 30; ++i) engine.add(1 + i * 7 % 60, 1 + i * 13 % 90);
    engine.run();
    for (auto& [id, outcome] : engine.outcomes) {
      EXPECT_EQ(outcome.finish, FinishReason::kLength);
      EXPECT_EQ(outcome.tokens, engine.reference(id, 1 + static_cast<int>(id - 1) * 13 % 90));
    }
    EXPECT_EQ(engine.outcomes.size(), 30U);
    EXPECT_GT(engine.scheduler.stats().num_preemptions, 0U);
  }
}

TEST(SchedulerTest, RefusesAPromptThatFillsTheContext) {
  Engine engine(small_config());
  EXPECT_THAT(error_of([&] { engine.add(256, 1); }), HasSubstr("it may have at most 255"));
  const SequenceId longest = engine.add(255, 10);
  engine.run();
  EXPECT_EQ(engine.outcomes[longest].tokens.size(), 1U);
  EXPECT_EQ(engine.outcomes[longest].finish, FinishReason::kLength);
}

TEST(SchedulerTest, TakesResultsOneStepLate) {
  Engine engine(small_config(), 2);
  const SequenceId id = engine.add(5, 10);
  const auto first = engine.submit();
  const auto second = engine.submit();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->sequences[0].tokens.size(), 5U);
  EXPECT_TRUE(second->sequences[0].tokens.empty());  // not known yet: the seat's last sample
  EXPECT_EQ(second->sequences[0].first_position, 5);
  engine.run();
  EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 10));
}

TEST(SchedulerTest, EndingByLengthPlansNothingInVain) {
  for (const int depth : {1, 2, 3}) {
    Engine engine(small_config(), depth);
    engine.add(5, 10);
    EXPECT_EQ(engine.run(), 10);
  }
}

TEST(SchedulerTest, AStopTokenLearnedLateDropsWhatIsInFlight) {
  for (const int depth : {1, 2, 3}) {
    Engine engine(small_config(), depth);
    SequenceRequest request = Engine::request_of(5, 50);
    History alone(request);
    int last = 5;
    for (; alone.token(last) != 9; ++last) ASSERT_LT(last, 200);
    request.max_tokens = 200;
    request.sampling.stop_ids = {9};
    const SequenceId id = engine.add(request);
    engine.run();
    EXPECT_EQ(engine.outcomes[id].finish, FinishReason::kStop);
    EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, last - 4));
  }
}

TEST(SchedulerTest, NoStopIdEndsASequenceBeforeMinTokens) {
  Scheduler scheduler(small_config());
  SequenceRequest request = Engine::request_of(5, 50);
  request.id = 1;
  request.min_tokens = 2;
  request.sampling.stop_ids = {9};
  scheduler.add(std::make_shared<SequenceRequest>(request));
  for (const bool masked : {true, true, false}) {
    const auto plan = scheduler.schedule();
    EXPECT_EQ(plan->sequences[0].mask_stop, masked);
    const auto updates = scheduler.apply({plan->id, {{1, 9, {}}}});  // a runner that masks nothing
    EXPECT_EQ(updates[0].finish, masked ? FinishReason::kNone : FinishReason::kStop);
  }
}

TEST(SchedulerTest, DecodesComeBeforeChunksOfPrompts) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 10;
  Engine engine(config);
  engine.add(4, 20);
  engine.add(30, 20);
  std::vector<std::vector<int>> spans;
  for (int i = 0; i < 5; ++i) {
    std::vector<int>& step = spans.emplace_back();
    const auto plan = engine.submit();
    for (const SequencePlan& sequence : plan->sequences) step.push_back(sequence.num_tokens);
    engine.apply();
  }
  EXPECT_EQ(spans, (std::vector<std::vector<int>>{{4, 6}, {1, 9}, {1, 9}, {1, 6}, {1, 1}}));
}

TEST(SchedulerTest, LongPromptsShareStepsWhereASpanIsLimited) {
  SchedulerConfig config = small_config();
  config.max_span = 10;
  Engine engine(config);
  engine.add(30, 2);
  engine.add(25, 2);
  const std::optional<StepPlan> plan = engine.submit();
  ASSERT_EQ(plan->sequences.size(), 2U);
  EXPECT_EQ(plan->sequences[0].num_tokens, 10);
  EXPECT_EQ(plan->sequences[1].num_tokens, 10);
  engine.run();
  EXPECT_EQ(engine.outcomes[1].tokens, engine.reference(1, 2));
  EXPECT_EQ(engine.outcomes[2].tokens, engine.reference(2, 2));
}

TEST(SchedulerTest, TakesACommonPrefixFromTheCacheButComputesTheLastToken) {
  Engine engine(small_config());
  engine.add(24, 2);
  engine.run();
  const SequenceId same = engine.add(24, 2);
  const SequenceId longer = engine.add(40, 2);
  SequenceRequest salted = Engine::request_of(24, 2);
  salted.cache_salt = "another tenant";
  const SequenceId stranger = engine.add(salted);
  engine.run();
  EXPECT_EQ(engine.outcomes[same].num_cached_tokens, 16);  // 24 would leave nothing to compute
  EXPECT_EQ(engine.outcomes[longer].num_cached_tokens, 24);
  EXPECT_EQ(engine.outcomes[stranger].num_cached_tokens, 0);
  EXPECT_EQ(engine.scheduler.stats().prefix_cache_hits, 40U);
  EXPECT_EQ(engine.scheduler.stats().prefix_cache_queries, 24U + 24 + 40 + 24);
}

TEST(SchedulerTest, TheNextTurnFindsTheAnswerOfTheLastInTheCache) {
  for (const int depth : {1, 2}) {
    Engine engine(small_config(), depth);
    const SequenceId first = engine.add(10, 30);
    engine.run();
    SequenceRequest next = Engine::request_of(10, 5);
    for (const TokenId token : engine.outcomes[first].tokens) next.prompt.push_back(token);
    const SequenceId second = engine.add(next);
    engine.run();
    EXPECT_EQ(engine.outcomes[second].num_cached_tokens, 32);  // the last of 40 was never computed
  }
}

TEST(SchedulerTest, ABlockPlannedButNotYetAppliedMayBeShared) {
  Engine engine(small_config(), 2);
  const SequenceId first = engine.add(20, 4);
  engine.submit();
  const SequenceId second = engine.add(20, 4);
  engine.submit();
  EXPECT_TRUE(engine.scheduler.abort(first));  // its step is executed all the same
  engine.run();
  EXPECT_EQ(engine.outcomes[second].num_cached_tokens, 16);
  EXPECT_EQ(engine.outcomes[second].tokens, engine.reference(second, 4));
}

TEST(SchedulerTest, EqualPromptsOfOneStepDoNotShare) {
  Engine engine(small_config());
  engine.add(20, 1);
  const SequenceId second = engine.add(20, 1);
  engine.run();
  EXPECT_EQ(engine.outcomes[second].num_cached_tokens, 0);
}

TEST(SchedulerTest, APreemptedSequenceKeepsItsPlaceAndItsTokens) {
  for (const int depth : {1, 2}) {
    SchedulerConfig config = small_config();
    config.num_blocks = 8;
    Engine engine(config, depth);
    const SequenceId old = engine.add(8, 40);
    const SequenceId young = engine.add(8, 40);
    const SequenceId last = engine.add(60, 1);
    while (engine.outcomes[old].finish == FinishReason::kNone) {
      if (engine.runner.num_in_flight() == depth || !engine.submit()) engine.apply();
      ASSERT_TRUE(engine.outcomes[last].tokens.empty());  // it does not overtake
    }
    EXPECT_GT(engine.scheduler.stats().num_preemptions, 0U);
    engine.run();
    EXPECT_EQ(engine.outcomes[old].tokens, engine.reference(old, 40));
    EXPECT_EQ(engine.outcomes[young].tokens, engine.reference(young, 40));
    EXPECT_LE(engine.scheduler.stats().num_preemptions, 2U);
  }
}

TEST(SchedulerTest, LongRequestsInATinyCacheDoNotThrash) {
  SchedulerConfig config = small_config();
  config.num_blocks = 16;
  config.enable_prefix_caching = false;
  Engine engine(config, 2);
  for (int i = 0; i < 12; ++i) engine.add(20, 80);
  int num_computed = 0;
  while (engine.scheduler.has_unfinished()) {
    const auto plan = engine.runner.num_in_flight() < 2 ? engine.submit() : std::nullopt;
    if (plan)
      num_computed += plan->num_tokens;
    else
      engine.apply();
  }
  EXPECT_LT(num_computed, 2 * 12 * 100);  // recomputation costs less than the work itself
  EXPECT_LE(engine.scheduler.stats().num_preemptions, 24U);
}

TEST(SchedulerTest, LogitsOfEveryPromptPositionComeOnceAndInOrder) {
  for (const int depth : {1, 2}) {
    SchedulerConfig config = small_config();
    config.max_num_batched_tokens = 7;
    Engine engine(config, depth);
    engine.add(40, 1);  // would otherwise be hit
    engine.run();
    SequenceRequest request = Engine::request_of(40, 3);
    request.prompt_output = OutputKind::kAll;
    const SequenceId id = engine.add(request);
    engine.run();
    std::vector<float> positions(40);
    std::iota(positions.begin(), positions.end(), 0.0F);
    EXPECT_EQ(engine.outcomes[id].logits, positions);
    EXPECT_EQ(engine.outcomes[id].num_cached_tokens, 0);
    EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 3));
  }
}

TEST(SchedulerTest, AbortIsLegalInEveryStateAndEndsOnce) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  Engine engine(config, 2);
  Scheduler& scheduler = engine.scheduler;
  const SequenceId running = engine.add(20, 5);
  const SequenceId waiting = engine.add(20, 5);
  const SequenceId next = engine.add(8, 2);
  engine.submit();
  engine.submit();
  EXPECT_TRUE(scheduler.abort(waiting));
  EXPECT_TRUE(scheduler.abort(running));
  EXPECT_LT(scheduler.stats().num_free_blocks, 32);  // steps in flight still read its blocks
  EXPECT_FALSE(scheduler.abort(running));
  EXPECT_FALSE(scheduler.abort(waiting));
  EXPECT_FALSE(scheduler.abort(12345));
  EXPECT_FALSE(engine.submit());  // the seat is not free yet
  engine.run();
  EXPECT_FALSE(scheduler.abort(next));
  EXPECT_EQ(engine.outcomes.size(), 1U);
  EXPECT_EQ(engine.outcomes[next].tokens, engine.reference(next, 2));
}

TEST(SchedulerTest, BrokenLogitsEndTheirSequenceAndLeaveNoCachedBlock) {
  Engine engine(small_config());
  const SequenceId broken = engine.add(20, 5);
  const SequenceId other = engine.add(Engine::request_of(20, 5, 500));
  engine.runner.poison_next();
  engine.run();
  EXPECT_EQ(engine.outcomes[broken].finish, FinishReason::kError);
  EXPECT_TRUE(engine.outcomes[broken].tokens.empty());
  EXPECT_EQ(engine.outcomes[other].tokens, engine.reference(other, 5));
  const SequenceId again = engine.add(20, 5);
  engine.run();
  EXPECT_EQ(engine.outcomes[again].num_cached_tokens, 0);
}

// The second of three fails in the step that it should decode in; what waits takes its place in that step.
TEST(SchedulerTest, WhatCannotBePlannedIsLeftOutOfTheStep) {
  for (const int depth : {1, 2}) {
    SchedulerConfig config = small_config();
    config.max_num_seqs = 3;
    int visits = 0;
    config.on_plan = [&](SequenceId id) {
      if (id == 2 && ++visits == 2) throw std::runtime_error("injected");
    };
    Engine engine(config, depth);
    for (const TokenId first : {100, 200, 300, 400}) engine.add(Engine::request_of(9, 5, first));
    engine.submit();
    if (depth == 1) engine.apply();
    const auto plan = engine.submit();
    std::vector<SequenceId> planned;
    for (const SequencePlan& sequence : plan->sequences) planned.push_back(sequence.sequence);
    const bool seat_is_free = depth == 1;  // else the step in flight still uses it
    EXPECT_EQ(planned, seat_is_free ? (std::vector<SequenceId>{1, 3, 4}) : (std::vector<SequenceId>{1, 3}));
    const auto failures = engine.scheduler.take_planning_failures();
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures[0].id, 2U);
    EXPECT_EQ(failures[0].why, "injected");
    engine.scheduler.check();
    engine.run();
    for (const SequenceId id : {1, 3, 4}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 5));
    EXPECT_EQ(engine.outcomes[2].tokens.size(), depth == 1 ? 1U : 0U);
    EXPECT_TRUE(engine.scheduler.take_planning_failures().empty());
  }
}

void lose_steps(Engine& engine) {
  engine.runner.drop_all();
  for (SequenceUpdate& update : engine.scheduler.fail_in_flight()) engine.book(std::move(update));
  engine.scheduler.check();
}

std::vector<SequenceId> ids_of(const std::optional<StepPlan>& plan) {
  std::vector<SequenceId> ids;
  for (const SequencePlan& sequence : plan->sequences) ids.push_back(sequence.sequence);
  return ids;
}

TEST(SchedulerTest, WhatWasInALostStepIsComputedAgainEachAloneUntilItGetsAToken) {
  for (const int depth : {1, 2}) {
    Engine engine(small_config(), depth);
    for (const TokenId first : {100, 200, 300}) engine.add(Engine::request_of(9, 5, first));
    for (int i = 0; i < depth; ++i) engine.submit();
    lose_steps(engine);
    for (const SequenceId id : {1, 2, 3}) {
      EXPECT_EQ(ids_of(engine.submit()), std::vector<SequenceId>{id});
      EXPECT_FALSE(engine.submit());
      engine.apply();
    }
    EXPECT_EQ(ids_of(engine.submit()), (std::vector<SequenceId>{1, 2, 3}));
    engine.run();
    for (const SequenceId id : {1, 2, 3}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 5));
  }
}

TEST(SchedulerTest, WhatIsLostAgainWhenItIsAloneEnds) {
  Engine engine(small_config());
  for (const TokenId first : {100, 200, 300}) engine.add(Engine::request_of(9, 5, first));
  engine.submit();
  lose_steps(engine);
  engine.submit();
  engine.apply();
  EXPECT_EQ(ids_of(engine.submit()), std::vector<SequenceId>{2});
  lose_steps(engine);
  EXPECT_EQ(engine.outcomes[2].finish, FinishReason::kError);
  EXPECT_EQ(ids_of(engine.submit()), std::vector<SequenceId>{1});  // 3 is admitted, and next
  engine.run();
  for (const SequenceId id : {1, 3}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 5));
}

TEST(SchedulerTest, ALostStepForgetsCachedPrefixes) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  Engine engine(config, 2);
  const SequenceId lost = engine.add(20, 5);
  const SequenceId waiting = engine.add(20, 5);
  engine.submit();
  engine.submit();
  lose_steps(engine);
  EXPECT_TRUE(engine.scheduler.abort(lost));
  engine.run();
  EXPECT_EQ(engine.outcomes[waiting].num_cached_tokens, 0);
  EXPECT_EQ(engine.outcomes[waiting].tokens, engine.reference(waiting, 5));
}

TEST(SchedulerTest, RefusesResultsThatDoNotFitTheOldestPlan) {
  Engine engine(small_config(), 2);
  const SequenceId id = engine.add(5, 5);
  const auto plan = engine.submit();
  EXPECT_THROW(engine.scheduler.apply({plan->id + 1, {{id, 9, {}}}}), InternalError);
  EXPECT_THROW(engine.scheduler.apply({plan->id, {}}), InternalError);
  EXPECT_THROW(engine.scheduler.apply({plan->id, {{id + 1, 9, {}}}}), InternalError);
  EXPECT_THROW(engine.scheduler.apply({plan->id, {{id, SequenceResult::kNoToken, {}}}}), InternalError);
  engine.run();
  EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 5));
}

TEST(SchedulerTest, BrokenLogitsOfAnAbortedSequenceAreNotCachedEither) {
  Engine engine(small_config(), 2);
  const SequenceId aborted = engine.add(20, 5);
  engine.submit();
  engine.scheduler.abort(aborted);
  engine.runner.poison_next();
  engine.apply();
  const SequenceId next = engine.add(20, 1);
  engine.run();
  EXPECT_EQ(engine.outcomes[next].num_cached_tokens, 0);
}

}  // namespace
}  // namespace quire::testing
