// What of a plan stands in a step's tensors.
#include "runner/batch_builder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "backends/cpu/reference/reference_backend.h"
#include "engine/golden_models.h"
#include "parallel/lone_rank.h"
#include "runner/runtime_config.h"

namespace quire {
namespace {

TEST(BatchBuilderTest, LongSpansAreToldInChunksOfTheirSequencesPositions) {
  const auto directory = testing::golden_directory("qwen3_5");
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << "no " << directory;
  ReferenceBackend backend;
  SingleRank comm(backend);
  EngineConfig asked;
  asked.max_model_len = 256;
  asked.max_num_batched_tokens = 512;
  asked.kv_cache_memory = 1 << 20;
  const auto model = ModelConfig::from_file(directory / "config.json");
  const RuntimeConfig config = resolve_config(asked, model, backend, comm);
  Workspace workspace(backend, config.max_num_batched_tokens);
  const std::vector<StateSpec> groups(1);
  BatchBuilder builder(backend, config, groups, workspace);
  const Buffer memory = backend.allocate(builder.staging_bytes(), MemoryKind::kDevice);
  StagingArea staging(backend, memory);
  StepPlan plan;
  const auto add = [&](int position, int tokens) {
    SequencePlan& sequence = plan.sequences.emplace_back();
    sequence.seat = static_cast<int>(plan.sequences.size()) - 1;
    sequence.first_position = position;
    sequence.num_tokens = tokens;
    sequence.tokens.resize(static_cast<std::size_t>(tokens));
    sequence.state_from = sequence.state_to = sequence.seat;
    plan.num_tokens += tokens;
  };
  add(63, 31);   // too short
  add(0, 130);   // chunks of 64, 64 and 2
  add(100, 1);   // a decode
  add(70, 58);   // the rest of the second chunk
  add(100, 32);  // 28 and 4
  const StateBatch batch = builder.build(plan, staging).state_batch;
  staging.upload();
  EXPECT_EQ(batch.num_chunks, 6);
  const auto* values = batch.long_spans.data_as<const std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(values, values + batch.long_spans.numel()),
            (std::vector<std::int32_t>{1, 0, 0, 3, 3, 6, 4, 4, 36}));
}

}  // namespace
}  // namespace quire
