// Pooled hidden states, and logits: those of Hugging Face transformers, and bitwise the same whatever else
// happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "engine/changed_model.h"
#include "engine/engine.h"
#include "engine/sampling_oracle.h"
#include "engine/submit.h"
#include "expect_error.h"

namespace quire {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int kBlockSize = 8;
constexpr std::size_t kBlockBytes = std::size_t{2} * 3 * 2 * kBlockSize * 32 * sizeof(float);  // of "qwen3"

const std::vector<TokenId> kPooledIds = {311, 4, 500};

std::vector<TokenId> golden_prompt(int i) {
  return testing::golden_ids("qwen3", "prompt." + std::to_string(i));
}

EngineRequest request_of(std::vector<TokenId> prompt, Pooling pooling) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.pooling = pooling;
  if (pooling == Pooling::kLogits) request.params.allowed_token_ids = kPooledIds;
  return request;
}

EngineRequest text_request(std::vector<TokenId> prompt, int max_tokens) {
  EngineRequest request = request_of(std::move(prompt), Pooling::kNone);
  request.params.temperature = 0;
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

EngineConfig embedding_config() {
  EngineConfig config = testing::golden_config("qwen3");
  config.deterministic = true;
  config.block_size = kBlockSize;
  return config;
}

std::vector<float> embed_alone(std::vector<TokenId> prompt, Pooling pooling) {
  Engine engine(embedding_config());
  return testing::submit(engine, request_of(std::move(prompt), pooling)).get().embedding;
}

void expect_embedded(const RequestOutput& output) {
  ASSERT_EQ(output.outputs.size(), 1U);
  EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(output.outputs[0].error, "");
  EXPECT_TRUE(output.outputs[0].token_ids.empty());
  EXPECT_EQ(output.outputs[0].text, "");
}

class EmbeddingKernelTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(EmbeddingKernelTest, IsThatOfTransformers) {
  const auto& [kernels, dtype] = GetParam();
  EngineConfig config = testing::golden_config("qwen3", dtype);
  testing::use_kernels(config, kernels);
  Engine engine(config);
  std::ifstream file(testing::golden_directory("qwen3") / "embeddings.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 3U);
  for (const auto& expected : cases) {
    for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
      const RequestOutput output =
          testing::submit(engine, request_of(golden_prompt(expected["prompt"]), pooling)).get();
      expect_embedded(output);
      const auto vector = expected[pooling == Pooling::kLast ? "last" : "mean"].get<std::vector<float>>();
      ASSERT_EQ(output.embedding.size(), vector.size());
      double square = 0;
      for (std::size_t i = 0; i < vector.size(); ++i) {
        EXPECT_NEAR(output.embedding[i], vector[i], dtype == "float32" ? 2e-5 : 2e-2);
        square += std::pow(output.embedding[i], 2);
      }
      EXPECT_NEAR(square, 1, 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, EmbeddingKernelTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kernel_names()),
                                            ::testing::Values("float32", "bfloat16", "float16")),
                         [](const auto& test) {
                           return testing::test_name({std::get<0>(test.param), std::get<1>(test.param)});
                         });

TEST_P(EmbeddingKernelTest, LogitsAreThoseOfTransformers) {
  const auto& [kernels, dtype] = GetParam();
  EngineConfig config = testing::golden_config("qwen3", dtype);
  testing::use_kernels(config, kernels);
  Engine engine(config);
  const SafetensorsFile expected(testing::golden_directory("qwen3") / "expected.safetensors");
  for (int i = 0; i < 3; ++i) {
    const std::vector<TokenId> prompt = golden_prompt(i);
    std::vector<float> last(512);
    expected.read("logits." + std::to_string(i), (prompt.size() - 1) * last.size() * sizeof(float),
                  std::as_writable_bytes(std::span(last)));
    const RequestOutput output = testing::submit(engine, request_of(prompt, Pooling::kLogits)).get();
    expect_embedded(output);
    ASSERT_EQ(output.embedding.size(), kPooledIds.size());
    for (std::size_t k = 0; k < kPooledIds.size(); ++k)
      EXPECT_NEAR(output.embedding[k], last[static_cast<std::size_t>(kPooledIds[k])],
                  dtype == "float32" ? 2e-4 : 0.3);
  }
}

TEST(EmbeddingFormTest, IsCutAndScaledAsAsked) {
  Engine engine(embedding_config());
  const auto embed = [&](int dimensions, bool normalise) {
    EngineRequest request = request_of(golden_prompt(1), Pooling::kLast);
    request.dimensions = dimensions;
    request.normalise = normalise;
    return testing::submit(engine, std::move(request)).get().embedding;
  };
  const std::vector<float> whole = embed(0, false);
  ASSERT_EQ(whole.size(), 64U);
  for (const int dimensions : {1, 5, 64}) {
    const std::vector<float> raw = embed(dimensions, false), scaled = embed(dimensions, true);
    ASSERT_EQ(raw.size(), static_cast<std::size_t>(dimensions));
    EXPECT_THAT(raw, ElementsAreArray(whole.begin(), whole.begin() + dimensions));
    double square = 0;
    for (const float value : raw) square += double{value} * double{value};
    EXPECT_GT(std::abs(square - 1), 0.1);
    for (std::size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(scaled[i], raw[i] / std::sqrt(square), 1e-6);
  }
}

TEST(EmbeddingFormTest, PooledLogitsAreOfNamedTokens) {
  EngineRequest request = request_of(golden_prompt(0), Pooling::kLogits);
  request.params.allowed_token_ids.clear();
  expect_error([&] { Engine(embedding_config()).validate(request); }, {"allowed_token_ids"});
}

class EmbeddingTest : public ::testing::TestWithParam<Pooling> {
 protected:
  // Of all golden prompts, in an engine that loses the steps that `is_lost` says.
  static std::vector<std::vector<float>> embed_losing(const std::function<bool(EngineStage)>& is_lost) {
    std::promise<void> all_there;
    EngineHooks hooks;
    hooks.fault = [&, ready = all_there.get_future().share()](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kSubmit) ready.wait();
      if (is_lost(stage)) throw std::runtime_error("injected");
    };
    EngineConfig config = embedding_config();
    config.max_num_batched_tokens = 50;
    Engine engine(config, open_model(config.model), std::move(hooks));
    std::vector<std::future<RequestOutput>> outputs;
    for (int i = 0; i < 3; ++i)
      outputs.push_back(testing::submit(engine, request_of(golden_prompt(i), GetParam())));
    all_there.set_value();
    std::vector<std::vector<float>> embeddings;
    for (auto& output : outputs) embeddings.push_back(output.get().embedding);
    return embeddings;
  }

  static std::vector<std::vector<float>> embed_each_alone() {
    std::vector<std::vector<float>> embeddings;
    for (int i = 0; i < 3; ++i) embeddings.push_back(embed_alone(golden_prompt(i), GetParam()));
    return embeddings;
  }
};

TEST_P(EmbeddingTest, IsTheSameInAnyChunksAmongOthersAndBehindACachedPrefix) {
  const auto alone = embed_each_alone();
  for (const int chunk : {1, 13, 50, 1000}) {
    EngineConfig config = embedding_config();
    config.max_num_batched_tokens = chunk;
    config.max_num_seqs = std::min(config.max_num_seqs, chunk);
    Engine engine(config);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::future<RequestOutput>> texts, embeddings;
      for (int i = 0; i < 3; ++i) {
        texts.push_back(testing::submit(engine, text_request(golden_prompt(i), 24)));
        embeddings.push_back(testing::submit(engine, request_of(golden_prompt(i), GetParam())));
      }
      for (int i = 0; i < 3; ++i) {
        const RequestOutput output = embeddings[static_cast<std::size_t>(i)].get();
        expect_embedded(output);
        EXPECT_EQ(output.embedding, alone[static_cast<std::size_t>(i)]) << "chunk " << chunk;
        if (GetParam() == Pooling::kMean) {
          EXPECT_EQ(output.num_cached_tokens, 0);
        } else if (round == 1) {
          EXPECT_GE(output.num_cached_tokens, std::ssize(golden_prompt(i)) - kBlockSize);
        }
        const RequestOutput text = texts[static_cast<std::size_t>(i)].get();
        EXPECT_THAT(text.outputs[0].token_ids,
                    ElementsAreArray(testing::golden_ids("qwen3", "greedy." + std::to_string(i))));
        EXPECT_TRUE(text.embedding.empty());
      }
    }
    EXPECT_EQ(engine.stats().scheduler.num_free_blocks, engine.stats().scheduler.num_blocks);
  }
}

// Two texts that grow take the blocks of a prompt of which some chunks are computed.
TEST_P(EmbeddingTest, IsTheSameAfterAPreemption) {
  const std::vector<float> alone = embed_alone(golden_prompt(2), GetParam());
  for (const double swap_space : {0.0, 1.0 / 64}) {
    EngineConfig config = embedding_config();
    config.max_num_batched_tokens = 10;
    config.kv_cache_memory = 28 * kBlockBytes;
    config.enable_prefix_caching = false;
    config.swap_space = swap_space;
    config.preemption_mode = swap_space > 0 ? "swap" : "recompute";
    EngineHooks hooks;
    hooks.poison_blocks = true;
    std::promise<void> all_there;
    hooks.fault = [ready = all_there.get_future().share()](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kSubmit) ready.wait();
    };
    Engine engine(config, open_model(config.model), std::move(hooks));
    std::vector<std::future<RequestOutput>> texts;
    for (int i = 0; i < 2; ++i) {
      std::vector<TokenId> prompt = golden_prompt(1);
      prompt.resize(30);
      texts.push_back(testing::submit(engine, text_request(std::move(prompt), 60)));
    }
    auto done = testing::submit(engine, request_of(golden_prompt(2), GetParam()));
    all_there.set_value();
    const RequestOutput output = done.get();
    expect_embedded(output);
    EXPECT_EQ(output.embedding, alone);
    EXPECT_GT(output.outputs[0].num_preemptions, 0);
    const bool saves = swap_space > 0 && GetParam() != Pooling::kMean;
    EXPECT_EQ(engine.stats().scheduler.num_restored_blocks > 0, saves);
    EXPECT_EQ(texts[0].get().outputs[0].token_ids, texts[1].get().outputs[0].token_ids);
  }
}

TEST_P(EmbeddingTest, IsTheSameWhenStepsAreLost) {
  const auto alone = embed_each_alone();
  for (const EngineStage lost : {EngineStage::kSubmit, EngineStage::kCollect}) {
    for (const int step : {0, 1, 2, 3}) {
      int visits = 0;
      EXPECT_EQ(embed_losing([&](EngineStage stage) { return stage == lost && visits++ == step; }), alone);
      EXPECT_GT(visits, step);
    }
  }
}

// On a synchronous backend, too: a step's result waits on the host while the next one is computed.
TEST_P(EmbeddingTest, IsTheSameWithTwoStepsInFlight) {
  std::vector<SequenceRequest> requests;
  for (SequenceId id = 0; id < 5; ++id) {
    SequenceRequest request;
    request.id = id;
    request.prompt = golden_prompt(static_cast<int>(id % 3));
    request.prompt.pop_back();
    request.prompt_output = GetParam() == Pooling::kLast   ? OutputKind::kLastHidden
                            : GetParam() == Pooling::kMean ? OutputKind::kHiddenMean
                                                           : OutputKind::kLastLogits;
    if (GetParam() == Pooling::kLogits) request.sampling.allowed_ids = kPooledIds;
    requests.push_back(std::move(request));
  }
  testing::SamplingRig one(64), two(64);
  const auto expected = one.run(requests, 1);
  const auto actual = two.run(requests, 2);
  for (SequenceId id = 0; id < 5; ++id) {
    ASSERT_EQ(actual.at(id).size(), 1U);
    EXPECT_FALSE(actual.at(id)[0].token.has_value());
    EXPECT_EQ(actual.at(id)[0].hidden.size(), GetParam() == Pooling::kLogits ? kPooledIds.size() : 64U);
    EXPECT_EQ(actual.at(id)[0].hidden, expected.at(id)[0].hidden);
  }
}

TEST_P(EmbeddingTest, IsOfAWholeContextAtMost) {
  EngineConfig config = embedding_config();
  config.max_model_len = 64;
  Engine engine(config);
  std::vector<TokenId> prompt = golden_prompt(2);
  prompt.resize(65);
  const RequestOutput refused = testing::submit(engine, request_of(prompt, GetParam())).get();
  EXPECT_THAT(refused.outputs[0].error, HasSubstr("at most 64"));
  prompt.resize(64);
  const RequestOutput whole = testing::submit(engine, request_of(prompt, GetParam())).get();
  expect_embedded(whole);
  EXPECT_EQ(whole.embedding, embed_alone(prompt, GetParam()));
}

TEST_P(EmbeddingTest, FailsWithItsRequestWhereAHiddenStateIsNoNumber) {
  constexpr TokenId kBroken = 511;
  const testing::ChangedModel model("qwen3");
  model.set_row("model.embed_tokens.weight", kBroken,
                std::vector<float>(64, std::numeric_limits<float>::quiet_NaN()));
  EngineConfig config = embedding_config();
  config.model = model.directory();
  Engine engine(config);
  std::vector<TokenId> broken = golden_prompt(1);
  broken.back() = kBroken;
  for (int round = 0; round < 2; ++round) {
    auto victim = testing::submit(engine, request_of(broken, GetParam()));
    auto beside = testing::submit(engine, request_of(golden_prompt(1), GetParam()));
    const RequestOutput output = victim.get();
    EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kError);
    const std::string what = GetParam() == Pooling::kLogits ? "logits" : "hidden states";
    EXPECT_EQ(output.outputs[0].error, "the model's " + what + " are not finite numbers");
    EXPECT_TRUE(output.embedding.empty());
    EXPECT_EQ(beside.get().embedding, embed_alone(golden_prompt(1), GetParam()));
  }
}

TEST_P(EmbeddingTest, FailsWhereItHasNoDirection) {
  if (GetParam() == Pooling::kLogits) GTEST_SKIP() << "logits are not scaled";
  const testing::ChangedModel model("qwen3");
  model.set_row("model.norm.weight", 0, std::vector<float>(64, 0));
  EngineConfig config = embedding_config();
  config.model = model.directory();
  Engine engine(config);
  const RequestOutput output = testing::submit(engine, request_of(golden_prompt(0), GetParam())).get();
  EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kError);
  EXPECT_THAT(output.outputs[0].error, HasSubstr("is zero"));
  EXPECT_TRUE(output.embedding.empty());
}

TEST_P(EmbeddingTest, ExcludesWhatOutputsAreAskedFor) {
  const Engine engine(embedding_config());
  const auto refused = [&](const std::string& what, const auto& ask) {
    EngineRequest request = request_of(golden_prompt(0), GetParam());
    EXPECT_NO_THROW(engine.validate(request));
    ask(request);
    try {
      engine.validate(request);
      ADD_FAILURE() << what << " is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "pooling and " + what + " exclude each other");
    }
  };
  refused("n", [](EngineRequest& request) { request.params.n = 2; });
  refused("best_of", [](EngineRequest& request) { request.params.best_of = 1; });
  if (QUIRE_HAS_BEAMS && GetParam() != Pooling::kLogits)  // else allowed_token_ids exclude them first
    refused("beam_width", [](EngineRequest& request) { request.params.beam_width = 2; });
  refused("logprobs", [](EngineRequest& request) { request.params.logprobs = 0; });
  refused("prompt_logprobs", [](EngineRequest& request) { request.params.prompt_logprobs = 0; });
  refused("the prompt's logits", [](EngineRequest& request) { request.prompt_logits = true; });
}

INSTANTIATE_TEST_SUITE_P(Poolings, EmbeddingTest,
                         ::testing::Values(Pooling::kLast, Pooling::kMean, Pooling::kLogits),
                         [](const auto& test) {
                           return test.param == Pooling::kLast   ? "last"
                                  : test.param == Pooling::kMean ? "mean"
                                                                 : "logits";
                         });

}  // namespace
}  // namespace quire
