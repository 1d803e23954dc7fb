// What is in the plan beside weights, caches and workspaces: what connects ranks on GPUs, which is not taken
// twice where it is held already, and what matrices of codes take beside themselves.
#include "runner/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/cpu/reference/reference_backend.h"
#include "base/error.h"
#include "checkpoint/model_config.h"
#include "expect_error.h"
#include "ops/quantize.h"
#include "parallel/lone_rank.h"

namespace quire {
namespace {

constexpr std::size_t kInbox = std::size_t{48} << 20;
constexpr std::size_t kBesideCodes = std::size_t{3} << 20;

// A GPU of 1 GiB, as plans ask for it.
class PlannedGpu final : public ReferenceBackend {
 public:
  DeviceKind device() const override { return DeviceKind::kCuda; }
  std::size_t total_memory() const override { return std::size_t{1} << 30; }
  std::size_t used_memory() const override { return used; }
  std::size_t connection_bytes(int num_ranks) const override {
    return num_ranks > 1 ? kInbox * static_cast<std::size_t>(num_ranks) : 0;
  }
  std::size_t reserved_bytes(std::int64_t, bool has_codes, std::span<const AttentionShape>) const override {
    return has_codes ? kBesideCodes : 0;
  }

  std::size_t used = 0;
};

// Connected already, with memory of the device.
class ConnectedRanks final : public AbsentRanks {
 public:
  ConnectedRanks(int size, std::size_t held) : AbsentRanks(0, size), held_(held) {}
  std::size_t held_bytes() const override { return held_; }

 private:
  std::size_t held_;
};

const ModelConfig& small_model() {
  static const ModelConfig model = ModelConfig::from_json(
      R"({"architectures": ["MistralForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "head_dim": 16,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 320,
          "max_position_embeddings": 4096})",
      "here");
  return model;
}

// So many sequences that the memory says how many blocks there are.
EngineConfig make_config(bool disable_custom_all_reduce) {
  EngineConfig config;
  config.dtype = "float32";
  config.max_num_seqs = 4096;
  config.max_num_batched_tokens = 64;
  config.disable_custom_all_reduce = disable_custom_all_reduce;
  return config;
}

struct Resolved {
  RuntimeConfig config;
  MemoryPlan plan;
};

Resolved resolve(Backend& backend, Communicator& comm, bool disable_custom_all_reduce = false) {
  Resolved resolved;
  resolved.config = resolve_config(make_config(disable_custom_all_reduce), small_model(), backend, comm);
  resolved.plan = plan_memory(backend, comm, resolved.config, small_model());
  return resolved;
}

TEST(MemoryPlanTest, TheInboxesOfRanksAreInThePlan) {
  PlannedGpu gpu;
  for (const int size : {1, 2, 4}) {
    AbsentRanks comm(0, size);
    const MemoryPlan plan = resolve(gpu, comm).plan;
    EXPECT_EQ(plan.connections, size == 1 ? 0 : kInbox * static_cast<std::size_t>(size));
    EXPECT_EQ(plan.total(), plan.weights + plan.kv_cache + plan.workspace + plan.host + plan.connections);
  }
}

TEST(MemoryPlanTest, TheInboxesOfRanksAreNotLeftToTheCache) {
  PlannedGpu gpu;
  AbsentRanks comm(0, 4);
  const Resolved with = resolve(gpu, comm);
  const Resolved without = resolve(gpu, comm, /*disable_custom_all_reduce=*/true);
  EXPECT_EQ(without.plan.connections, 0U);
  EXPECT_EQ(without.plan.total() - without.plan.kv_cache + 4 * kInbox,
            with.plan.total() - with.plan.kv_cache);
  EXPECT_EQ(4 * kInbox % with.config.block_bytes(), 0U);
  EXPECT_EQ(without.plan.kv_cache, with.plan.kv_cache + 4 * kInbox);
}

TEST(MemoryPlanTest, InboxesThatAreHeldAlreadyCountOnce) {
  PlannedGpu gpu;
  AbsentRanks absent(0, 4);
  const int num_blocks = resolve(gpu, absent).config.num_blocks;
  gpu.used = 4 * kInbox;
  ConnectedRanks connected(4, 4 * kInbox);
  EXPECT_EQ(resolve(gpu, connected).config.num_blocks, num_blocks);
  // What somebody else holds is held beside them.
  EXPECT_LT(resolve(gpu, absent).config.num_blocks, num_blocks);
}

TEST(MemoryPlanTest, InboxesThatLeaveNoRoomForABlockAreAnError) {
  PlannedGpu gpu;
  AbsentRanks comm(0, 4);
  gpu.used = std::size_t{500} << 20;
  expect_error([&] { resolve(gpu, comm); }, {"before the first block of KV cache", "500 MiB in use"});
  EXPECT_GT(resolve(gpu, comm, /*disable_custom_all_reduce=*/true).config.num_blocks, 0);
}

// Matrices whose names end so have codes, all others are plain.
class SomeCoded final : public WeightSource {
 public:
  explicit SomeCoded(std::vector<std::string_view> endings) : endings_(std::move(endings)) {}

  bool contains(std::string_view) const override { return true; }
  bool has_values() const override { return false; }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return make_weight_tensor(std::string(name), DType::kF32, shape, [](std::int64_t, const Tensor&) {});
  }
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    const bool coded = std::ranges::any_of(endings_, [&](auto ending) { return prefix.ends_with(ending); });
    return quantized(WeightSource::take_linear(prefix, rows, cols),
                     coded ? Quantization::kInt4 : Quantization::kNone);
  }

 private:
  std::vector<std::string_view> endings_;
};

TEST(MemoryPlanTest, WhatAnyMatrixOfCodesTakesBesideItselfIsInThePlan) {
  const ModelConfig model = ModelConfig::from_json(
      R"({"architectures": ["MixtralForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64, "head_dim": 16,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 320,
          "max_position_embeddings": 4096, "num_local_experts": 2})",
      "here");
  PlannedGpu gpu;
  AbsentRanks comm(0, 1);
  const auto workspace_of = [&](std::vector<std::string_view> coded) {
    SomeCoded formats(std::move(coded));
    const RuntimeConfig config = resolve_config(make_config(false), model, gpu, comm, &formats);
    return plan_memory(gpu, comm, config, model, &formats).workspace;
  };
  const std::size_t plain = workspace_of({});
  EXPECT_EQ(workspace_of({".o_proj"}), plain + kBesideCodes);
  EXPECT_EQ(workspace_of({".w2"}), plain + kBesideCodes);         // down
  EXPECT_EQ(workspace_of({".w1", ".w3"}), plain + kBesideCodes);  // gate and up
}

}  // namespace
}  // namespace quire
