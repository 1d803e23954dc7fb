#include "inspect/bench.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>

#include "base/error.h"
#include "inspect/shapes.h"
#include "inspect/small_shape.h"

namespace quire {
namespace {

Shape dense_shape() { return test::small_shape("Qwen3ForCausalLM", "{}"); }

std::vector<float> read_values(RandomWeights& weights, std::int64_t row, std::int64_t rows) {
  std::vector<float> values(static_cast<std::size_t>(rows * 50));
  weights.take("a.weight", {100, 50})->read_rows(row, Tensor(values.data(), DType::kF32, {rows, 50}));
  return values;
}

TEST(RandomWeightsTest, ValuesDependOnNameAndPlaceAlone) {
  RandomWeights weights;
  const std::vector<float> all = read_values(weights, 0, 100);
  RandomWeights others;
  const std::vector<float> some = read_values(others, 40, 3);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 40 * 50));
  std::vector<float> named(50);
  weights.take("b.weight", {100, 50})->read_rows(0, Tensor(named.data(), DType::kF32, {1, 50}));
  EXPECT_FALSE(std::equal(named.begin(), named.end(), all.begin()));
  double squares = 0;
  for (const float value : all) squares += double{value} * value;
  EXPECT_NEAR(squares / 5000, 1.0 / 50, 0.1 / 50);
}

TEST(RandomWeightsTest, LargeTensorsReadOnFromTheBeginning) {
  RandomWeights weights;
  constexpr std::int64_t kRows = 2'500;
  std::vector<float> values(kRows * 1000);
  const auto tensor = weights.take("c.weight", {kRows, 1000});
  tensor->read_rows(0, Tensor(values.data(), DType::kF32, {kRows, 1000}));
  std::vector<float> row(1000);
  for (const std::int64_t i : {0, 999, 1000, 1001, 2000, 2499}) {
    tensor->read_rows(i, Tensor(row.data(), DType::kF32, {1, 1000}));
    EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin() + i * 1000)) << i;
  }
}

TEST(PercentileTest, LiesBetweenTheNearestValues) {
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_EQ(percentile({1, 2}, 0.99), 1.99);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(WorkloadTest, StandardIsThatOfNanoVllm) {
  int prompt_tokens = 0;
  int output_tokens = 0;
  for (const RequestSize& size : standard_workload()) {
    prompt_tokens += size.prompt_tokens;
    output_tokens += size.output_tokens;
  }
  EXPECT_EQ(standard_workload().size(), 256U);
  EXPECT_EQ(prompt_tokens, 142827);
  EXPECT_EQ(output_tokens, 133966);
}

// Against counting by hand, with Qwen3-0.6B.
TEST(StepWorkTest, CountsWhatAStepMustDo) {
  const ModelConfig model = shape_config(find_shape("qwen3-0.6b"));
  MemoryPlan plan;
  for (int layer = 0; layer < 28; ++layer) {
    plan.matrices.push_back({4096, 1024, 4096 * 1024 * 2});
    plan.matrices.push_back({1024, 2048, 1024 * 2048 * 2});
    plan.matrices.push_back({6144, 1024, 6144 * 1024 * 2});
    plan.matrices.push_back({1024, 3072, 1024 * 3072 * 2});
  }
  plan.matrices.push_back({151936, 1024, std::size_t{151936} * 1024 * 2});
  RuntimeConfig config;
  config.spec = find_model_family(model.architecture()).describe(model);
  config.dtype = DType::kBF16;
  const auto cache_of = [](int num_heads, int num_kv_heads) {
    StateDeclarations states;
    for (int layer = 0; layer < 28; ++layer)
      states.declare({.num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = 128});
    return CacheShape(states, 16, DType::kBF16);
  };
  config.cache = cache_of(16, 8);
  config.num_heads = 16;
  const StepWork work(plan, config);
  EXPECT_NEAR(work.flop_per_token, 0.881e9, 0.001e9);
  EXPECT_NEAR(work.weight_bytes, 1.192e9, 0.001e9);
  EXPECT_EQ(work.flop_per_attention_pair, 4.0 * 16 * 128);
  EXPECT_EQ(work.kv_bytes_per_pair, 4096);  // of one layer

  const StepRecord decode{.tokens = 2, .sampled_tokens = 2, .attention_pairs = 28 * 300, .seconds = 1};
  EXPECT_EQ(work.decode_bytes(decode), work.weight_bytes + 300 * 114688.0);
  EXPECT_EQ(work.flop(decode),
            2 * (work.flop_per_token + work.flop_per_logits) + 28 * 300 * work.flop_per_attention_pair);
  // Two of eight experts for one token; two tokens meet 1 - (3/4)^2 of them.
  MemoryPlan routed = plan;
  routed.experts.push_back({{.num_experts = 8, .top_k = 2, .hidden_size = 10, .intermediate_size = 5}, 1600});
  EXPECT_EQ(StepWork(routed, config).decode_bytes(decode), work.decode_bytes(decode) + 1600 * 7.0 / 16);
  EXPECT_EQ(StepWork(routed, config).flop_per_token, work.flop_per_token + 2 * 3 * 2.0 * 10 * 5);
  // One of two ranks has half of everything; both together have it all.
  MemoryPlan half = plan;
  for (LinearWeights& matrix : half.matrices)
    matrix = {matrix.out_features() / 2, matrix.in_features(), matrix.bytes() / 2};
  RuntimeConfig shard = config;
  shard.cache = cache_of(8, 4);
  shard.num_heads = 8;
  EXPECT_EQ(StepWork(half, shard).flop(decode), work.flop(decode) / 2);
  EXPECT_EQ(StepWork(half, shard).decode_bytes(decode), work.decode_bytes(decode) / 2);
  EXPECT_EQ(StepWork(half, shard, 2).flop(decode), work.flop(decode));
  EXPECT_EQ(StepWork(half, shard, 2).decode_bytes(decode), work.decode_bytes(decode));
  // An embedding of its own is not read.
  plan.matrices.push_back(plan.matrices.back());
  EXPECT_EQ(StepWork(plan, config).weight_bytes, work.weight_bytes);
}

TEST(EngineStepsTest, AreObservedOneByOne) {
  EngineConfig config;
  config.max_num_batched_tokens = 8;
  config.max_model_len = 32;
  std::vector<StepRecord> steps;
  Engine engine(config, random_model(dense_shape()));
  engine.observe_steps([&](const StepRecord& step) { steps.push_back(step); });
  std::promise<void> done;
  EngineRequest request;
  request.prompt.assign(9, 5);
  request.params.max_tokens = 3;
  request.params.ignore_eos = true;
  request.on_update = [&](const RequestUpdate& update) {
    EXPECT_EQ(update.output.error, "");
    if (update.finished) done.set_value();
  };
  engine.submit(std::move(request));
  done.get_future().wait();
  engine.observe_steps({});
  const auto num_layers = static_cast<std::uint64_t>(engine.config().spec.num_layers);
  ASSERT_EQ(steps.size(), 4U);  // 8 and 1 tokens of the prompt, then two samples
  EXPECT_EQ(steps[0].prefill_tokens, 8U);
  EXPECT_EQ(steps[0].sampled_tokens, 0U);
  EXPECT_EQ(steps[0].attention_pairs, 36 * num_layers);
  EXPECT_EQ(steps[1].prefill_tokens, 1U);
  EXPECT_EQ(steps[1].sampled_tokens, 1U);
  EXPECT_EQ(steps[1].attention_pairs, 9 * num_layers);
  EXPECT_EQ(steps[2].prefill_tokens, 0U);
  EXPECT_EQ(steps[3].attention_pairs, 11 * num_layers);
  for (const StepRecord& step : steps) EXPECT_GT(step.seconds, 0);
}

TEST(BenchTest, CountsTheTokensOfAllOutputs) {
  BenchOptions options;
  options.requests = {{9, 4}, {5, 2}};
  options.rounds = 2;
  options.request.params.n = 3;
  std::size_t done = 0;
  options.on_progress = [&](std::size_t so_far, std::size_t total) {
    EXPECT_EQ(so_far, ++done);
    EXPECT_EQ(total, 2U * 3 * (4 + 2));
  };
  const BenchResult result = run_bench(options, random_model(dense_shape()));
  EXPECT_EQ(done, 2U * 3 * (4 + 2));
  for (const double measured : {result.ttft_ms.p50, result.itl_ms.p50, result.output_tokens_per_s})
    EXPECT_GT(measured, 0);
}

TEST(BenchTest, RefusesRequestsThatDoNotFit) {
  BenchOptions options;
  options.requests = {{40, 6}};
  options.engine.max_model_len = 45;
  EXPECT_THROW(run_bench(options, random_model(dense_shape())), Error);
}

// While others are under way, whose tokens come meanwhile.
TEST(BenchTest, ARefusedRequestEndsARoundInGoodOrder) {
  EngineConfig config;
  config.max_model_len = 1000;
  config.max_num_queued_reqs = 1;
  Engine engine(config, random_model(dense_shape()));
  for (int i = 0; i < 20; ++i) {
    std::vector<EngineRequest> requests(20, sized_request(std::vector<TokenId>(9, 5), 900));
    std::atomic<bool> over = false;
    EXPECT_THROW(run_round(engine, std::move(requests), [&] { EXPECT_FALSE(over); }), QueueFullError);
    over = true;
  }
}

}  // namespace
}  // namespace quire
