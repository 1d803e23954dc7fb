// Sequences that continue the same prompt.
#include <gtest/gtest.h>

#include "scheduler/driver.h"

namespace quire::testing {
namespace {

TEST(SchedulerSiblingsTest, ThePromptOfSiblingsIsComputedOnceAndItsLastBlockCopied) {
  for (const int depth : {1, 2}) {
    SchedulerConfig config = small_config();
    config.enable_prefix_caching = false;
    Engine engine(config, depth);
    for (SequenceId i = 0; i < 3; ++i) {
      SequenceRequest request = Engine::request_of(20, 4);
      request.first_sibling = 1;
      request.sampling.seed = i;
      engine.add(request);
    }
    const auto prompt = engine.submit();
    ASSERT_EQ(prompt->sequences.size(), 1U);  // what it writes, the others read in a later step
    EXPECT_EQ(prompt->num_tokens, 20);
    if (depth == 1) engine.apply();
    const auto next = engine.submit();
    EXPECT_EQ(next->sequences.size(), 3U);
    EXPECT_EQ(next->num_tokens, 3);
    // The last one writes the original, unless the step that computes it is in flight.
    EXPECT_EQ(next->block_copies.size(), depth == 1 ? 2U : 3U);
    engine.run();
    for (const SequenceId id : {1, 2, 3}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 4));
    EXPECT_NE(engine.outcomes[1].tokens, engine.outcomes[2].tokens);
  }
}

TEST(SchedulerSiblingsTest, TheSequencesOfARequestWaitWithOneCopyOfItsPrompt) {
  Engine engine(small_config());
  auto request = std::make_shared<SequenceRequest>(Engine::request_of(20, 4));
  request->id = request->first_sibling = 1;
  request->num_outputs = 3;
  for (SequenceId i = 0; i < 3; ++i) {
    SequenceRequest alone = *request;
    alone.sampling.seed += i;
    engine.runner.histories.emplace(1 + i, History(alone));
  }
  engine.scheduler.add(request);
  EXPECT_EQ(request.use_count(), 1 + 3);
  EXPECT_EQ(engine.scheduler.stats().num_queued_requests, 1);
  EXPECT_EQ(engine.scheduler.stats().num_queued_tokens, 20 + 2 * 128);
  engine.run();
  EXPECT_EQ(request.use_count(), 1);
  for (const SequenceId id : {1, 2, 3}) EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 4));
}

TEST(SchedulerSiblingsTest, AForkOutlivesTheSequenceThatComputedItsPrompt) {
  for (const int num_prompt :
       {16, 17, 20}) {  // a full last block lies in the prefix cache, and is written again
    Engine engine(small_config());
    for (SequenceId i = 0; i < 2; ++i) {
      SequenceRequest request = Engine::request_of(num_prompt, 9);
      request.first_sibling = 1;
      request.sampling.seed = i;
      engine.add(request);
    }
    engine.submit();
    EXPECT_TRUE(engine.scheduler.abort(1));
    engine.apply();
    engine.scheduler.check();
    const auto plan = engine.submit();
    EXPECT_EQ(plan->num_tokens, 1);
    EXPECT_TRUE(plan->block_copies.empty());
    engine.run();
    EXPECT_EQ(engine.outcomes[2].tokens, engine.reference(2, 9));
  }
}

TEST(SchedulerSiblingsTest, ABlockThatAForkWritesAgainIsNoHitInThatStep) {
  Engine engine(small_config());
  for (SequenceId i = 0; i < 2; ++i) {
    SequenceRequest request = Engine::request_of(16, 9);
    request.first_sibling = 1;
    engine.add(request);
  }
  engine.submit();
  EXPECT_TRUE(engine.scheduler.abort(1));
  engine.apply();
  engine.add(24, 1);
  engine.add(24, 1);
  EXPECT_EQ(engine.submit()->sequences[1].first_position, 8);
  engine.apply();
  engine.add(24, 1);
  EXPECT_EQ(engine.submit()->sequences[1].first_position, 16);
  engine.run();
}

TEST(SchedulerSiblingsTest, AForkOfALostStepComputesItsPromptAnew) {
  Engine engine(small_config());
  for (SequenceId i = 0; i < 2; ++i) {
    SequenceRequest request = Engine::request_of(20, 4);
    request.first_sibling = 1;
    engine.add(request);
  }
  engine.submit();
  engine.runner.drop_all();
  for (SequenceUpdate& update : engine.scheduler.fail_in_flight()) engine.book(std::move(update));
  engine.scheduler.check();
  engine.run();
  EXPECT_EQ(engine.outcomes[1].tokens, engine.reference(1, 4));
  EXPECT_EQ(engine.outcomes[2].tokens, engine.reference(2, 4));
}

}  // namespace
}  // namespace quire::testing
