// Whatever runs beside a request, and however the engine is set up: it gets what it gets alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "sanitized.h"

namespace quire {
namespace {

constexpr int kVocabulary = 300;  // ids that every one of the models has

class Random {
 public:
  explicit Random(std::uint32_t seed) : random_(seed) {}
  int any(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool one_of(int n) { return any(1, n) == 1; }

 private:
  std::mt19937 random_;
};

// Of any kind that there is. Prompts begin alike, so that they share prefixes.
EngineRequest random_request(Random& random, bool has_tokenizer) {
  EngineRequest request;
  const int length = random.any(1, 90), document = random.any(0, 2);
  for (int i = 0; i < length; ++i)
    request.prompt.push_back(((i + 1) * (37 + document) + i * i % 11) % kVocabulary);
  SamplingParams& params = request.params;
  params.max_tokens = random.any(1, 40);
  params.ignore_eos = true;
  params.seed = random.any(0, 9);
  params.temperature = random.one_of(3) ? 0.0F : 1.2F;
  request.priority = random.any(-1, 1);
  if (random.one_of(8)) {
    request.pooling = random.one_of(2) ? Pooling::kMean : Pooling::kLast;
    return request;
  }
  if (QUIRE_HAS_BEAMS && random.one_of(5)) {
    params.beam_width = random.any(2, 4);
    params.n = *params.beam_width;
    return request;
  }
  if (params.temperature > 0) params.n = random.any(1, 3);
  if (random.one_of(3)) params.logprobs = random.any(0, 4);
  if (random.one_of(5)) params.prompt_logprobs = random.any(0, 3);
  if (random.one_of(4)) params.repetition_penalty = 1.3F;
  if (random.one_of(4)) params.presence_penalty = 0.5F;
  if (random.one_of(4)) params.top_k = random.any(1, 20);
  if (QUIRE_HAS_GRAMMAR && has_tokenizer && random.one_of(2)) {
    using Source = StructuredOutputs::Kind;
    const StructuredOutputs all[] = {
        {.kind = Source::kJsonObject},
        {.kind = Source::kRegex,
         .source = "([a-f]{1,3}, ){2,20}end",
         .free_until = random.one_of(2) ? " " : ""},
        {.kind = Source::kChoice, .source = R"(["once upon a time there was", "once upon a day", "never"])"},
        {.kind = Source::kJsonSchema, .source = R"({"type": "array", "items": {"enum": [1, "two", null]}})"}};
    params.structured_outputs = std::make_shared<const StructuredOutputs>(all[random.any(0, 3)]);
  }
  if (random.one_of(4)) params.logit_bias = {{random.any(0, 299), 3.0F}};
  return request;
}

// As numbers, bit by bit.
std::vector<float> flattened(const std::vector<PositionLogprobs>& positions) {
  std::vector<float> numbers;
  const auto add = [&](const TokenLogprob& one) {
    numbers.insert(numbers.end(),
                   {static_cast<float>(one.token_id), one.logprob, static_cast<float>(one.rank)});
  };
  for (const PositionLogprobs& position : positions) {
    add(position.token);
    for (const TokenLogprob& one : position.top) add(one);
  }
  return numbers;
}

void expect_equal(const RequestOutput& actual, const RequestOutput& expected) {
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  EXPECT_EQ(actual.embedding, expected.embedding);
  EXPECT_EQ(flattened(actual.prompt_logprobs), flattened(expected.prompt_logprobs));
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    EXPECT_EQ(actual.outputs[i].error, expected.outputs[i].error);
    EXPECT_EQ(actual.outputs[i].token_ids, expected.outputs[i].token_ids) << "output " << i;
    EXPECT_EQ(flattened(actual.outputs[i].logprobs), flattened(expected.outputs[i].logprobs));
    EXPECT_EQ(actual.outputs[i].score, expected.outputs[i].score);
  }
}

// A model, what its KV cache holds, and which layers not.
struct MixtureCase {
  std::string model, cache = "auto", skipped = {};
};

EngineConfig config_of(const MixtureCase& test) {
  EngineConfig config = testing::golden_config(test.model);
  if (test.model == "toy") config.model = QUIRE_SOURCE_DIR "/models/toy";  // the one with a tokenizer
  config.kv_cache_dtype = test.cache;
  config.kv_cache_dtype_skip_layers = test.skipped;
  config.deterministic = true;
  config.max_model_len = 200;
  config.block_size = 8;
  return config;
}

constexpr std::uint32_t kNumMixtures = testing::kSanitized ? 8 : 24;

class MixtureTest : public ::testing::TestWithParam<MixtureCase> {};

TEST_P(MixtureTest, OfAllFeaturesChangesNothing) {
  if (const std::string& model = GetParam().model; !std::filesystem::exists(config_of(GetParam()).model))
    GTEST_SKIP() << model << " is not there";
  EngineConfig plain = config_of(GetParam());
  plain.enable_prefix_caching = false;
  Engine alone(plain);
  SchedulerStats totals;
  for (std::uint32_t seed = 1; seed <= kNumMixtures; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    EngineConfig config = config_of(GetParam());
    const int widest = 200 / config.block_size * alone.config().cache.layout.num_lanes();
    config.kv_cache_memory =
        alone.config().block_bytes() * static_cast<std::size_t>(widest + random.any(0, widest));
    config.state_cache_memory =
        alone.config().cache.state_bytes() * static_cast<std::size_t>(random.any(1, 16));
    config.kv_cache_memory += config.state_cache_memory;
    config.max_num_seqs = random.any(4, 8);
    config.max_num_batched_tokens = random.any(5, 60);
    config.long_prefill_token_threshold = random.one_of(3) ? random.any(1, 20) : 0;
    config.enable_prefix_caching = !random.one_of(4);
    config.swap_space = random.one_of(2) ? 1.0 / 64 : 0;
    config.preemption_mode = config.swap_space > 0 ? "swap" : "recompute";
    config.scheduling_policy = random.one_of(2) ? "priority" : "fcfs";
    EngineHooks hooks;
    hooks.poison_blocks = true;
    hooks.prefix_hash_bits = random.one_of(2) ? 1 : 64;
    hooks.pipelined = random.one_of(2);
    Engine engine(config, open_model(config.model), std::move(hooks));
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 14; ++i) requests.push_back(random_request(random, engine.has_tokenizer()));
    // Half of them come at once, so that the cache is full however slow this thread is, the others one by
    // one.
    std::vector<std::future<RequestOutput>> outputs =
        testing::submit(engine, {requests.begin(), requests.begin() + 7});
    for (std::size_t i = outputs.size(); i < requests.size(); ++i)
      outputs.push_back(testing::submit(engine, requests[i]));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      expect_equal(outputs[i].get(), testing::submit(alone, requests[i]).get());
    }
    const SchedulerStats stats = engine.stats().scheduler;
    EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
    totals.num_preemptions += stats.num_preemptions;
    totals.num_restored_blocks += stats.num_restored_blocks;
    totals.prefix_cache_hits += stats.prefix_cache_hits;
  }
  EXPECT_GT(totals.prefix_cache_hits, 0U);
  if (!QUIRE_HAS_BEAMS) return;  // which make the cache so full that there must be preemptions
  EXPECT_GT(totals.num_preemptions, 0U);
  if (!testing::kSanitized) {  // in all the mixtures
    EXPECT_GT(totals.num_restored_blocks, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, MixtureTest,
    ::testing::Values(MixtureCase{"qwen3"}, MixtureCase{"gemma2"}, MixtureCase{"gemma3"},
                      MixtureCase{"mistral-window"}, MixtureCase{"toy"}, MixtureCase{"qwen3", "fp8"},
                      MixtureCase{"gemma2", "fp8", "sliding_window"}, MixtureCase{"gemma3", "fp8_e5m2", "1"},
                      MixtureCase{"toy", "fp8"}, MixtureCase{"qwen3_5"}, MixtureCase{"qwen3_5", "fp8"},
                      MixtureCase{"qwen3-next"}, MixtureCase{"lfm2-moe"}, MixtureCase{"gemma4"},
                      MixtureCase{"gemma4-ple"}, MixtureCase{"gemma4-ple", "fp8"},
                      MixtureCase{"gemma4-moe", "fp8", "1"}),
    [](const auto& test) {
      return testing::test_name({test.param.model, test.param.cache, test.param.skipped});
    });

}  // namespace
}  // namespace quire
