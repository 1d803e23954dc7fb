// What a request waited for, as its output tells.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "quire/llm.h"

namespace quire {
namespace {

using testing::greedy;

void expect_ordered(const RequestOutput& request) {
  for (const CompletionOutput& output : request.outputs) {
    const OutputTimes& times = output.times;
    ASSERT_TRUE(times.scheduled && times.first_token && times.last_token && times.finished);
    EXPECT_LE(request.arrival, *times.scheduled);
    EXPECT_LE(*times.scheduled, *times.first_token);
    EXPECT_LE(*times.first_token, *times.last_token);
    EXPECT_LE(*times.last_token, *times.finished);
  }
}

std::future<RequestOutput> submit_timed(Engine& engine, std::vector<TokenId> prompt,
                                        const SamplingParams& params) {
  auto done = std::make_shared<std::promise<RequestOutput>>();
  auto output = done->get_future();
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.params = params;
  request.on_update = [done](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.request);
  };
  engine.submit(std::move(request));
  return output;
}

TEST(RequestTimesTest, AreInOrderAndWithinTheCall) {
  LLM llm(testing::golden_config("qwen3"));
  const TimePoint before = TimePoint::clock::now();
  const RequestOutput request = llm.generate({std::vector<TokenId>{1, 2, 3}}, greedy(8)).front();
  const TimePoint after = TimePoint::clock::now();
  expect_ordered(request);
  const OutputTimes& times = request.outputs[0].times;
  EXPECT_LE(before, request.arrival);
  EXPECT_LT(*times.first_token, *times.last_token);
  EXPECT_EQ(*times.last_token, *times.finished);
  EXPECT_LE(*times.finished, after);
  EXPECT_EQ(request.outputs[0].num_preemptions, 0);
}

TEST(RequestTimesTest, ARequestThatWaitsForAnotherIsScheduledAfterItsEnd) {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_num_seqs = 1;
  LLM llm(config);
  const std::vector<Prompt> prompts(3, std::vector<TokenId>{1, 2, 3});
  const std::vector<RequestOutput> requests = llm.generate(prompts, greedy(50));
  for (const RequestOutput& request : requests) expect_ordered(request);
  for (std::size_t i = 1; i < requests.size(); ++i)
    EXPECT_GE(*requests[i].outputs[0].times.scheduled, *requests[i - 1].outputs[0].times.finished);
}

TEST(RequestTimesTest, WhatNeverRanHasAnEndAlone) {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_num_seqs = 1;
  Engine engine(config);
  std::promise<void> reached;
  std::promise<void> opened;
  engine.observe_steps([&, first = true](const StepRecord&) mutable {
    if (!std::exchange(first, false)) return;
    reached.set_value();
    opened.get_future().wait();
  });
  auto running = submit_timed(engine, {1, 2, 3}, greedy(20));
  reached.get_future().wait();
  auto done = std::make_shared<std::promise<RequestOutput>>();
  EngineRequest request;
  request.prompt = {1, 2, 3};
  request.params = greedy(2);
  request.on_update = [done](const RequestUpdate& update) { done->set_value(update.request); };
  engine.abort(engine.submit(std::move(request)));
  opened.set_value();
  const RequestOutput aborted = done->get_future().get();
  const OutputTimes& times = aborted.outputs[0].times;
  EXPECT_FALSE(times.scheduled || times.first_token || times.last_token);
  ASSERT_TRUE(times.finished);
  EXPECT_LE(aborted.arrival, *times.finished);
  expect_ordered(running.get());
}

TEST(RequestTimesTest, EachOfSeveralOutputsHasItsOwn) {
  LLM llm(testing::golden_config("qwen3"));
  SamplingParams params = greedy(6);
  params.temperature = 1;
  params.n = 3;
  const RequestOutput request = llm.generate({std::vector<TokenId>{1, 2, 3}}, params).front();
  expect_ordered(request);
  // The others continue the prompt that the first one computes.
  EXPECT_GE(*request.outputs[2].times.scheduled, *request.outputs[0].times.scheduled);

  params.best_of = 5;
  expect_ordered(llm.generate({std::vector<TokenId>{1, 2, 3}}, params).front());
}

TEST(RequestTimesTest, ABeamSearchHasItsFirstTokenBeforeItsEnd) {
  if (!QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  LLM llm(testing::golden_config("qwen3"));
  SamplingParams params = greedy(6);
  params.n = 2;
  params.beam_width = 3;
  const RequestOutput request = llm.generate({std::vector<TokenId>{1, 2, 3}}, params).front();
  expect_ordered(request);
  EXPECT_LT(*request.outputs[1].times.first_token, *request.outputs[1].times.last_token);
  EXPECT_EQ(request.outputs[0].num_preemptions, 0);
}

TEST(RequestTimesTest, APromptWithoutOutputHasATimeWhenItWasComputed) {
  LLM llm(testing::golden_config("qwen3"));
  SamplingParams params = greedy(0);
  params.prompt_logprobs = 0;
  const RequestOutput request = llm.generate({std::vector<TokenId>{1, 2, 3}}, params).front();
  EXPECT_TRUE(request.outputs[0].token_ids.empty());
  expect_ordered(request);
}

TEST(RequestTimesTest, PreemptionsAreCountedWhereTheyHappened) {
  EngineConfig config = testing::golden_config("qwen3");
  config.block_size = 8;
  config.enable_prefix_caching = false;
  const std::size_t block_bytes = std::size_t{2} * 3 * 2 * 8 * 32 * sizeof(float);
  config.kv_cache_memory = 36 * block_bytes;  // two prompts of 130 tokens, but not their continuations
  Engine engine(config);
  const std::vector<EngineRequest> requests(3, testing::request_of(testing::golden_ids("qwen3", "prompt.2")));
  std::uint64_t preemptions = 0;
  for (auto& request : testing::submit(engine, requests)) {
    const RequestOutput output = request.get();
    expect_ordered(output);
    preemptions += static_cast<std::uint64_t>(output.outputs[0].num_preemptions);
  }
  EXPECT_GT(preemptions, 0U);
  EXPECT_LE(preemptions,
            engine.stats().scheduler.num_preemptions);  // which knows of those without a step, too
}

TEST(RequestTimesTest, TheStatisticsKnowOfATimeout) {
  EngineConfig config = testing::golden_config("qwen3");
  Engine engine(config);
  engine.observe_steps([](const StepRecord&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  auto done = std::make_shared<std::promise<RequestOutput>>();
  EngineRequest request;
  request.prompt = {1, 2, 3};
  request.params = greedy(900);
  request.timeout = 0.05;
  request.on_update = [done](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.request);
  };
  engine.submit(std::move(request));
  EXPECT_EQ(done->get_future().get().outputs[0].finish_reason, FinishReason::kTimeout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (engine.stats().scheduler.num_running > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace quire
