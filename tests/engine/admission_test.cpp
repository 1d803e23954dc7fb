// What an engine takes, in which order, and for how long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "quire/llm.h"

namespace quire {
namespace {

using ::testing::ElementsAreArray;
using testing::greedy;
using ::testing::HasSubstr;

EngineRequest request_of(std::vector<TokenId> prompt, int max_tokens) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.params = greedy(max_tokens);
  return request;
}

struct Submitted {
  RequestId id = 0;
  std::future<RequestOutput> done;
};

Submitted submit_with_id(Engine& engine, EngineRequest request) {
  auto done = std::make_shared<std::promise<RequestOutput>>();
  Submitted submitted{0, done->get_future()};
  request.on_update = [done](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.request);
  };
  submitted.id = engine.submit(std::move(request));
  return submitted;
}

// Holds the engine in its first step, so that what is submitted meanwhile waits.
class Gate {
 public:
  explicit Gate(Engine& engine) {
    engine.observe_steps(
        [this, opened = opened_.get_future().share(), first = true](const StepRecord&) mutable {
          if (std::exchange(first, false)) reached_.set_value();
          opened.wait();
        });
  }
  void wait() { reached_.get_future().wait(); }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> reached_;
  std::promise<void> opened_;
};

std::string refusal(Engine& engine, std::vector<TokenId> prompt) {
  EngineRequest request = request_of(std::move(prompt), 1);
  const auto size = request.prompt.size();
  try {
    engine.submit(std::move(request));
  } catch (const QueueFullError& e) {
    EXPECT_EQ(request.prompt.size(), size);  // it can be submitted again
    return e.what();
  }
  return "";
}

EngineConfig one_at_a_time() {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_num_seqs = 1;
  return config;
}

TEST(AdmissionTest, AFullQueueRefusesAtOnceAndTakesMoreWhenThereIsRoom) {
  EngineConfig config = one_at_a_time();
  config.max_num_queued_reqs = 2;
  Engine engine(config);
  Gate gate(engine);
  Submitted running = submit_with_id(engine, request_of({1, 2, 3}, 900));
  gate.wait();
  Submitted second = submit_with_id(engine, request_of({1, 2, 3}, 2));
  Submitted third = submit_with_id(engine, request_of({1, 2, 3}, 2));
  EXPECT_THAT(refusal(engine, {1}),
              HasSubstr("the queue is full: 2 requests wait, and max-num-queued-reqs is 2"));
  engine.abort(second.id);
  gate.open();
  EXPECT_EQ(second.done.get().outputs[0].finish_reason, FinishReason::kAbort);
  Submitted fourth;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);;) {
    try {
      fourth = submit_with_id(engine, request_of({1, 2, 3}, 2));
      break;
    } catch (const QueueFullError&) {  // the engine counts between two steps
      ASSERT_LT(std::chrono::steady_clock::now(), end);
    }
  }
  engine.abort(running.id);
  EXPECT_EQ(third.done.get().outputs[0].token_ids.size(), 2U);
  EXPECT_EQ(fourth.done.get().outputs[0].token_ids.size(), 2U);
}

TEST(AdmissionTest, TheQueueMayBeBoundInPromptTokens) {
  EngineConfig config = one_at_a_time();
  config.max_num_queued_tokens = 120;
  Engine engine(config);
  Gate gate(engine);
  submit_with_id(engine, request_of(std::vector<TokenId>(300, 5), 1));  // an empty queue takes it
  gate.wait();
  submit_with_id(engine, request_of(std::vector<TokenId>(60, 5), 1));
  submit_with_id(engine, request_of(std::vector<TokenId>(60, 5), 1));
  EXPECT_THAT(refusal(engine, {1}),
              HasSubstr("120 tokens wait, and max-num-queued-tokens is 120, too few for 1 more"));
  gate.open();
}

TEST(AdmissionTest, RequestsThatComeTogetherAreTakenOrRefusedTogether) {
  EngineConfig config = one_at_a_time();
  config.max_num_queued_reqs = 4;
  Engine engine(config);
  Gate gate(engine);
  submit_with_id(engine, request_of({1, 2, 3}, 1));
  gate.wait();
  std::vector<EngineRequest> many(6, request_of({1, 2, 3}, 1));
  std::promise<void> last_done;
  many.back().on_update = [&](const RequestUpdate& update) {
    if (update.finished) last_done.set_value();
  };
  EXPECT_EQ(engine.submit(many).size(), 6U);  // an empty queue takes any number
  std::vector<EngineRequest> two(2, request_of({1, 2, 3}, 1));
  EXPECT_THROW(engine.submit(two), QueueFullError);
  two[1].prompt = {-1};
  EXPECT_THROW(engine.submit(two), Error);
  gate.open();
  last_done.get_future().wait();
  EXPECT_EQ(engine.stats().prefill_tokens, 7 * 3U);  // of those refused, nothing
}

TEST(AdmissionTest, OutputsAndNamedTokensCountInTheQueue) {
  EngineConfig config = one_at_a_time();
  config.max_num_queued_tokens = 3000;
  Engine engine(config);
  Gate gate(engine);
  submit_with_id(engine, request_of({1, 2, 3}, 1));
  gate.wait();
  EngineRequest several = request_of(std::vector<TokenId>(60, 5), 1);
  several.params.temperature = 1;
  several.params.n = 16;
  submit_with_id(engine, several);  // 60 + 15 * 128 = 1980
  EXPECT_THAT(refusal(engine, std::vector<TokenId>(1021, 5)), HasSubstr("1980 tokens wait"));
  EngineRequest biased = request_of(std::vector<TokenId>(60, 5), 1);
  for (int id = 0; id < 120; ++id) biased.params.logit_bias[id] = 1;  // 60 + 120 * 8 = 1020
  submit_with_id(engine, biased);
  EXPECT_THAT(refusal(engine, {1}), HasSubstr("3000 tokens wait"));
  gate.open();
}

TEST(AdmissionTest, AnIdleEngineTakesOneRequestAfterTheOther) {
  EngineConfig config = one_at_a_time();
  config.max_num_queued_reqs = 1;
  config.max_num_queued_tokens = 1;
  Engine engine(config);
  for (int i = 0; i < 20; ++i) submit_with_id(engine, request_of({1, 2, 3}, 1)).done.wait();
}

TEST(AdmissionTest, APromptThatFindsTheQueueFullFailsAlone) {
  EngineConfig config = one_at_a_time();
  config.max_num_queued_reqs = 3;
  LLM llm(config);
  const Prompt prompt = testing::golden_ids("qwen3", "prompt.0");
  const auto requests = llm.generate(std::vector<Prompt>(20, prompt), greedy(24));
  int refused = 0;
  for (const RequestOutput& request : requests) {
    const CompletionOutput& output = request.outputs.at(0);
    if (output.finish_reason == FinishReason::kError) {
      EXPECT_THAT(output.error, HasSubstr("queue is full"));
      ++refused;
    } else {
      EXPECT_THAT(output.token_ids, ElementsAreArray(testing::golden_ids("qwen3", "greedy.0")));
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LE(refused, 17);
}

TEST(AdmissionTest, ATimeoutEndsWhatRunsAndWhatWaits) {
  Engine engine(one_at_a_time());
  Gate gate(engine);
  EngineRequest request = request_of({1, 2, 3}, 1000);
  request.timeout = 0.1;
  Submitted running = submit_with_id(engine, request);
  Submitted waiting = submit_with_id(engine, request);
  Submitted other = submit_with_id(engine, request_of(testing::golden_ids("qwen3", "prompt.0"), 24));
  gate.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  gate.open();
  for (Submitted* late : {&running, &waiting}) {
    const CompletionOutput output = late->done.get().outputs.at(0);
    EXPECT_EQ(output.finish_reason, FinishReason::kTimeout);
    EXPECT_EQ(output.error, "its timeout has passed");
    EXPECT_LE(output.token_ids.size(), late == &running ? 1U : 0U);
  }
  EXPECT_THAT(other.done.get().outputs.at(0).token_ids,
              ElementsAreArray(testing::golden_ids("qwen3", "greedy.0")));
}

TEST(AdmissionTest, ImpossibleTimeoutsAreRefused) {
  Engine engine(testing::golden_config("qwen3"));
  EngineRequest request = request_of({1}, 1);
  for (const double timeout : {0.0, -1.0, 1.1e9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    request.timeout = timeout;
    EXPECT_THROW(engine.validate(request), Error) << timeout;
  }
  request.timeout = 1e9;
  EXPECT_EQ(submit_with_id(engine, request).done.get().outputs.at(0).finish_reason, FinishReason::kLength);
}

TEST(AdmissionTest, ALowerNumberGoesFirstAndPreemptsWithoutChangingAToken) {
  EngineConfig config = one_at_a_time();
  config.scheduling_policy = "priority";
  Engine engine(config);
  Gate gate(engine);
  EngineRequest low = request_of(testing::golden_ids("qwen3", "prompt.0"), 400);
  low.priority = 3;
  Submitted first = submit_with_id(engine, low);
  gate.wait();
  EngineRequest high = request_of(testing::golden_ids("qwen3", "prompt.1"), 24);
  high.priority = -2;
  Submitted second = submit_with_id(engine, high);
  gate.open();
  EXPECT_THAT(second.done.get().outputs.at(0).token_ids,
              ElementsAreArray(testing::golden_ids("qwen3", "greedy.1")));
  EXPECT_EQ(engine.stats().scheduler.num_preemptions, 1U);
  const auto preempted = first.done.get().outputs.at(0).token_ids;
  EXPECT_EQ(preempted, submit_with_id(engine, low).done.get().outputs.at(0).token_ids);
}

TEST(AdmissionTest, PromptsShareCachedPrefixesWithinASalt) {
  LLM llm(testing::golden_config("qwen3"));
  const Prompt prompt = testing::golden_ids("qwen3", "prompt.2");
  const auto cached = [&](const std::string& salt) {
    GenerateOptions options;
    options.cache_salt = salt;
    const RequestOutput request = llm.generate({prompt}, greedy(24), options).front();
    EXPECT_THAT(request.outputs.at(0).token_ids, ElementsAreArray(testing::golden_ids("qwen3", "greedy.2")));
    return request.num_cached_tokens;
  };
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached("a"), 128);
  EXPECT_EQ(cached("b"), 128);
  EXPECT_EQ(cached(""), 128);
}

TEST(AdmissionTest, PrioritiesAreOneForEachPrompt) {
  LLM llm(testing::golden_config("qwen3"));
  GenerateOptions options;
  options.priorities = {1};
  const Prompt prompt = testing::golden_ids("qwen3", "prompt.0");
  EXPECT_THROW(llm.generate({prompt, prompt}, greedy(1), options), Error);
  options.priorities = {1, 0};
  EXPECT_EQ(llm.generate({prompt, prompt}, greedy(1), options).size(), 2U);
}

}  // namespace
}  // namespace quire
