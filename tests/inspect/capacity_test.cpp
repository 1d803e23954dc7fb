#include "inspect/capacity.h"

#include <gtest/gtest.h>

#include <future>

#include "backends/registry.h"
#include "base/error.h"
#include "engine/engine.h"
#include "inspect/shapes.h"
#include "ops/forwarding_backend.h"
#include "parallel/single_rank.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

// What is really allocated.
class CountingBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Buffer allocate(std::size_t bytes, MemoryKind kind) override {
    Buffer buffer = ForwardingBackend::allocate(bytes, kind);
    (kind == MemoryKind::kHost ? host : device) += buffer.bytes();
    return buffer;
  }
  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightTensorPtr> parts, DType dtype) override {
    auto matrix = ForwardingBackend::make_linear(parts, dtype);
    weights += matrix->bytes();
    return matrix;
  }

  std::size_t weights = 0, device = 0, host = 0;
};

Shape small_shape(bool tied) {
  Shape shape{"small", 2, 64, 96, 4, tied};
  shape.num_kv_heads = 2;
  shape.vocab_size = 320;
  return shape;
}

EngineConfig small_config(const std::string& dtype) {
  EngineConfig config;
  config.dtype = dtype;
  config.max_num_seqs = 3;
  config.max_num_batched_tokens = 40;
  config.max_model_len = 100;
  return config;
}

TEST(CapacityTest, TheRunnerAllocatesWhatWasPlanned) {
  for (const bool tied : {true, false}) {
    for (const std::string dtype : {"auto", "float32"}) {
      ModelFiles model = random_model(small_shape(tied));
      const auto real = make_backend({});
      CountingBackend backend(*real);
      SingleRank comm(backend);
      EngineConfig asked = small_config(dtype);
      asked.swap_space = tied ? 0.001 : 0;
      const RuntimeConfig config = resolve_config(asked, model.config, backend, comm);
      const MemoryPlan plan = plan_memory(backend, comm, config, model.config);
      EXPECT_EQ(backend.weights + backend.device + backend.host, 0U) << "planning allocated";

      const ModelRunner runner(backend, comm, config, model.config, *model.weights);
      EXPECT_EQ(plan.weights, backend.weights);
      EXPECT_EQ(plan.workspace + plan.kv_cache, backend.device);
      EXPECT_EQ(plan.host + plan.swap_space, backend.host);
      EXPECT_EQ(plan.swap_space > 0, tied);
      EXPECT_EQ(plan.kv_cache, config.block_bytes() * static_cast<std::size_t>(config.num_blocks));
      EXPECT_GT(plan.workspace, 0U);
    }
  }
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
  const Shape shape = small_shape(true);
  const Capacity shown = plan_capacity(small_config("auto"), shape_config(shape), 0);
  const Engine engine(small_config("auto"), random_model(shape));
  EXPECT_EQ(engine.memory_plan().total(), shown.plan.total());
  EXPECT_EQ(engine.config().num_blocks, shown.config.num_blocks);
  EXPECT_TRUE(shown.fits());
}

TEST(CapacityTest, AnEngineGivenTheCacheThatFitsUsesTheMemoryUpToABlock) {
  const Shape shape = small_shape(true);
  constexpr std::size_t kMemory = std::size_t{8} << 20;
  const Capacity shown = plan_capacity(small_config("auto"), shape_config(shape), kMemory);
  EngineConfig config = small_config("auto");
  config.kv_cache_memory = shown.kv_cache;
  const Capacity filled = plan_capacity(config, shape_config(shape), kMemory);
  EXPECT_EQ(filled.plan.kv_cache, shown.kv_cache);
  EXPECT_LE(filled.plan.total(), kMemory);
  EXPECT_GT(filled.plan.total() + shown.config.block_bytes(), kMemory);
  EXPECT_EQ(std::int64_t{filled.config.num_blocks} * filled.config.block_size, shown.tokens);
  // 100 tokens take 7 blocks of 16.
  EXPECT_EQ(shown.rows.back().length, 100);
  EXPECT_EQ(shown.rows.back().sequences, filled.config.num_blocks / 7);
}

TEST(CapacityTest, ModelThatIsTooLargeDoesNotFit) {
  const Capacity shown = plan_capacity({}, shape_config(find_shape("qwen3-8b")), std::size_t{8} << 30);
  EXPECT_FALSE(shown.fits());
  EXPECT_EQ(shown.tokens, 0);
  for (const Capacity::Row& row : shown.rows) EXPECT_EQ(row.sequences, 0);
}

TEST(CapacityTest, PublishedShapesHaveTheirSizes) {
  // Parameters as published, embeddings included, to 1 %; norms are in the workspace.
  const std::vector<std::pair<std::string, double>> expected = {
      {"qwen3-0.6b", 0.596e9}, {"qwen3-1.7b", 1.72e9}, {"qwen3-4b", 4.02e9}, {"qwen3-8b", 8.19e9}};
  ASSERT_EQ(expected.size(), published_shapes().size());
  for (const auto& [name, parameters] : expected) {
    const Capacity shown = plan_capacity({}, shape_config(find_shape(name)), 0);
    EXPECT_NEAR(static_cast<double>(shown.plan.weights) / 2, parameters, 0.01 * parameters) << name;
  }
  EXPECT_EQ(plan_capacity({}, shape_config(find_shape("qwen3-0.6b")), 0).kv_bytes_per_token(), 114688U);
  EXPECT_THROW(find_shape("qwen9"), Error);
}

}  // namespace
}  // namespace quire
