// Layers with heads of other numbers and sizes in one cache, values that are keys, layers without keys of
// their own, per-layer embeddings and experts beside the MLP: Gemma 4 with random weights. What a crowd in a
// small cache generates is what each generates alone.
#include <gtest/gtest.h>

#include <future>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/submit.h"
#include "inspect/small_shape.h"

namespace quire {
namespace {

constexpr char kShared[] = R"({"num_hidden_layers": 5, "head_dim": 16, "global_head_dim": 40,
    "sliding_window": 16, "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]})";
constexpr char kExperts[] = R"({"num_hidden_layers": 3, "head_dim": 16, "global_head_dim": 32,
    "attention_k_eq_v": true, "num_global_key_value_heads": 1, "sliding_window": 16, "hidden_size_per_layer_input": null,
    "enable_moe_block": true, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]})";

using HeadsCase = std::tuple<const char*, const char*, int>;  // config.json, kv-cache-dtype, ranks

EngineConfig config_of(const HeadsCase& test) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.kv_cache_dtype = std::get<1>(test);
  config.tensor_parallel_size = std::get<2>(test);
  config.block_size = 8;
  config.max_model_len = 160;
  config.max_num_seqs = 6;
  config.max_num_batched_tokens = 20;
  config.swap_space = 1.0 / 64;
  config.preemption_mode = "swap";
  return config;
}

EngineRequest request_of(int which) {
  EngineRequest request;
  for (int i = 0; i < 20 + 6 * which; ++i)
    request.prompt.push_back((i * 37 + (i < 16 ? 0 : which) * 101 + i * i % 11) % 320);
  request.params.max_tokens = 60;
  request.params.ignore_eos = true;
  request.params.n = which % 3 == 0 ? 2 : 1;
  request.params.temperature = which % 3 == 0 ? 1.0F : 0.0F;
  request.params.seed = which;
  return request;
}

class MixedHeadsTest : public ::testing::TestWithParam<HeadsCase> {};

TEST_P(MixedHeadsTest, ACrowdInASmallCacheGeneratesWhatEachDoesAlone) {
  const Shape shape = test::small_shape("Gemma4ForCausalLM", std::get<0>(GetParam()));
  EngineConfig config = config_of(GetParam());
  Engine alone(config, random_model(shape));
  config.kv_cache_memory = alone.config().block_bytes() * 60;
  EngineHooks hooks;
  hooks.poison_blocks = true;
  Engine crowded(config, random_model(shape), std::move(hooks));
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(request_of(i));
  std::vector<std::future<RequestOutput>> outputs = testing::submit(crowded, std::move(requests));
  for (int i = 0; i < 8; ++i) {
    const RequestOutput actual = outputs[static_cast<std::size_t>(i)].get();
    const RequestOutput expected = testing::submit(alone, request_of(i)).get();
    ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
    for (std::size_t o = 0; o < expected.outputs.size(); ++o)
      EXPECT_EQ(actual.outputs[o].token_ids, expected.outputs[o].token_ids) << i;
  }
  const SchedulerStats stats = crowded.stats().scheduler;
  EXPECT_GT(stats.num_preemptions, 0U);
  EXPECT_GT(stats.prefix_cache_hits, 0U);
}

TEST(MixedHeadsRanksTest, TwoRanksGenerateWhatOneDoes) {
  for (const char* keys : {kShared, kExperts}) {
    const Shape shape = test::small_shape("Gemma4ForCausalLM", keys);
    Engine one(config_of({keys, "auto", 1}), random_model(shape));
    Engine two(config_of({keys, "auto", 2}), random_model(shape));
    EXPECT_EQ(testing::submit(two, request_of(1)).get().outputs.front().token_ids,
              testing::submit(one, request_of(1)).get().outputs.front().token_ids);
  }
}

std::string name_of_case(const ::testing::TestParamInfo<HeadsCase>& test) {
  const auto& [keys, cache, ranks] = test.param;
  return std::string(keys == kShared ? "shared_" : "experts_") + cache + "_" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(All, MixedHeadsTest,
                         ::testing::Combine(::testing::Values(kShared, kExperts),
                                            ::testing::Values("auto", "fp8"), ::testing::Values(1, 2)),
                         name_of_case);

}  // namespace
}  // namespace quire
