#include "inspect/recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/grammar/structured_sources.h"
#include "engine/submit.h"
#include "expect_error.h"
#include "inspect/small_shape.h"
#include "temp_dir.h"

namespace quire {
namespace {

using testing::toy_config;

constexpr int kNumRequests = 24;

// A cache that does not hold all of them, with room for what is preempted.
EngineConfig small_cache(bool with_tokens, const std::filesystem::path& path) {
  EngineConfig config = toy_config();
  config.max_num_batched_tokens = 48;
  config.max_model_len = 128;
  config.kv_cache_memory = std::size_t{1} << 18;
  config.swap_space = 1.0 / 256;
  config.record = path;
  config.record_tokens = with_tokens;
  return config;
}

// Requests of every kind that sampling knows, some of which leave.
SchedulerStats record(const EngineConfig& config, ModelFiles model) {
  std::mt19937 random(7);
  Engine engine(config, std::move(model));
  std::vector<std::future<RequestOutput>> outputs;
  const auto structures = testing::sources();
  for (int i = 0; i < kNumRequests; ++i) {
    EngineRequest request = testing::request_of({});
    for (int n = 10 + static_cast<int>(random() % 40); n > 0; --n)
      request.prompt.push_back(static_cast<TokenId>(i % 3 == 0 ? n : random() % 300));
    request.params.temperature = static_cast<float>(i % 4) * 0.4F;
    request.params.seed = random();
    request.params.max_tokens = 20 + static_cast<int>(random() % 40);
    request.params.n = i % 5 == 1 ? 3 : 1;
    if (i % 6 == 2) request.params.presence_penalty = 0.7F;
    if (i % 6 == 3) request.params.logprobs = 2;
    if (i % 6 == 4 && engine.has_tokenizer())
      request.params.structured_outputs =
          std::make_shared<const StructuredOutputs>(structures[i / 6 % structures.size()].outputs);
    outputs.push_back(testing::submit(engine, std::move(request)));
  }
  for (auto& output : outputs) output.get();
  return engine.stats().scheduler;
}

TEST(RecomputationTest, EveryTokenOfAMixtureIsComputedAgain) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  const SchedulerStats stats = record(config, open_model(config.model));
  EXPECT_GT(stats.num_preemptions, 0U);
  config.record.clear();
  const Recomputation result = recompute(Recording(path), config, open_model(config.model));
  ASSERT_FALSE(result.plans) << result.plans->what;
  ASSERT_FALSE(result.difference) << "step " << result.difference->step << ", sequence "
                                  << result.difference->sequence;
  EXPECT_TRUE(result.whole);
  EXPECT_GT(result.num_compared, 500U);
  EXPECT_GT(result.num_masked, 20U);
}

TEST(RecomputationTest, OtherWeightsAreSeenAtTheFirstTokenTheyChange) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  const auto model = [](bool tied) {
    return random_model(test::small_shape(
        "Qwen3ForCausalLM", tied ? R"({"tie_word_embeddings": true})" : R"({"tie_word_embeddings": false})"));
  };
  record(config, model(true));
  config.record.clear();
  EXPECT_TRUE(recompute(Recording(path), config, model(true)).passed());
  const Recomputation other = recompute(Recording(path), config, model(false));
  ASSERT_TRUE(other.difference);
  EXPECT_FALSE(other.plans);
  EXPECT_LE(other.difference->step, 3U);
  EXPECT_NE(other.difference->recorded, other.difference->computed);
}

TEST(RecomputationTest, SaysWhyARecordingCannotBeComputedAgain) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(false, path);
  record(config, open_model(config.model));
  config.record.clear();
  expect_error([&] { recompute(Recording(path), config, open_model(config.model)); }, {"--record-tokens"});

  config = small_cache(true, path);
  record(config, open_model(config.model));
  config.record.clear();
  config.kv_cache_memory /= 2;
  expect_error([&] { recompute(Recording(path), config, open_model(config.model)); }, {"--kv-cache-memory"});
  config.kv_cache_memory *= 2;
  config.swap_space = 0;
  expect_error([&] { recompute(Recording(path), config, open_model(config.model)); }, {"--swap-space"});
}

}  // namespace
}  // namespace quire
