// A model spread over ranks in threads gives what one rank gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/registry.h"
#include "base/error.h"
#include "checkpoint/model_config.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/ranks.h"
#include "engine/submit.h"
#include "inspect/shapes.h"
#include "inspect/verify.h"
#include "models/model.h"
#include "parallel/lone_rank.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EngineConfig config_of(const std::string& model, int ranks, const std::string& dtype = "float32",
                       const std::string& device = "cpu", const std::string& cache = "auto") {
  EngineConfig config = testing::golden_config(model, dtype);
  config.kv_cache_dtype = cache;
  config.device = device;
  config.tensor_parallel_size = ranks;
  return config;
}

std::vector<std::string> devices(int ranks) {
  return testing::num_gpus() >= ranks ? std::vector<std::string>{"cpu", "cuda"}
                                      : std::vector<std::string>{"cpu"};
}

EngineRequest greedy(std::vector<TokenId> prompt, int max_tokens = 24) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0;
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

// Logits of a golden prompt's every position, then tokens that follow it.
struct Answer {
  std::vector<float> logits;
  std::vector<TokenId> tokens;
  bool operator==(const Answer&) const = default;
};

std::vector<Answer> answers(const EngineConfig& config, const std::string& model) {
  Engine engine(config, open_model(config.model));
  std::vector<std::future<Answer>> pending;
  for (int i = 0; i < testing::num_golden_prompts(model); ++i) {
    EngineRequest request = greedy(testing::golden_ids(model, "prompt." + std::to_string(i)));
    request.prompt_logits = true;
    auto done = std::make_shared<std::promise<Answer>>();
    pending.push_back(done->get_future());
    request.on_update = [done, answer = Answer{}](const RequestUpdate& update) mutable {
      answer.logits.insert(answer.logits.end(), update.logits.begin(), update.logits.end());
      answer.tokens = update.output.token_ids;
      if (update.finished) done->set_value(std::move(answer));
    };
    engine.submit(std::move(request));
  }
  std::vector<Answer> result;
  for (auto& answer : pending) result.push_back(answer.get());
  return result;
}

// Model, ranks, dtype, device, KV cache.
using RanksCase = std::tuple<std::string, int, std::string, std::string, std::string>;

class TensorParallelTest : public ::testing::TestWithParam<RanksCase> {};

TEST_P(TensorParallelTest, EqualsHuggingFaceWithinTheLimits) {
  const auto& [model, ranks, dtype, device, cache] = GetParam();
  const EngineConfig config = config_of(model, ranks, dtype, device, cache);
  int count = 0;
  const auto check = [&](const VerifyResult& result) {
    ++count;
    EXPECT_TRUE(result.passed()) << "prompt " << result.prompt << ", chunk " << result.chunk_size
                                 << ", error " << result.error;
  };
  verify(config, check);
  EXPECT_GE(count, 4);
}

TEST_P(TensorParallelTest, IsBitwiseStableAndHasTheTokensOfOneRank) {
  const auto& [model, ranks, dtype, device, cache] = GetParam();
  EngineConfig config = config_of(model, ranks, dtype, device, cache);
  config.deterministic = device == "cuda";  // else bits depend on who shares a step
  const std::vector<Answer> first = answers(config, model);
  EXPECT_TRUE(answers(config, model) == first);
  if (dtype != "float32") return;  // two tokens may be equally likely
  config.tensor_parallel_size = 1;
  const std::vector<Answer> alone = answers(config, model);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(first[i].tokens, alone[i].tokens) << i;
}

// Over as many ranks as divide the heads. Some models have one or two KV heads, which more ranks replicate,
// and vocabularies that have to be padded.
std::vector<RanksCase> cases() {
  std::vector<RanksCase> result;
  for (const std::string& model : testing::golden_models()) {
    const auto config = ModelConfig::from_file(testing::golden_directory(model) / "config.json");
    const ModelSpec spec = find_model_family(config.architecture()).describe(config);
    for (const int ranks : {2, 4}) {
      if (model == "toy" || spec.num_heads % ranks != 0) continue;
      for (const std::string& device : devices(ranks)) {
        result.emplace_back(model, ranks, "float32", device, "auto");
        result.emplace_back(model, ranks, "bfloat16", device, "auto");
        if (model == "qwen3" || model == "gemma2")
          result.emplace_back(model, ranks, "float32", device, "fp8");
      }
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Golden, TensorParallelTest, ::testing::ValuesIn(cases()), [](const auto& test) {
  return testing::test_name({std::get<0>(test.param), std::to_string(std::get<1>(test.param)),
                             std::get<2>(test.param), std::get<3>(test.param), std::get<4>(test.param)});
});

// Requests that share a prefix, in a cache too small for all of them.
std::vector<std::vector<TokenId>> crowd(const std::string& device, int ranks, SchedulerStats* stats,
                                        bool disable_custom_all_reduce = false) {
  EngineConfig config = config_of("qwen3", ranks, "float32", device);
  config.disable_custom_all_reduce = disable_custom_all_reduce;
  config.block_size = 8;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory = 24 * Engine(config).config().block_bytes();
  EngineHooks hooks;
  hooks.poison_blocks = true;
  Engine engine(config, open_model(config.model), std::move(hooks));
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 8; ++i) {
    std::vector<TokenId> prompt;
    for (int t = 0; t < 20 + 3 * i; ++t) prompt.push_back((t * 37 + (t < 16 ? 0 : i) * 101) % 512);
    requests.push_back(greedy(std::move(prompt), 60));
  }
  std::vector<std::vector<TokenId>> result;
  for (auto& output : testing::submit(engine, std::move(requests)))
    result.push_back(output.get().outputs.front().token_ids);
  *stats = engine.stats().scheduler;
  return result;
}

TEST(RankGroupTest, PreemptionAndPrefixHitsChangeNothing) {
  for (const int ranks : {2, 4}) {
    for (const std::string& device : devices(ranks)) {
      SchedulerStats stats;
      const auto alone = crowd(device, 1, &stats);
      EXPECT_EQ(crowd(device, ranks, &stats), alone) << device;
      EXPECT_GT(stats.num_preemptions, 0U);
      EXPECT_GT(stats.prefix_cache_hits, 0U);
    }
  }
}

// 19 at first, of which two cannot be drawn by one rank alone, then fewer and fewer.
std::vector<std::vector<TokenId>> draws(const std::string& device, int ranks) {
  EngineConfig config = config_of("qwen3", ranks, "float32", device);
  config.max_num_seqs = 24;
  Engine engine(config, open_model(config.model));
  std::vector<std::future<RequestOutput>> outputs;
  for (int i = 0; i < 19; ++i) {
    EngineRequest request = greedy(testing::golden_ids("qwen3", "prompt." + std::to_string(i % 3)), 30 + i);
    if (i % 4 != 0) request.params.temperature = 0.9F;
    if (i % 4 == 2) request.params.top_p = 0.9F;
    request.params.seed = 100 + static_cast<std::uint64_t>(i);
    if (i == 5 || i == 17) {
      request.params.presence_penalty = 0.5F;
      request.params.logprobs = 2;
      request.params.max_tokens = 9;
    }
    outputs.push_back(testing::submit(engine, std::move(request)));
  }
  std::vector<std::vector<TokenId>> result;
  for (auto& output : outputs) result.push_back(output.get().outputs.front().token_ids);
  return result;
}

TEST(RankGroupTest, ManySequencesAreDrawnAsByOneRank) {
  for (const int ranks : {2, 4}) {
    for (const std::string& device : devices(ranks))
      EXPECT_EQ(draws(device, ranks), draws(device, 1)) << device;
  }
}

// Sums of such sizes go in two trips.
TEST(RankGroupTest, LongPromptsOverGpusGiveTheTokensOfOne) {
  if (testing::num_gpus() < 2) GTEST_SKIP() << "no two GPUs here";
  const auto tokens = [](int ranks) {
    EngineConfig config;
    config.device = "cuda";
    config.dtype = "float32";
    config.max_num_batched_tokens = 2000;
    config.kv_cache_memory = std::uint64_t{1} << 30;
    config.tensor_parallel_size = ranks;
    Engine engine(config, random_model(find_shape("qwen3-0.6b")));
    std::vector<std::future<RequestOutput>> outputs;
    for (int i = 0; i < 3; ++i) {
      std::vector<TokenId> prompt;
      for (int t = 0; t < 900 + i; ++t) prompt.push_back((t * 7919 + i * 101) % 150'000);
      outputs.push_back(testing::submit(engine, greedy(std::move(prompt), 12)));
    }
    std::vector<std::vector<TokenId>> result;
    for (auto& output : outputs) result.push_back(output.get().outputs.front().token_ids);
    return result;
  };
  const auto alone = tokens(1);
  EXPECT_EQ(tokens(2), alone);
  if (testing::num_gpus() < 4) return;
  EXPECT_EQ(tokens(4), alone);
}

TEST(RankGroupTest, NcclGivesTheSameTokens) {
  if (testing::num_gpus() < 2) GTEST_SKIP() << "no two GPUs here";
  SchedulerStats stats;
  EXPECT_EQ(crowd("cuda", 2, &stats, true), crowd("cuda", 1, &stats));
}

// Of three prompts, each three times at once, of the model "qwen3".
void expect_golden_tokens(Engine& engine) {
  std::vector<std::future<RequestOutput>> outputs;
  for (int i = 0; i < 9; ++i)
    outputs.push_back(
        testing::submit(engine, greedy(testing::golden_ids("qwen3", "prompt." + std::to_string(i % 3)))));
  for (int i = 0; i < 9; ++i)
    EXPECT_EQ(outputs[static_cast<std::size_t>(i)].get().outputs.front().token_ids,
              testing::golden_ids("qwen3", "greedy." + std::to_string(i % 3)));
  EXPECT_TRUE(engine.healthy());
}

TEST(RankGroupTest, AStepThatFailsIsComputedAgainOnEveryRank) {
  const EngineConfig config = config_of("qwen3", 2);
  for (const EngineStage stage : {EngineStage::kSubmit, EngineStage::kCollect}) {
    std::atomic<int> visits = 0;
    EngineHooks hooks;
    hooks.fault = [stage, &visits](EngineStage at, SequenceId) {
      if (at == stage && ++visits % 25 == 3) throw std::runtime_error("injected");
    };
    Engine engine(config, open_model(config.model), std::move(hooks));
    expect_golden_tokens(engine);
    EXPECT_GT(visits, 28);
  }
}

// Rank 1 fails while rank 0 waits for it in the step's first sum.
TEST(RankGroupTest, AStepThatFailsOnAnotherRankIsComputedAgain) {
  const EngineConfig config = config_of("qwen3", 4);
  std::atomic<int> steps = 0;
  EngineHooks hooks;
  hooks.fault = [&steps](EngineStage at, SequenceId rank) {
    if (at == EngineStage::kRank && rank == 1 && ++steps % 25 == 3) throw std::runtime_error("injected");
  };
  Engine engine(config, open_model(config.model), std::move(hooks));
  expect_golden_tokens(engine);
  EXPECT_GT(steps, 28);
}

// A group of two, of which rank 0 alone is there: what the other answers is said here.
class HalfGroup : public RankGroup {
 public:
  explicit HalfGroup(const EngineSetup& setup)
      : RankGroup(setup, device_options(setup.config),
                  [this](Backend& backend) { return std::make_unique<Told>(backend, times_told); }) {}

  RankAnswer of_the_other;
  int times_told = 0;  // that rank 0 is to wait for nobody

 protected:
  RankAnswer answer(int, double) override { return of_the_other; }

 private:
  class Told : public SingleRank {
   public:
    Told(Device& device, int& times) : SingleRank(device), times_(times) {}
    void abandon() override { ++times_; }

   private:
    int& times_;
  };
};

// On a GPU its kernels may wait for that one.
TEST(RankGroupTest, RankZeroWaitsNoLongerForARankThatFailed) {
  const EngineSetup setup{config_of("qwen3", 2), open_model(config_of("qwen3", 2).model)};
  HalfGroup group(setup);
  group.of_the_other.common = "on a CPU true\n";
  group.open();
  EXPECT_EQ(group.times_told, 0);
  group.of_the_other.error = "rank 1 of 2: injected";
  EXPECT_THROW(group.resolve(), Error);
  EXPECT_EQ(group.times_told, 1);
}

// A rank on a GPU, in a step that is not to be.
class LostRankTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::num_gpus() < 2) GTEST_SKIP() << "no two GPUs here";
  }

  // `step` is what rank 1 does before its n-th step. Every request ends with an error, and why is said once.
  void expect_lost(int n, const std::function<void()>& step, const ::testing::Matcher<std::string>& why) {
    EngineConfig config = config_of("qwen3", 2, "float32", "cuda");
    config.kv_cache_memory = 1 << 22;
    config.watchdog = 0.5;
    EngineHooks hooks;
    hooks.fault = [&step, n, steps = 0](EngineStage at, SequenceId rank) mutable {
      if (at == EngineStage::kRank && rank == 1 && ++steps == n) step();
    };
    Engine engine(config, open_model(config.model), std::move(hooks));
    std::promise<std::string> lost;
    engine.on_lost([&lost](const std::string& reason) { lost.set_value(reason); });
    auto output = testing::submit(engine, greedy(testing::golden_ids("qwen3", "prompt.0"), 40));
    auto reason = lost.get_future();
    ASSERT_EQ(reason.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_THAT(reason.get(), why);
    ended_ = true;
    EXPECT_EQ(output.get().outputs.front().finish_reason, FinishReason::kError);
    EXPECT_FALSE(engine.healthy());
  }

  std::atomic<bool> ended_ = false;
};

TEST_F(LostRankTest, ThatFailsIsNamed) {
  expect_lost(
      3, [] { throw std::runtime_error("injected"); },
      AllOf(HasSubstr("rank 1 of 2: injected"), HasSubstr("step")));
}

// In the first step rank 0 waits in the step's first sum; later for an answer to the step before.
TEST_F(LostRankTest, ThatHangsIsNamedWithinTheWatchdogsTime) {
  for (const int step : {1, 3}) {
    ended_ = false;
    std::chrono::steady_clock::duration taken{};
    expect_lost(
        step,
        [&] {
          const auto begin = std::chrono::steady_clock::now();
          while (!ended_ && std::chrono::steady_clock::now() - begin < std::chrono::seconds(15))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          taken = std::chrono::steady_clock::now() - begin;
        },
        AllOf(HasSubstr("rank 1 of 2"), HasSubstr("lost"), HasSubstr("for 0.5 s"), HasSubstr("step")));
    EXPECT_LT(taken, std::chrono::seconds(2)) << "step " << step;
  }
}

void expect_refused(const EngineConfig& config, const ::testing::Matcher<std::string>& why) {
  try {
    const Engine engine(config, open_model(config.model));
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), why);
  }
}

TEST(RankGroupTest, WhatCannotBeDividedIsRefused) {
  expect_refused(config_of("qwen3", 3), AllOf(HasSubstr("attention heads"), HasSubstr("3 ranks")));
  expect_refused(config_of("qwen3", 0), HasSubstr("tensor-parallel-size is 0"));
  expect_refused(config_of("qwen3", -2), HasSubstr("tensor-parallel-size is -2"));
  expect_refused(config_of("qwen3", 5000), HasSubstr("tensor-parallel-size is 5000"));
}

TEST(RankGroupTest, GroupsThatRanksWouldCutAreRefusedByTheFlag) {
  EngineConfig config = config_of("cohere2", 4);  // 80 columns of down_proj
  config.quantization = "nf4";
  expect_refused(config, AllOf(HasSubstr("quantization nf4"), HasSubstr("groups of 64"), HasSubstr("4 ranks"),
                               HasSubstr("20 of the 80 columns of model.layers.0.mlp.down_proj")));
}

TEST(RankGroupTest, ARankThatCannotLoadIsNamed) {
  const EngineConfig config = config_of("qwen3", 2);
  ModelFiles model = open_model(config.model);
  const auto rank_0 = std::this_thread::get_id();
  model.open_weights = [open = model.open_weights, rank_0] {
    if (std::this_thread::get_id() != rank_0) throw Error("the disk is gone");
    return open();
  };
  try {
    const Engine engine(config, std::move(model));
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("rank 1 of 2: the disk is gone"));
  }
}

}  // namespace
}  // namespace quire
