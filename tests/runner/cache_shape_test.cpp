#include "runner/cache_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace quire {
namespace {

constexpr int kLayer = 2 * 256 * 2;  // bytes for each token

// Layers in turn: one that attends to all positions behind `num_local` with a window.
StateDeclarations declare(int num_layers, int num_local) {
  StateDeclarations states;
  for (int layer = 0; layer < num_layers; ++layer)
    states.declare({.num_heads = 4,
                    .num_kv_heads = 1,
                    .head_dim = 256,
                    .window = (layer + 1) % (num_local + 1) == 0 ? 0 : 512});
  return states;
}

TEST(CacheShapeTest, EqualLayersShareOneLane) {
  const CacheShape shape(declare(28, 0), 16, DType::kBF16);
  EXPECT_EQ(shape.num_slots, 28);
  EXPECT_EQ(shape.slot_bytes, kLayer);
  EXPECT_EQ(shape.layout.windows, std::vector({0}));
  for (int layer = 0; layer < 28; ++layer)
    EXPECT_EQ(shape.places[static_cast<std::size_t>(layer)].slot, layer);
  EXPECT_EQ(shape.idle_share(), 0);
}

TEST(CacheShapeTest, Gemma3HasAsManyLanesAsItsKindsOfLayersNeed) {
  const CacheShape small(declare(26, 5), 16, DType::kBF16);  // 22 and 4 layers
  EXPECT_EQ(small.num_slots, 2);
  EXPECT_EQ(std::count(small.layout.windows.begin(), small.layout.windows.end(), 512), 11);
  EXPECT_EQ(std::count(small.layout.windows.begin(), small.layout.windows.end(), 0), 2);
  const CacheShape large(declare(34, 5), 16, DType::kBF16);  // 29 and 5
  EXPECT_EQ(large.num_slots, 5);
  EXPECT_EQ(large.lanes.size(), 7U);
  EXPECT_EQ(large.lanes[5].num_layers, 4);
  EXPECT_NEAR(large.idle_share(), 1.0 / 35, 1e-9);
}

TEST(CacheShapeTest, LittleLiesIdleAndNoTwoLayersShareAPlace) {
  for (int num_layers = 1; num_layers < 70; ++num_layers) {
    for (int num_local = 0; num_local < 7; ++num_local) {
      const CacheShape shape(declare(num_layers, num_local), 16, DType::kBF16);
      EXPECT_LE(shape.idle_share(), 0.05 + 1e-9);
      std::set<std::pair<int, int>> taken;
      for (std::size_t layer = 0; layer < shape.places.size(); ++layer) {
        const CacheShape::Place place = shape.places[layer];
        EXPECT_TRUE(taken.insert({place.lane, place.slot}).second);
        EXPECT_LT(place.slot, shape.lanes[static_cast<std::size_t>(place.lane)].num_layers);
        const bool global = (static_cast<int>(layer) + 1) % (num_local + 1) == 0;
        EXPECT_EQ(shape.layout.windows[static_cast<std::size_t>(place.lane)], global ? 0 : 512);
      }
    }
  }
}

TEST(CacheShapeTest, LayersOfCodesAndOfNumbersShareBlocks) {
  for (int num_layers = 2; num_layers < 70; ++num_layers) {
    StateDeclarations states({.code = CacheCode::kE4m3, .skips_windows = true, .skipped = {0}});
    for (int layer = 0; layer < num_layers; ++layer) {
      states.begin_layer(layer);
      states.declare({.num_heads = 4, .num_kv_heads = 1, .head_dim = 128, .window = layer % 3 == 2 ? 64 : 0});
    }
    const CacheShape shape(states, 16, DType::kBF16);
    std::set<std::pair<int, std::int64_t>> taken;  // bytes
    std::int64_t used = 0;
    for (int layer = 0; layer < num_layers; ++layer) {
      const CacheCode code = layer == 0 || layer % 3 == 2 ? CacheCode::kNone : CacheCode::kE4m3;
      EXPECT_EQ(shape.spec_of(static_cast<std::size_t>(layer)).code, code);
      const std::int64_t bytes = code == CacheCode::kNone ? 2 * 128 * 2 : 2 * (128 + 4);
      const auto [lane, slot, begin] = shape.places[static_cast<std::size_t>(layer)];
      EXPECT_LT(slot, shape.num_slots);
      EXPECT_LE(begin + bytes, shape.slot_bytes);
      for (std::int64_t i = 0; i < bytes; ++i)
        EXPECT_TRUE(taken.insert({lane, slot * shape.slot_bytes + begin + i}).second);
      used += bytes;
    }
    EXPECT_EQ(shape.used_bytes, used);
    EXPECT_LE(shape.idle_share(), num_layers > 40 ? 0.05 : 0.25);
  }
}

// Gemma 4's: heads of the full layers are wider and fewer.
TEST(CacheShapeTest, LayersOfOtherHeadCountsAndSizesShareBlocks) {
  struct Heads {
    int local, global;  // KV heads, of 256 and of 512
  };
  for (const auto& [local, global] : {Heads{16, 4}, {8, 2}, {4, 1}, {1, 1}}) {
    StateDeclarations states;
    for (int layer = 0; layer < 60; ++layer) {
      const bool full = layer % 6 == 5;
      states.declare({.num_heads = 32,
                      .num_kv_heads = full ? global : local,
                      .head_dim = full ? 512 : 256,
                      .window = full ? 0 : 1024});
    }
    const CacheShape shape(states, 16, DType::kBF16);
    std::set<std::pair<int, std::int64_t>> taken;  // lane, and kilobyte of its block
    for (std::size_t layer = 0; layer < 60; ++layer) {
      const StateSpec& spec = shape.spec_of(layer);
      EXPECT_EQ(spec.head_dim, layer % 6 == 5 ? 512 : 256);
      const std::int64_t bytes = spec.token_bytes(DType::kBF16);
      EXPECT_EQ(bytes, std::int64_t{spec.num_kv_heads} * 2 * spec.head_dim * 2);
      const auto [lane, slot, begin] = shape.places[layer];
      EXPECT_LE(begin + bytes, shape.slot_bytes);
      for (std::int64_t at = 0; at < bytes; at += 1024)
        EXPECT_TRUE(taken.insert({lane, (slot * shape.slot_bytes + begin + at) / 1024}).second);
    }
    EXPECT_EQ(shape.used_bytes, std::int64_t{50} * local * 1024 + std::int64_t{10} * global * 2048);
    EXPECT_LE(shape.idle_share(), 0.05);
  }
}

// Gemma 4 12B's: eight full layers fill two slots of the others' size, so a block has two, not five.
TEST(CacheShapeTest, LittleOfWhatHoldsWholeSequencesLiesIdle) {
  StateDeclarations states;
  for (int layer = 0; layer < 48; ++layer) {
    const bool full = layer % 6 == 5;
    states.declare({.num_heads = 16,
                    .num_kv_heads = full ? 1 : 8,
                    .head_dim = full ? 512 : 256,
                    .window = full ? 0 : 1024});
  }
  const CacheShape shape(states, 16, DType::kBF16);
  EXPECT_EQ(shape.num_slots, 2);
  EXPECT_EQ(shape.idle_share(), 0);
  EXPECT_EQ(std::count(shape.layout.windows.begin(), shape.layout.windows.end(), 0), 1);
}

}  // namespace
}  // namespace quire
