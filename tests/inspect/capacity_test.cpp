#include "inspect/capacity.h"

#include <gtest/gtest.h>

#include <future>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/isa.h"
#include "backends/registry.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "inspect/small_shape.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"
#if QUIRE_HAS_SIMD
#include "backends/cpu/simd/simd_backend.h"
#endif

namespace quire {
namespace {

using test::small_shape;

// What is really allocated. Experts are made of matrices.
template <typename CpuBackend>
class CountingBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  Buffer allocate(std::size_t bytes, MemoryKind kind) override {
    Buffer buffer = CpuBackend::allocate(bytes, kind);
    if (!packing_) (kind == MemoryKind::kHost ? in_host_memory : on_device) += buffer.bytes();
    return buffer;
  }
  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) override {
    packing_ = true;
    auto matrix = CpuBackend::make_linear(parts, dtype);
    packing_ = false;
    in_weights += matrix->bytes();
    return matrix;
  }

  std::size_t in_weights = 0, on_device = 0, in_host_memory = 0;

 private:
  bool packing_ = false;
};

EngineConfig small_config(const std::string& dtype) {
  EngineConfig config;
  config.dtype = dtype;
  config.max_num_seqs = 3;
  config.max_num_batched_tokens = 40;
  config.max_model_len = 100;
  return config;
}

// On a new CountingBackend.
template <typename CountingBackend>
void expect_allocates_what_was_planned(CountingBackend& backend, const ModelFiles& model,
                                       const EngineConfig& asked) {
  SingleRank comm(backend);
  const auto formats = model.open_formats();
  const RuntimeConfig config = resolve_config(asked, model.config, backend, comm, formats.get());
  const MemoryPlan plan = plan_memory(backend, comm, config, model.config, formats.get());
  EXPECT_EQ(backend.in_weights + backend.on_device + backend.in_host_memory, 0U) << "planning allocated";

  const ModelRunner runner(backend, comm, config, model.config, *model.open_weights());
  EXPECT_EQ(plan.weights, backend.in_weights);
  EXPECT_EQ(plan.workspace + plan.kv_cache, backend.on_device);
  EXPECT_EQ(plan.host + plan.swap_space, backend.in_host_memory);
  EXPECT_EQ(plan.swap_space > 0, asked.swap_space > 0);
  EXPECT_EQ(plan.kv_cache, config.cache_bytes());
  EXPECT_GT(plan.workspace, 0U);
}

// make_backend: a new CountingBackend.
template <typename MakeBackend>
void expect_allocates_what_was_planned(const MakeBackend& make_backend) {
  const Shape shapes[] = {
      small_shape(),
      small_shape("Qwen3ForCausalLM", "{}"),
      small_shape("Qwen3MoeForCausalLM", R"({"num_experts": 5, "num_experts_per_tok": 2})"),
      small_shape("Qwen3NextForCausalLM", R"({"head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "moe_intermediate_size": 32, "full_attention_interval": 2})"),
      small_shape("Lfm2ForCausalLM", R"({"full_attn_idxs": [1]})"),
      small_shape("GPT2LMHeadModel", "{}"),
      small_shape("BloomForCausalLM", "{}"),
      small_shape("Gemma4ForCausalLM", R"({"num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 40,
          "sliding_window_pattern": 2, "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 2})"),
      small_shape("Gemma4ForCausalLM", R"({"head_dim": 16, "global_head_dim": 32, "attention_k_eq_v": true,
          "num_global_key_value_heads": 1, "sliding_window_pattern": 2, "hidden_size_per_layer_input": 0,
          "enable_moe_block": true, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 32})")};
  for (const std::string dtype : {"auto", "float32"}) {
    for (const Shape& shape : shapes) {
      EngineConfig asked = small_config(dtype);
      asked.swap_space = &shape == &shapes[0] ? 0.001 : 0;
      expect_allocates_what_was_planned(*make_backend(), random_model(shape), asked);
    }
    for (const std::string& name : testing::quantized_models()) {
      SCOPED_TRACE(name);
      EngineConfig asked = small_config(dtype);
      asked.swap_space = 0;
      expect_allocates_what_was_planned(*make_backend(), open_model(testing::golden_directory(name).string()),
                                        asked);
    }
  }
}

TEST(CapacityTest, TheRunnerAllocatesWhatWasPlanned) {
  expect_allocates_what_was_planned([] { return std::make_unique<CountingBackend<ReferenceBackend>>(); });
#if QUIRE_HAS_SIMD
  const CpuIsa isa = resolve_isa("auto");
  if (isa == CpuIsa::kReference) return;
  expect_allocates_what_was_planned(
      [isa] { return std::make_unique<CountingBackend<SimdBackend>>(isa, usable_cores()); });
#endif
}

// On a GPU that nobody else uses meanwhile.
TEST(CapacityTest, AGpuHoldsThePlanAndLittleElse) {
  if (const std::string problem = inspect_machine().gpus.problem; !problem.empty()) GTEST_SKIP() << problem;
  const auto observer = make_backend({.device = "cuda"});
  const std::size_t before = observer->used_memory();
  EngineConfig config;
  config.device = "cuda";
  config.max_model_len = 4096;
  Engine engine(config, random_model(find_shape("qwen3-0.6b")));
  EngineRequest request;
  request.prompt.assign(3000, 7);
  request.params.max_tokens = 20;
  request.params.ignore_eos = true;
  std::promise<void> done;
  request.on_update = [&](const RequestUpdate& update) {
    if (update.finished) done.set_value();
  };
  engine.submit(std::move(request));
  done.get_future().wait();
  const MemoryPlan& plan = engine.memory_plan();
  const std::size_t planned = plan.weights + plan.workspace + plan.kv_cache;
  const std::size_t taken = observer->used_memory() - before;
  EXPECT_GE(taken, planned);
  EXPECT_LE(taken, planned + (std::size_t{256} << 20));
}

TEST(CapacityTest, TheEngineHasThePlanThatWasShown) {
  const Shape shape = small_shape();
  const Capacity shown = plan_capacity(small_config("auto"), shape_config(shape), 0);
  const Engine engine(small_config("auto"), random_model(shape));
  EXPECT_EQ(engine.memory_plan().total(), shown.plan.total());
  EXPECT_EQ(engine.config().num_blocks, shown.config.num_blocks);
  EXPECT_TRUE(shown.fits());
}

TEST(CapacityTest, AnEngineGivenTheCacheThatFitsUsesTheMemoryUpToABlock) {
  const Shape shape = small_shape();
  constexpr std::size_t kMemory = std::size_t{8} << 20;
  const Capacity shown = plan_capacity(small_config("auto"), shape_config(shape), kMemory);
  EngineConfig config = small_config("auto");
  config.kv_cache_memory = shown.kv_cache;
  const Capacity filled = plan_capacity(config, shape_config(shape), kMemory);
  EXPECT_EQ(filled.plan.kv_cache, shown.kv_cache);
  EXPECT_LE(filled.plan.total(), kMemory);
  EXPECT_GT(filled.plan.total() + shown.config.block_bytes(), kMemory);
  EXPECT_EQ(filled.config.cached_tokens(), shown.tokens);
  // 100 tokens take 7 blocks of 16.
  EXPECT_EQ(shown.rows.back().length, 100);
  EXPECT_EQ(shown.rows.back().sequences, filled.config.num_blocks / 7);
}

// Of a window of 64 tokens, in blocks of 16 and steps of 40.
RuntimeConfig resolve_windowed(int num_blocks, int max_model_len) {
  const auto backend = make_backend({});
  SingleRank comm(*backend);
  const auto model = ModelConfig::from_json(
      R"({"architectures": ["MistralForCausalLM"], "sliding_window": 64, "num_hidden_layers": 2, "hidden_size": 64, "head_dim": 16,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
          "max_position_embeddings": 4096})",
      "here");
  EngineConfig config = small_config("float32");
  config.max_model_len = max_model_len;
  config.kv_cache_memory = static_cast<std::size_t>(num_blocks) * 2 * 2 * 2 * 16 * 16 * 4;
  return resolve_config(config, model, *backend, comm);
}

TEST(CapacityTest, OfAWindowedModelASequenceTakesItsWindowAndAStep) {
  const RuntimeConfig config = resolve_windowed(0, 0);
  EXPECT_EQ(config.max_model_len, 4096);
  // 63 tokens before a step of 40 lie in 8 blocks at most.
  EXPECT_EQ(config.max_blocks_held(4096), 8);
  EXPECT_EQ(config.max_blocks_held(100), 7);
  EXPECT_EQ(config.num_blocks, 3 * 8);
}

TEST(CapacityTest, ThePromptsOfAWindowedModelMayBeLongerThanTheCache) {
  EXPECT_EQ(resolve_windowed(5, 0).num_blocks, 5);
  EXPECT_EQ(resolve_windowed(5, 0).max_model_len, 4096);
  EXPECT_EQ(resolve_windowed(4, 0).max_model_len, 64);  // not every window lies in four blocks
  EXPECT_EQ(resolve_windowed(4, 1000).max_model_len, 1000);
}

// Gemma 3 1B: bytes of a token in a layer are 2 * 256 * 2.
TEST(CapacityTest, LocalLayersHoldTheirWindowOnly) {
  EngineConfig config;
  config.max_num_batched_tokens = 2048;
  const Capacity shown = plan_capacity(config, shape_config(find_shape("gemma-3-1b")), std::size_t{24} << 30);
  ASSERT_EQ(shown.config.max_model_len, 32768);
  const std::vector<Capacity::Group> groups = shown.groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].num_layers, 22);
  EXPECT_EQ(groups[0].window, 512);
  EXPECT_EQ(groups[0].bytes_held, 22 * (160 + 1) * 16 * 1024);  // 511 + 2048 tokens lie in 161 blocks
  EXPECT_EQ(groups[1].num_layers, 4);
  EXPECT_EQ(groups[1].window, 0);
  EXPECT_EQ(groups[1].bytes_held, 4 * 32768 * 1024);
  EXPECT_EQ(shown.config.cache.idle_share(), 0);
  EXPECT_EQ(shown.rows.back().length, 32768);
  const std::int64_t held = groups[0].bytes_held + groups[1].bytes_held;
  EXPECT_EQ(shown.rows.back().sequences, static_cast<std::int64_t>(shown.kv_cache) / held);
}

// The costs of swapping are measured with a prompt as long as the context, of which a step holds the windows.
TEST(CapacityTest, AStepOfOneSequenceHoldsWhatTheCostsOfSwappingAreMeasuredWith) {
  const Shape shape = small_shape("Gemma3ForCausalLM",
                                  R"({"max_position_embeddings": 32768, "sliding_window": 16, "head_dim": 16,
                                           "layer_types": ["sliding_attention", "full_attention"]})");
  EngineConfig config = small_config("float32");
  config.max_num_seqs = 1;
  config.max_model_len = 0;
  config.block_size = 8;
  config.swap_space = 0.00002;
  config.kv_cache_memory = std::size_t{64} << 20;
  const Engine engine(config, random_model(shape));
  EXPECT_EQ(engine.config().max_model_len, 32768);
  EXPECT_GT(engine.config().num_host_blocks, 0);
}

TEST(CapacityTest, ModelThatIsTooLargeDoesNotFit) {
  const Capacity shown = plan_capacity({}, shape_config(find_shape("qwen3-8b")), std::size_t{8} << 30);
  EXPECT_FALSE(shown.fits());
  EXPECT_EQ(shown.tokens, 0);
  for (const Capacity::Row& row : shown.rows) EXPECT_EQ(row.sequences, 0);
}

TEST(CapacityTest, PublishedShapesHaveTheirSizes) {
  // Parameters as published, embeddings included, to 1 %; norms and biases are in the workspace.
  const std::vector<std::pair<std::string, double>> expected = {
      {"qwen3-0.6b", 0.596e9},     {"qwen3-1.7b", 1.72e9},         {"qwen3-4b", 4.02e9},
      {"qwen3-8b", 8.19e9},        {"qwen3-14b", 14.8e9},          {"qwen3-32b", 32.8e9},
      {"qwen3-30b-a3b", 30.5e9},   {"qwen3-235b-a22b", 235e9},     {"qwen2.5-0.5b", 0.494e9},
      {"qwen2.5-1.5b", 1.54e9},    {"qwen2.5-3b", 3.09e9},         {"qwen2.5-7b", 7.62e9},
      {"qwen2.5-14b", 14.8e9},     {"qwen2.5-32b", 32.8e9},        {"qwen2.5-72b", 72.7e9},
      {"llama-2-7b", 6.74e9},      {"llama-2-13b", 13.0e9},        {"llama-2-70b", 69.0e9},
      {"llama-3.1-8b", 8.03e9},    {"llama-3.1-70b", 70.6e9},      {"llama-3.1-405b", 406e9},
      {"llama-3.2-1b", 1.24e9},    {"llama-3.2-3b", 3.21e9},       {"mistral-7b-v0.1", 7.24e9},
      {"mistral-7b-v0.3", 7.25e9}, {"mistral-nemo-12b", 12.2e9},   {"mistral-small-24b", 23.6e9},
      {"mixtral-8x7b", 46.7e9},    {"mixtral-8x22b", 141e9},       {"gpt2", 0.124e9},
      {"gpt2-medium", 0.355e9},    {"gpt2-large", 0.774e9},        {"gpt2-xl", 1.56e9},
      {"minicpm-2b", 2.72e9},      {"minicpm4-0.5b", 0.434e9},     {"minicpm4-8b", 8.19e9},
      {"granite-3.1-2b", 2.53e9},  {"granite-3.1-8b", 8.17e9},     {"bloom-560m", 0.559e9},
      {"bloom-1b1", 1.07e9},       {"bloom-1b7", 1.72e9},          {"bloom-3b", 3.00e9},
      {"bloom-7b1", 7.07e9},       {"bloom-176b", 176e9},          {"gemma-2-2b", 2.61e9},
      {"gemma-2-9b", 9.24e9},      {"gemma-2-27b", 27.2e9},        {"gemma-3-270m", 0.268e9},
      {"gemma-3-1b", 1.00e9},      {"gemma-3-4b", 3.88e9},         {"gemma-3-12b", 11.8e9},
      {"gemma-3-27b", 27.0e9},     {"olmo-2-1b", 1.48e9},          {"olmo-2-7b", 7.30e9},
      {"olmo-2-13b", 13.7e9},      {"olmo-2-32b", 32.2e9},         {"olmo-3-7b", 7.30e9},
      {"olmo-3-32b", 32.2e9},      {"phi-3-mini-4k", 3.82e9},      {"phi-4", 14.7e9},
      {"smollm3-3b", 3.08e9},      {"seed-oss-36b", 36.15e9},      {"hunyuan-7b", 7.50e9},
      {"ernie-4.5-0.3b", 0.36e9},  {"exaone-4.0-32b", 32.0e9},     {"ministral-3-3b", 3.43e9},
      {"ministral-3-8b", 8.49e9},  {"glm-4-9b", 9.40e9},           {"glm-4-32b", 32.6e9},
      {"command-r7b", 8.03e9},     {"command-a", 111e9},           {"stablelm-2-1.6b", 1.64e9},
      {"starcoder2-3b", 3.03e9},   {"starcoder2-7b", 7.17e9},      {"starcoder2-15b", 15.96e9},
      {"lfm2-350m", 0.354e9},      {"lfm2-700m", 0.742e9},         {"lfm2-1.2b", 1.17e9},
      {"lfm2-8b-a1b", 8.34e9},     {"qwen3.5-0.8b", 0.752e9},      {"qwen3.5-2b", 1.88e9},
      {"qwen3.5-4b", 4.20e9},      {"qwen3.5-9b", 8.95e9},         {"qwen3.5-27b", 26.9e9},
      {"qwen3.5-35b-a3b", 34.7e9}, {"qwen3-next-80b-a3b", 79.7e9}, {"gpt-oss-20b", 20.9e9},
      {"gpt-oss-120b", 116.8e9},   {"gemma-4-e2b", 4.63e9},        {"gemma-4-e4b", 7.46e9},
      {"gemma-4-12b", 11.9e9},     {"gemma-4-26b-a4b", 25.2e9},    {"gemma-4-31b", 30.7e9}};
  ASSERT_EQ(expected.size(), published_shapes().size());
  EngineConfig config;
  config.device = "cpu";  // a GPU has no room for some
  for (const auto& [name, parameters] : expected) {
    const Capacity shown = plan_capacity(config, shape_config(find_shape(name)), 0);
    EXPECT_NEAR(static_cast<double>(shown.plan.weights) / 2, parameters, 0.011 * parameters) << name;
  }
  EXPECT_EQ(plan_capacity({}, shape_config(find_shape("qwen3-0.6b")), 0).kv_bytes_per_token(), 114688U);
  EXPECT_THROW(find_shape("qwen9"), Error);
}

}  // namespace
}  // namespace quire
