// What the engine does beside the tokens of structured outputs: compiling, jumps, failures, ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/grammar/structured_sources.h"
#include "engine/submit.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using testing::Kind;
using testing::Named;
using testing::prompt_of;
using testing::sources;
using ::testing::StartsWith;
using testing::toy_config;

EngineRequest request_of(const StructuredOutputs& outputs) {
  EngineRequest request;
  request.prompt = prompt_of(0);
  request.params.temperature = 0;
  request.params.max_tokens = 30;
  request.params.structured_outputs = std::make_shared<const StructuredOutputs>(outputs);
  return request;
}

CompletionOutput output_of(Engine& engine, EngineRequest request) {
  return testing::submit(engine, std::move(request)).get().outputs.at(0);
}

const StructuredOutputs kChoice{.kind = Kind::kChoice, .source = R"(["red", "green"])"};
const StructuredOutputs kOtherChoice{.kind = Kind::kChoice, .source = R"(["blue", "grey"])"};

TEST(StructuredOutputsEngineTest, WhatIsForcedTakesFewerSteps) {
  const StructuredOutputs spelled{.kind = Kind::kRegex, .source = "[q]{20,20}"};
  std::map<bool, int> num_steps;
  std::map<bool, std::vector<TokenId>> tokens;
  for (const bool jumps : {true, false}) {
    EngineConfig config = toy_config();
    config.disable_jump_forward = !jumps;
    Engine engine(config);
    engine.observe_steps([&](const StepRecord&) { ++num_steps[jumps]; });
    tokens[jumps] = output_of(engine, request_of(spelled)).token_ids;
  }
  EXPECT_EQ(tokens[true], tokens[false]);
  EXPECT_GT(tokens[true].size(), 3U);
  EXPECT_LT(num_steps[true], num_steps[false]);
}

TEST(StructuredOutputsEngineTest, EverySequenceOfAStepMayHaveAMaskOfItsOwn) {
  EngineConfig config = toy_config();
  config.max_num_seqs = 64;
  Engine engine(config);
  std::vector<std::string> wanted;
  std::vector<EngineRequest> requests;
  for (int i = 0; i < config.max_num_seqs; ++i) {
    wanted.push_back({static_cast<char>('a' + i / 8), static_cast<char>('a' + i % 8)});
    requests.push_back(request_of({.kind = Kind::kRegex, .source = "(" + wanted.back() + "){1,30}"}));
    requests.back().params.max_tokens = 8;
  }
  auto outputs = testing::submit(engine, std::move(requests));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const CompletionOutput output = outputs[i].get().outputs.at(0);
    EXPECT_TRUE(output.error.empty()) << output.error;
    EXPECT_EQ(output.text.substr(0, 2), wanted[i]);
  }
}

TEST(StructuredOutputsEngineTest, ASourceThatIsWrongIsTheFaultOfItsRequestAlone) {
  Engine engine(toy_config());
  auto beside = testing::submit(engine, request_of(kChoice));
  const CompletionOutput wrong = output_of(
      engine,
      request_of({.kind = Kind::kJsonSchema, .source = R"({"properties": {"a": {"$ref": "http://x/y"}}})"}));
  EXPECT_EQ(wrong.finish_reason, FinishReason::kError);
  EXPECT_TRUE(wrong.is_request_at_fault);
  EXPECT_THAT(wrong.error, StartsWith("structured_outputs is refused: "));
  EXPECT_THAT(wrong.error, HasSubstr("/properties/a"));
  EXPECT_EQ(beside.get().outputs[0].finish_reason, FinishReason::kStop);
}

TEST(StructuredOutputsEngineTest, AWhitespacePatternThatIsWrongIsCalledByItsName) {
  Engine engine(toy_config());
  StructuredOutputs outputs{.kind = Kind::kJsonObject, .whitespace_pattern = "(", .whitespace_name = "space"};
  const CompletionOutput wrong = output_of(engine, request_of(outputs));
  EXPECT_TRUE(wrong.is_request_at_fault);
  EXPECT_THAT(wrong.error, StartsWith("space is refused: regular expression"));
  for (const std::string right : {"", " ?", "[\\n\\t ]*"}) {
    outputs.whitespace_pattern = right;
    EXPECT_EQ(output_of(engine, request_of(outputs)).error, "") << right;
  }
}

TEST(StructuredOutputsEngineTest, MinTokensBehindTheEndOfTheTextAreTheFaultOfTheRequest) {
  Engine engine(toy_config());
  EngineRequest request = request_of(kChoice);
  request.params.min_tokens = 20;
  const CompletionOutput output = output_of(engine, std::move(request));
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_TRUE(output.is_request_at_fault);
  EXPECT_THAT(output.error, HasSubstr("min_tokens and structured_outputs leave no token"));
}

TEST(StructuredOutputsEngineTest, WhatCannotBeTogetherIsRefusedByName) {
  Engine engine(toy_config());
  const auto refusal = [&](const auto& change) -> std::string {
    EngineRequest request = request_of(kChoice);
    change(request);
    try {
      engine.validate(request);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  if (QUIRE_HAS_BEAMS) {
    EXPECT_THAT(refusal([](EngineRequest& r) { r.params.beam_width = 2; }),
                HasSubstr("structured_outputs and beam_width exclude each other"));
  }
  EXPECT_THAT(refusal([](EngineRequest& r) { r.pooling = Pooling::kLast; }),
              HasSubstr("pooling and structured_outputs exclude each other"));
  EXPECT_THAT(refusal([](EngineRequest& r) {
                r.params.structured_outputs = std::make_shared<const StructuredOutputs>(StructuredOutputs{
                    .kind = Kind::kRegex, .source = std::string((1 << 20) + 1, 'a'), .name = "guided_regex"});
              }),
              StartsWith("guided_regex has a source of 1048577 bytes; at most 1048576"));
}

TEST(StructuredOutputsEngineTest, LogprobsOfThePromptAreThereWhateverIsForced) {
  Engine engine(toy_config());
  EngineRequest request = request_of({.kind = Kind::kRegex, .source = "[q]{20,20}"});
  request.params.prompt_logprobs = 0;
  request.params.max_tokens = 1;  // which is forced, so that it ends before the prompt is computed
  const std::size_t num_prompt = request.prompt.size();
  // The first token has none.
  EXPECT_EQ(testing::submit(engine, std::move(request)).get().prompt_logprobs.size(), num_prompt - 1);
}

// Whatever the model prefers.
TEST(StructuredOutputsEngineTest, NothingEndsWhatIsFreeBeforeItIsHeld) {
  Engine engine(toy_config());
  EngineRequest request = request_of(kChoice);
  StructuredOutputs outputs = kChoice;
  outputs.free_until = "said by nobody";
  request.params.structured_outputs = std::make_shared<const StructuredOutputs>(outputs);
  for (const TokenId end : engine.sampling_context().eos_token_ids) request.params.logit_bias[end] = 100;
  const CompletionOutput output = output_of(engine, std::move(request));
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(output.token_ids.size(), 30U);
}

TEST(StructuredOutputsEngineTest, AStepIsBookedBeforeItsTokensAreTold) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCollect) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  };
  Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
  EngineRequest request = request_of({.kind = Kind::kRegex, .source = "[q]{20,20}"});
  request.params.max_tokens = 1;  // which is forced
  const std::size_t num_prompt = request.prompt.size();
  std::promise<std::uint64_t> booked;
  request.on_update = [&](const RequestUpdate& update) {
    if (update.finished) booked.set_value(engine.stats().prefill_tokens);
  };
  engine.submit(std::move(request));
  EXPECT_EQ(booked.get_future().get(), num_prompt);
}

TEST(StructuredOutputsEngineTest, WhatFailsInTheCompilerIsNotTheRequestsFault) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCompile) throw std::bad_alloc();
  };
  Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
  const CompletionOutput output = output_of(engine, request_of(kChoice));
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_FALSE(output.is_request_at_fault);
  EXPECT_THAT(output.error, StartsWith("structured_outputs could not be compiled: "));
}

TEST(StructuredOutputsEngineTest, WhatCannotBeGivenToTheCompilerEndsAtOnce) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId id) {
    if (stage == EngineStage::kHold && id == 1) throw std::runtime_error("no thread");
  };
  Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
  EngineRequest request = request_of(kChoice);
  request.timeout = 20;
  const CompletionOutput output = output_of(engine, std::move(request));
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_FALSE(output.is_request_at_fault);
  EXPECT_THAT(output.error, HasSubstr("no thread"));
  EXPECT_EQ(output_of(engine, request_of(kChoice)).finish_reason, FinishReason::kStop);
  EXPECT_EQ(engine.stats().scheduler.num_waiting, 0);
}

// An engine whose first compilation goes on when it is told to.
class SlowCompilationTest : public ::testing::Test {
 protected:
  EngineHooks hooks() {
    EngineHooks hooks;
    hooks.fault = [this, go_on = go_on_.get_future().share()](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kCompile && num_compiled_++ == 0) go_on.wait();
    };
    return hooks;
  }

  std::promise<void> go_on_;
  std::atomic<int> num_compiled_ = 0;
  Engine engine_{toy_config(), open_model(toy_config().model), hooks()};
};

TEST_F(SlowCompilationTest, HoldsUpNobodyElse) {
  auto slow = testing::submit(engine_, request_of(kChoice));
  auto same = testing::submit(engine_, request_of(kChoice));
  while (num_compiled_ == 0) std::this_thread::yield();
  EXPECT_EQ(output_of(engine_, request_of(kOtherChoice)).finish_reason, FinishReason::kStop);
  EngineRequest plain = request_of(kChoice);
  plain.params.structured_outputs = nullptr;
  EXPECT_EQ(output_of(engine_, std::move(plain)).finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine_.stats().scheduler.num_waiting, 2);
  EXPECT_EQ(engine_.stats().scheduler.num_queued_requests, 2);
  EXPECT_GE(engine_.stats().scheduler.num_queued_tokens, 2);
  go_on_.set_value();
  EXPECT_EQ(slow.get().outputs[0].token_ids, same.get().outputs[0].token_ids);
  EXPECT_EQ(num_compiled_, 2) << "what was asked for twice is compiled once";
}

TEST_F(SlowCompilationTest, CanBeAborted) {
  auto done = std::make_shared<std::promise<CompletionOutput>>();
  auto output = done->get_future();
  EngineRequest request = request_of(kChoice);
  request.on_update = [done](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.output);
  };
  const RequestId id = engine_.submit(std::move(request));
  while (num_compiled_ == 0) std::this_thread::yield();
  engine_.abort(id);
  EXPECT_EQ(output.get().finish_reason, FinishReason::kAbort);
  EXPECT_EQ(output_of(engine_, request_of(kOtherChoice)).finish_reason, FinishReason::kStop);
  EXPECT_EQ(engine_.stats().scheduler.num_waiting, 0);
  go_on_.set_value();
  EXPECT_EQ(output_of(engine_, request_of(kChoice)).finish_reason, FinishReason::kStop);
}

TEST_F(SlowCompilationTest, TimesOut) {
  EngineRequest request = request_of(kChoice);
  request.timeout = 0.05;
  request.params.temperature = 1;
  request.params.n = 2;
  for (const CompletionOutput& output : testing::submit(engine_, std::move(request)).get().outputs) {
    EXPECT_EQ(output.finish_reason, FinishReason::kTimeout);
    EXPECT_EQ(output.error, "its timeout has passed");
  }
  go_on_.set_value();
}

TEST(StructuredOutputsEngineTest, AnEngineEndsWhileItCompiles) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCompile) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  std::future<RequestOutput> output;
  {
    Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
    output = testing::submit(engine, request_of(kChoice));
  }
  EXPECT_EQ(output.get().outputs[0].finish_reason, FinishReason::kAbort);
}

TEST(StructuredOutputsEngineTest, WhatFailsInAStepIsComputedAgain) {
  Engine whole(toy_config());
  for (const int ranks : {1, 2}) {
    std::atomic<int> num_steps = 0;
    EngineHooks hooks;
    hooks.pipelined = ranks == 1;
    hooks.fault = [&](EngineStage stage, SequenceId) {
      const bool may_fail = ranks > 1 ? stage == EngineStage::kRank
                                      : stage == EngineStage::kSubmit || stage == EngineStage::kCollect;
      if (may_fail && ++num_steps % 7 == 0) fail("injected");
    };
    EngineConfig config = toy_config();
    config.tensor_parallel_size = ranks;
    if (!testing::has_devices(config)) GTEST_SKIP() << "no two GPUs here";
    Engine engine(config, open_model(config.model), std::move(hooks));
    for (const Named& source : sources())
      EXPECT_EQ(output_of(engine, request_of(source.outputs)).token_ids,
                output_of(whole, request_of(source.outputs)).token_ids)
          << source.name << " with " << ranks << " ranks";
    EXPECT_GT(num_steps, 7);
  }
}

}  // namespace
}  // namespace quire
