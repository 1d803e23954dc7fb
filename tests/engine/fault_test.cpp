// What goes wrong in one request, or in one step, ends those and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/changed_model.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"

namespace quire {
namespace {

using ::testing::ElementsAreArray;
using testing::request_of;
using testing::submit;
using testing::submit_output;

std::vector<TokenId> prompt_number(int i) {
  return testing::golden_ids("qwen3", "prompt." + std::to_string(i));
}
std::vector<TokenId> output_number(int i) {
  return testing::golden_ids("qwen3", "greedy." + std::to_string(i));
}

void expect_all_blocks_free(Engine& engine) {
  const auto stats = [&] { return engine.stats().scheduler; };
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
       stats().num_free_blocks != stats().num_blocks && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(stats().num_free_blocks, stats().num_blocks);
  EXPECT_EQ(stats().num_running, 0);
}

// Fails a stage whenever it comes to the victim, or to a step that the victim is in, from the fifth time on.
class FaultTest : public ::testing::TestWithParam<EngineStage> {
 protected:
  // No step is submitted before all requests are.
  EngineHooks hooks() {
    EngineHooks hooks;
    hooks.fault = [this, all_there = all_there_.get_future().share()](EngineStage stage, SequenceId id) {
      if (stage == EngineStage::kSchedule) planned_.insert(id);
      if (stage == EngineStage::kSubmit) {
        all_there.wait();
        in_step_ = std::exchange(planned_, {});
      }
      if (stage != GetParam()) return;
      const bool of_step = stage == EngineStage::kSubmit || stage == EngineStage::kCollect;
      if ((of_step ? in_step_.contains(kVictim) : id == kVictim) && ++visits_ >= 5)
        throw std::runtime_error("injected");
    };
    return hooks;
  }

  static constexpr SequenceId kVictim = 2;  // the second request

  std::promise<void> all_there_;
  std::set<SequenceId> planned_, in_step_;
  std::atomic<int> visits_ = 0;
};

TEST_P(FaultTest, EndsTheRequestThatItConcernsAndNothingElse) {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_num_seqs = 2;
  Engine engine(config, open_model(config.model), hooks());
  auto beside = submit_output(engine, request_of(prompt_number(0)));
  auto victim = submit_output(engine, request_of(prompt_number(1)));
  auto waiting = submit_output(engine, request_of(prompt_number(0)));
  auto last = submit_output(engine, request_of(prompt_number(2)));
  all_there_.set_value();
  if (GetParam() == EngineStage::kCallback) {
    EXPECT_THROW(victim.get(), std::future_error);  // it is told nothing more
  } else {
    const CompletionOutput output = victim.get();
    EXPECT_EQ(output.finish_reason, FinishReason::kError);
    EXPECT_EQ(output.error, "injected");
  }
  EXPECT_THAT(beside.get().token_ids, ElementsAreArray(output_number(0)));
  EXPECT_THAT(waiting.get().token_ids, ElementsAreArray(output_number(0)));
  EXPECT_THAT(last.get().token_ids, ElementsAreArray(output_number(2)));
  EXPECT_GE(visits_, 5);
  EXPECT_THAT(submit_output(engine, request_of(prompt_number(1))).get().token_ids,
              ElementsAreArray(output_number(1)));
  expect_all_blocks_free(engine);
}

INSTANTIATE_TEST_SUITE_P(Stages, FaultTest,
                         ::testing::Values(EngineStage::kSchedule, EngineStage::kSubmit,
                                           EngineStage::kCollect, EngineStage::kDetokenize,
                                           EngineStage::kCallback));

class LostStepTest : public ::testing::TestWithParam<EngineStage> {
 protected:
  // A beam search, several outputs and one, with steps from `first` to `last` lost; in a cache so small that
  // blocks are swapped, or in a large one.
  static std::vector<RequestOutput> outputs_without_steps(int first, int last, bool swapped = false) {
    EngineHooks hooks;
    hooks.poison_blocks = swapped;
    std::promise<void> all_there;  // no step is submitted before all requests are
    hooks.fault = [=, step = 0, ready = all_there.get_future().share()](EngineStage stage,
                                                                        SequenceId) mutable {
      if (stage == EngineStage::kSubmit) ready.wait();
      if (stage == GetParam() && ++step >= first && step <= last) throw std::runtime_error("injected");
    };
    EngineConfig config = testing::golden_config("qwen3");
    if (swapped) {
      config.block_size = 8;
      const std::size_t block_bytes = std::size_t{2} * 3 * 2 * 8 * 32 * sizeof(float);
      config.kv_cache_memory = 14 * block_bytes;
      config.swap_space = 1.0 / 64;
      config.preemption_mode = "swap";
    }
    Engine engine(config, open_model(config.model), std::move(hooks));
    std::vector<std::future<RequestOutput>> done;
    for (int i = 0; i < 3; ++i) {
      EngineRequest request = request_of(prompt_number(i));
      request.prompt.resize(std::min<std::size_t>(request.prompt.size(), 40));
      request.params.temperature = 1.5F;
      request.params.seed = 3;
      if (i == 0 && QUIRE_HAS_BEAMS) request.params.beam_width = 3;
      if (i == 1) request.params.n = 3;
      done.push_back(testing::submit(engine, std::move(request)));
    }
    all_there.set_value();
    std::vector<RequestOutput> outputs;
    for (auto& one : done) outputs.push_back(one.get());
    expect_all_blocks_free(engine);
    EXPECT_EQ(engine.stats().scheduler.num_free_host_blocks, engine.stats().scheduler.num_host_blocks);
    if (swapped && last == 0) {
      EXPECT_GT(engine.stats().scheduler.num_restored_blocks, 0U);
    }
    return outputs;
  }

  static void expect_equal(const std::vector<RequestOutput>& actual,
                           const std::vector<RequestOutput>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(actual[i].outputs.size(), expected[i].outputs.size());
      for (std::size_t j = 0; j < expected[i].outputs.size(); ++j) {
        EXPECT_EQ(actual[i].outputs[j].token_ids, expected[i].outputs[j].token_ids);
        EXPECT_EQ(actual[i].outputs[j].error, "");
      }
    }
  }
};

TEST_P(LostStepTest, IsComputedAgain) {
  const auto plain = outputs_without_steps(0, 0);
  for (const int step : {1, 2, 9}) expect_equal(outputs_without_steps(step, step), plain);
}

TEST_P(LostStepTest, IsComputedAgainWhileBlocksAreSwapped) {
  const auto plain = outputs_without_steps(0, 0);
  for (const int step : {0, 1, 9, 14, 21}) expect_equal(outputs_without_steps(step, step, true), plain);
}

TEST_P(LostStepTest, EndsEveryRequestIfAllStepsAreLost) {
  for (const RequestOutput& request : outputs_without_steps(5, 1'000'000))
    for (const CompletionOutput& output : request.outputs) EXPECT_EQ(output.error, "injected");
}

INSTANTIATE_TEST_SUITE_P(Stages, LostStepTest,
                         ::testing::Values(EngineStage::kSubmit, EngineStage::kCollect));

// The second of several outputs, or of the beams of a search, fails in planning.
std::vector<CompletionOutput> outputs_with_fault(const SamplingParams& params) {
  EngineHooks hooks;
  hooks.fault = [visits = 0](EngineStage stage, SequenceId id) mutable {
    if (stage == EngineStage::kSchedule && id == 2 && ++visits == 3) throw std::runtime_error("injected");
  };
  const EngineConfig config = testing::golden_config("qwen3");
  Engine engine(config, open_model(config.model), std::move(hooks));
  EngineRequest request = request_of(prompt_number(1));
  request.params = params;
  request.params.max_tokens = 24;
  request.params.ignore_eos = true;
  auto done = testing::submit(engine, std::move(request));
  EXPECT_THAT(submit_output(engine, request_of(prompt_number(0))).get().token_ids,
              ElementsAreArray(output_number(0)));
  const RequestOutput output = done.get();
  expect_all_blocks_free(engine);
  return output.outputs;
}

TEST(LostDeviceTest, EndsEveryRequestAndIsToldOnce) {
  const EngineConfig config = testing::golden_config("qwen3");
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCollect || stage == EngineStage::kDrop) throw std::runtime_error("it is gone");
  };
  Engine engine(config, open_model(config.model), std::move(hooks));
  std::vector<std::string> told;
  engine.on_lost([&told](const std::string& why) { told.push_back(why); });
  std::vector<std::future<CompletionOutput>> outputs;
  for (int i = 0; i < 4; ++i) outputs.push_back(submit_output(engine, request_of(prompt_number(i % 3))));
  for (auto& output : outputs) EXPECT_EQ(output.get().finish_reason, FinishReason::kError);
  EXPECT_FALSE(engine.healthy());
  EXPECT_EQ(submit_output(engine, request_of(prompt_number(0))).get().finish_reason, FinishReason::kError);
  EXPECT_THAT(told, ElementsAreArray({"it is gone"}));
  engine.on_lost([&told](const std::string& why) { told.push_back("at once: " + why); });
  EXPECT_EQ(told.back(), "at once: it is gone");
}

TEST(IsolationTest, ARoundOfBeamsThatFailsEndsItsSearch) {
  if (!QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  EngineHooks hooks;
  hooks.fault = [rounds = 0](EngineStage stage, SequenceId) mutable {
    if (stage == EngineStage::kSearch && ++rounds == 4) throw std::runtime_error("injected");
  };
  const EngineConfig config = testing::golden_config("qwen3");
  Engine engine(config, open_model(config.model), std::move(hooks));
  EngineRequest search = request_of(prompt_number(1));
  search.params.beam_width = 3;
  auto beams = submit_output(engine, std::move(search));
  EXPECT_THAT(submit_output(engine, request_of(prompt_number(0))).get().token_ids,
              ElementsAreArray(output_number(0)));
  const CompletionOutput output = beams.get();
  EXPECT_EQ(output.error, "injected");
  EXPECT_EQ(output.token_ids.size(), 3U);  // the best so far
  expect_all_blocks_free(engine);
}

TEST(IsolationTest, AnObserverThatFailsChangesNothing) {
  for (const int at : {3, 24}) {
    Engine engine(testing::golden_config("qwen3"));
    engine.observe_steps([steps = 0, at](const StepRecord&) mutable {
      if (++steps == at) throw std::runtime_error("injected");
    });
    EXPECT_THAT(submit_output(engine, request_of(prompt_number(0))).get().token_ids,
                ElementsAreArray(output_number(0)));
  }
}

TEST(IsolationTest, AnOutputThatCannotBePlannedEndsAlone) {
  SamplingParams params;
  params.seed = 5;
  params.n = 3;
  const auto outputs = outputs_with_fault(params);
  ASSERT_EQ(outputs.size(), 3U);
  for (const CompletionOutput& output : outputs) {
    EXPECT_EQ(output.error, output.index == 1 ? "injected" : "");
    EXPECT_EQ(output.finish_reason, output.index == 1 ? FinishReason::kError : FinishReason::kLength);
    EXPECT_EQ(output.token_ids.size(), output.index == 1 ? 2U : 24U);
  }
}

TEST(IsolationTest, ABeamThatCannotBePlannedEndsItsSearch) {
  if (!QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  SamplingParams params;
  params.beam_width = 3;
  for (const CompletionOutput& output : outputs_with_fault(params)) EXPECT_EQ(output.error, "injected");
}

TEST(IsolationTest, AnExceptionOfACallbackEndsItsRequest) {
  Engine engine(testing::golden_config("qwen3"));
  std::atomic<int> calls = 0;
  EngineRequest request = request_of(prompt_number(0));
  request.params.max_tokens = 900;
  request.on_update = [&](const RequestUpdate&) {
    if (++calls == 3) throw 7;
  };
  engine.submit(std::move(request));
  EXPECT_THAT(submit_output(engine, request_of(prompt_number(1))).get().token_ids,
              ElementsAreArray(output_number(1)));
  expect_all_blocks_free(engine);
  EXPECT_EQ(calls, 3);
}

// Outputs of prompts that preempt each other and hit each other's blocks.
std::vector<std::vector<TokenId>> outputs_with(EngineHooks hooks) {
  EngineConfig config = testing::golden_config("qwen3");
  config.block_size = 8;
  config.max_num_batched_tokens = 61;
  const std::size_t block_bytes = std::size_t{2} * 3 * 2 * 8 * 32 * sizeof(float);
  config.kv_cache_memory = 44 * block_bytes;
  Engine engine(config, open_model(config.model), std::move(hooks));
  std::vector<std::vector<TokenId>> tokens;
  for (int round = 0; round < 2; ++round) {
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 9; ++i) {
      EngineRequest request = request_of(prompt_number(i % 3));
      request.prompt.resize(request.prompt.size() - static_cast<std::size_t>(i / 3 % 2));
      request.params.temperature = i % 2 == 0 ? 0.0F : 1.5F;
      request.params.seed = 3;
      request.params.n = i % 2 == 0 ? 1 : 2;
      requests.push_back(std::move(request));
    }
    for (auto& request : submit(engine, std::move(requests)))
      for (const CompletionOutput& output : request.get().outputs) tokens.push_back(output.token_ids);
  }
  EXPECT_GT(engine.stats().scheduler.num_preemptions, 0U);
  EXPECT_GT(engine.stats().scheduler.prefix_cache_hits, 0U);
  return tokens;
}

TEST(IsolationTest, WhatABlockHeldBeforeAndHashesThatCollideDoNotChangeAToken) {
  const auto plain = outputs_with({});
  EXPECT_EQ(outputs_with({.prefix_hash_bits = 4}), plain);
  EXPECT_EQ(outputs_with({.prefix_hash_bits = 1, .poison_blocks = true}), plain);
}

class BrokenLogitsTest : public ::testing::TestWithParam<float> {};

// A model whose embedding of one token is broken: a prompt with that token has no finite logits.
TEST_P(BrokenLogitsTest, EndTheRequestThatHasThemAndNoOther) {
  constexpr TokenId kBroken = 639;
  const std::string name = "qwen3-untied";
  const testing::ChangedModel model(name);
  model.set_row("model.embed_tokens.weight", kBroken, std::vector<float>(128, GetParam()));
  EngineConfig config = testing::golden_config(name);
  config.model = model.directory();
  Engine engine(config);
  const auto good = [&](int i) { return testing::golden_ids(name, "prompt." + std::to_string(i)); };
  std::vector<TokenId> broken = good(2);
  broken.back() = kBroken;  // all but the end is that of a good prompt
  auto before = submit_output(engine, request_of(good(1)));
  auto victim = submit_output(engine, request_of(broken));
  auto after = submit_output(engine, request_of(good(2)));
  EXPECT_EQ(victim.get().finish_reason, FinishReason::kError);
  EXPECT_THAT(before.get().token_ids, ElementsAreArray(testing::golden_ids(name, "greedy.1")));
  EXPECT_THAT(after.get().token_ids, ElementsAreArray(testing::golden_ids(name, "greedy.2")));
  // Nothing of it stays in the blocks that the next one gets, or in the cache.
  const CompletionOutput again = submit_output(engine, request_of(broken)).get();
  EXPECT_EQ(again.error, "the model's logits are not finite numbers");
  EXPECT_TRUE(again.token_ids.empty());
  EXPECT_EQ(engine.stats().scheduler.num_invalid_logits, 2U);
  EXPECT_THAT(submit_output(engine, request_of(good(2))).get().token_ids,
              ElementsAreArray(testing::golden_ids(name, "greedy.2")));
  expect_all_blocks_free(engine);
}

INSTANTIATE_TEST_SUITE_P(Values, BrokenLogitsTest,
                         ::testing::Values(std::numeric_limits<float>::quiet_NaN(),
                                           std::numeric_limits<float>::infinity()));

}  // namespace
}  // namespace quire
