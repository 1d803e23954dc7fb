// The CUDA backend's element-wise kernels against the CPU reference, on random odd shapes.
#include "backends/cuda/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "cuda/device_memory.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::ints;
using quire::testing::Matrix;
using testing::DeviceTensor;

// A random matrix here and a copy of it on the device; both sides then work on their own.
class Pair {
 public:
  Pair(DType dtype, std::int64_t rows, std::int64_t cols, std::mt19937& random, float scale = 1.0F)
      : host_(dtype, rows, cols, random, scale), device_(host_.tensor()) {}

  const Tensor& host() const { return host_.tensor(); }
  const Tensor& device() const { return device_.tensor(); }
  Tensor host_vector() const { return host_.vector(); }
  Tensor device_vector() const {
    return Tensor(device().data(), device().dtype(), {device().numel()}, DeviceKind::kCuda);
  }
  double at(std::int64_t row, std::int64_t col) const { return host_.at(row, col); }
  // What the device holds now, in place of what the host held.
  void fetch() const { device_.download(host_.tensor()); }

  // All elements are as near to each other as rounding to their type leaves them.
  void expect_equal(const std::string& what, double relative) const {
    const std::vector<double> expected = host_.values();
    fetch();
    const std::vector<double> actual = host_.values();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const bool right = std::abs(actual[i] - expected[i]) <= relative * (std::abs(expected[i]) + 0.5);
      if (!right && wrong++ == 0) {
        ADD_FAILURE() << what << ": element " << i << " is " << actual[i] << ", not " << expected[i];
      }
    }
    EXPECT_EQ(wrong, 0U) << what;
  }

 private:
  Matrix host_;
  DeviceTensor device_;
};

class ElementwiseTest : public testing::DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  // Of LayerNorm: the reference sums in float32, one after the other.
  double layer_norm_tolerance() const { return tolerance() + 2e-5; }
  // One rounding to the type, at most one unit in its last place away.
  double tolerance() const { return dtype() == DType::kF32 ? 3e-6 : dtype() == DType::kF16 ? 1e-3 : 8e-3; }

  std::mt19937 random_{5};
  ReferenceBackend reference_;
};

// Rows of `cols` elements, the first `offset` elements into rows that are `padding` wider.
struct RowShape {
  std::int64_t rows, cols, offset, padding;

  std::string describe() const {
    return std::to_string(rows) + " x " + std::to_string(cols) + " at " + std::to_string(offset) + " of " +
           std::to_string(cols + padding);
  }
  Tensor of(const Tensor& wide) const { return wide.columns(offset, cols); }
};

const std::vector<RowShape> kRowShapes = {
    {1, 1, 0, 0},    {3, 5, 0, 0},     {17, 37, 1, 3},  {255, 64, 0, 0},   {1, 1024, 0, 0},
    {3, 4096, 4, 8}, {17, 100, 4, 12}, {3, 1028, 3, 3}, {2, 17000, 0, 0},  {2, 5001, 0, 0},
    {5, 2560, 0, 0}, {255, 128, 8, 8}, {1, 8192, 0, 0}, {300, 896, 0, 16},
};

// A norm's parameters on both sides; LayerNorm where it has a bias, a copy where it has nothing.
class NormPair {
 public:
  NormPair(std::int64_t cols, bool has_bias, std::mt19937& random, bool has_weight = true)
      : weight_(DType::kF32, 1, cols, random),
        bias_(DType::kF32, 1, cols, random),
        has_weight_(has_weight),
        has_bias_(has_bias) {}
  NormParams host() const {
    if (!has_weight_) return {};
    return {weight_.host_vector(), has_bias_ ? bias_.host_vector() : Tensor(), 1e-5F};
  }
  NormParams device() const {
    if (!has_weight_) return {};
    return {weight_.device_vector(), has_bias_ ? bias_.device_vector() : Tensor(), 1e-5F};
  }

 private:
  Pair weight_, bias_;
  bool has_weight_, has_bias_;
};

TEST_P(ElementwiseTest, NormIsThatOfTheReference) {
  for (const RowShape& shape : kRowShapes) {
    for (const bool has_bias : {false, true}) {
      const std::int64_t width = shape.cols + shape.padding;
      const Pair x(DType::kF32, shape.rows, width, random_);
      const NormPair params(shape.cols, has_bias, random_);
      const Pair out(dtype(), shape.rows, width, random_);
      reference_.norm(shape.of(out.host()), shape.of(x.host()), params.host());
      norm(context_, shape.of(out.device()), shape.of(x.device()), params.device());
      out.expect_equal(shape.describe() + (has_bias ? ", LayerNorm" : ""),
                       has_bias ? layer_norm_tolerance() : tolerance());
    }
  }
}

TEST_P(ElementwiseTest, NormTakesRowsOfItsOwnTypeAlsoInPlace) {
  for (const RowShape& shape : kRowShapes) {
    for (const bool has_bias : {false, true}) {
      const std::int64_t width = shape.cols + shape.padding;
      const Pair x(dtype(), shape.rows, width, random_);
      const NormPair params(shape.cols, has_bias, random_);
      const Pair out(dtype(), shape.rows, width, random_);
      const double relative = has_bias ? layer_norm_tolerance() : tolerance();
      reference_.norm(shape.of(out.host()), shape.of(x.host()), params.host());
      norm(context_, shape.of(out.device()), shape.of(x.device()), params.device());
      out.expect_equal(shape.describe(), relative);
      reference_.norm(shape.of(x.host()), shape.of(x.host()), params.host());
      norm(context_, shape.of(x.device()), shape.of(x.device()), params.device());
      x.expect_equal(shape.describe() + " in place", relative);
    }
  }
}

TEST_P(ElementwiseTest, AddNormAddsAndNormalises) {
  for (const RowShape& shape : kRowShapes) {
    for (const float scale : {1.0F, 0.22F}) {
      const std::int64_t width = shape.cols + shape.padding;
      const Pair x(dtype(), shape.rows, width, random_);
      const Pair residual(DType::kF32, shape.rows, width, random_);
      const NormPair pair(shape.cols, scale != 1.0F, random_);
      NormParams host = pair.host(), device = pair.device();
      host.sum_scale = device.sum_scale = 0.3F;
      const Pair out(dtype(), shape.rows, width, random_);
      reference_.add_norm(shape.of(out.host()), shape.of(residual.host()), shape.of(x.host()), scale, host);
      add_norm(context_, shape.of(out.device()), shape.of(residual.device()), shape.of(x.device()), scale,
               device);
      out.expect_equal(shape.describe(), scale == 1.0F ? tolerance() : layer_norm_tolerance());
      residual.expect_equal("residual of " + shape.describe(), scale == 1.0F ? 0 : 3e-7);
    }
  }
}

TEST_P(ElementwiseTest, ANormWithoutAWeightIsACopy) {
  for (const RowShape& shape : kRowShapes) {
    const std::int64_t width = shape.cols + shape.padding;
    const Pair x(dtype(), shape.rows, width, random_);
    const Pair residual(DType::kF32, shape.rows, width, random_);
    const NormPair params(shape.cols, false, random_, false);
    const Pair out(dtype(), shape.rows, width, random_);
    reference_.norm(shape.of(out.host()), shape.of(x.host()), params.host());
    norm(context_, shape.of(out.device()), shape.of(x.device()), params.device());
    out.expect_equal(shape.describe(), 0);
    reference_.add_norm(shape.of(out.host()), shape.of(residual.host()), shape.of(x.host()), 1,
                        params.host());
    add_norm(context_, shape.of(out.device()), shape.of(residual.device()), shape.of(x.device()), 1,
             params.device());
    out.expect_equal(shape.describe() + ", added", 0);
    residual.expect_equal("residual of " + shape.describe(), 0);
  }
}

TEST_P(ElementwiseTest, LayerNormKeepsItsPrecisionFarFromZero) {
  constexpr int kCols = 1000;
  const Matrix x(DType::kF32, 1, kCols, random_);
  for (int i = 0; i < kCols; ++i) x.tensor().data_as<float>()[i] += 1000.0F;
  double mean = 0, variance = 0;
  for (int i = 0; i < kCols; ++i) mean += x.at(0, i) / kCols;
  for (int i = 0; i < kCols; ++i) variance += (x.at(0, i) - mean) * (x.at(0, i) - mean) / kCols;
  const DeviceTensor device_x(x.tensor());
  const Pair weight(DType::kF32, 1, kCols, random_), bias(DType::kF32, 1, kCols, random_);
  const Pair out(dtype(), 1, kCols, random_);
  norm(context_, out.device(), device_x.tensor(), {weight.device_vector(), bias.device_vector(), 1e-5F});
  out.fetch();
  for (int i = 0; i < kCols; ++i) {
    const double expected =
        (x.at(0, i) - mean) / std::sqrt(variance + 1e-5) * weight.at(0, i) + bias.at(0, i);
    ASSERT_NEAR(out.at(0, i), expected, (tolerance() + 5e-4) * (std::abs(expected) + 0.5));
  }
}

TEST_P(ElementwiseTest, ANormDoesNotDependOnTheOtherRows) {
  for (const bool has_bias : {false, true}) {
    const Pair x(DType::kF32, 300, 1024, random_);
    const NormPair params(1024, has_bias, random_);
    const Pair together(dtype(), 300, 1024, random_);
    const Pair alone(dtype(), 1, 1024, random_);
    norm(context_, together.device(), x.device(), params.device());
    norm(context_, alone.device(), x.device().rows(77, 1), params.device());
    together.fetch();
    alone.fetch();
    for (std::int64_t i = 0; i < 1024; ++i) ASSERT_EQ(together.at(77, i), alone.at(0, i));
  }
}

TEST_P(ElementwiseTest, ActivationsAreThoseOfTheReferenceAlsoInPlace) {
  for (const RowShape& shape : kRowShapes) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kRelu2, Activation::kSwigluOai}) {
      const Pair x(dtype(), shape.rows, shape.cols + shape.padding, random_, 4.0F);
      const Pair out(dtype(), shape.rows, shape.cols, random_);
      reference_.activate(out.host(), shape.of(x.host()), activation);
      activate(context_, out.device(), shape.of(x.device()), activation);
      out.expect_equal(shape.describe(), tolerance());
      reference_.activate(shape.of(x.host()), shape.of(x.host()), activation);
      activate(context_, shape.of(x.device()), shape.of(x.device()), activation);
      x.expect_equal(shape.describe() + " in place", tolerance());
    }
  }
}

TEST_P(ElementwiseTest, AnActivatedFirstHalfGatesTheSecond) {
  for (const RowShape& shape : kRowShapes) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kRelu2, Activation::kSwigluOai}) {
      const Pair gate_up(dtype(), shape.rows, 2 * shape.cols, random_, 4.0F);
      const Pair out(dtype(), shape.rows, shape.cols + shape.padding, random_);
      reference_.activate_gate(shape.of(out.host()), gate_up.host(), activation);
      activate_gate(context_, shape.of(out.device()), gate_up.device(), activation);
      out.expect_equal(shape.describe(), tolerance());
    }
  }
}

TEST_P(ElementwiseTest, EmbeddingTakesItsRowsAndZerosElsewhere) {
  for (const std::int64_t cols : {1, 5, 64, 1024, 2052}) {
    const Pair table(dtype(), 6, cols, random_);
    const Pair out(DType::kF32, 5, cols, random_);
    std::vector<std::int32_t> ids = {12, 9, 16, 15, 10};
    const DeviceTensor device_ids(ints(ids));
    embedding(context_, out.device(), table.device(), device_ids.tensor(), 10, 1.0F);
    out.fetch();
    for (std::int64_t c = 0; c < cols; ++c) {
      ASSERT_EQ(out.at(0, c), table.at(2, c));
      ASSERT_EQ(out.at(1, c), 0);
      ASSERT_EQ(out.at(2, c), 0);
      ASSERT_EQ(out.at(3, c), table.at(5, c));
      ASSERT_EQ(out.at(4, c), table.at(0, c));
    }
    embedding(context_, out.device(), table.device(), device_ids.tensor(), 10, 0.5F);
    out.fetch();
    for (std::int64_t c = 0; c < cols; ++c) ASSERT_EQ(out.at(3, c), 0.5 * table.at(5, c));
  }
}

TEST_P(ElementwiseTest, GatherRowsCopiesTheRowsNamed) {
  for (const RowShape& shape : kRowShapes) {
    const Pair x(dtype(), 9, shape.cols + shape.padding, random_);
    const Pair out(dtype(), shape.rows, shape.cols, random_);
    std::vector<std::int32_t> rows(static_cast<std::size_t>(shape.rows));
    for (std::int32_t& row : rows) row = static_cast<std::int32_t>(random_() % 9);
    const DeviceTensor device_rows(ints(rows));
    gather_rows(context_, out.device(), shape.of(x.device()), device_rows.tensor());
    out.fetch();
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t c = 0; c < shape.cols; ++c)
        ASSERT_EQ(out.at(r, c), x.at(rows[static_cast<std::size_t>(r)], shape.offset + c));
    }
  }
}

// A paged cache of both sides, laid out as the runner does it, and a step of `tokens` tokens at random
// places.
struct PagedStep {
  static constexpr int kBlocks = 40, kBlock = 16;

  PagedStep(DType dtype, int num_tokens, int kv_heads, int dim, std::mt19937& random)
      : memory(dtype, std::int64_t{kBlocks} * kv_heads * 2 * kBlock, dim, random),
        host_cache(cache_of(memory.host(), kv_heads)),
        device_cache(cache_of(memory.device(), kv_heads)),
        slots(slots_of(num_tokens, random)),
        positions(slots.size()) {
    for (std::int32_t& position : positions) position = static_cast<std::int32_t>(random() % 50);
  }

  // The first block gets what is not to be stored: the reference has no such case.
  AttentionBatch host_batch() {
    stored_slots = slots;
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (slots[i] < 0) stored_slots[i] = static_cast<std::int32_t>(i % kBlock);
    AttentionBatch batch;
    batch.num_tokens = static_cast<int>(slots.size());
    batch.positions = ints(positions);
    batch.slot_mapping = ints(stored_slots);
    return batch;
  }

  static KvCacheLayer cache_of(const Tensor& memory, int kv_heads) {
    const std::int64_t dim = memory.dim(1);
    const std::int64_t half = kBlock * dim;
    const auto half_at = [&](std::int64_t offset) {
      auto* data = memory.data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(memory.dtype());
      return Tensor(data, memory.dtype(), {kBlocks, kv_heads, kBlock, dim}, memory.device())
          .with_strides({kv_heads * 2 * half, 2 * half, dim, 1});
    };
    return {half_at(0), half_at(half)};
  }

  static Tensor blocks_of(const Tensor& memory) {
    return {memory.data(),
            DType::kU8,
            {1, kBlocks, static_cast<std::int64_t>(memory.bytes()) / kBlocks},
            memory.device()};
  }

  // Distinct slots from the second block on, every seventh token without one.
  static std::vector<std::int32_t> slots_of(int num_tokens, std::mt19937& random) {
    std::vector<std::int32_t> slots((kBlocks - 1) * kBlock);
    std::iota(slots.begin(), slots.end(), std::int32_t{kBlock});
    std::shuffle(slots.begin(), slots.end(), random);
    slots.resize(static_cast<std::size_t>(num_tokens));
    for (std::size_t i = 3; i < slots.size(); i += 7) slots[i] = -1;
    return slots;
  }

  Pair memory;
  KvCacheLayer host_cache, device_cache;
  std::vector<std::int32_t> slots, stored_slots, positions;
};

struct HeadShape {
  int heads, kv_heads, dim, rotary;
  bool norm;
  bool norm_after = false, scaled = false, value_norm = false;
};

TEST_P(ElementwiseTest, HeadsAreNormalisedRotatedAndStored) {
  for (const HeadShape shape :
       {HeadShape{4, 2, 6, 4, true}, HeadShape{16, 8, 128, 128, true}, HeadShape{3, 1, 64, 64, false},
        HeadShape{5, 5, 80, 32, false}, HeadShape{6, 2, 96, 96, true}, HeadShape{4, 1, 256, 64, true},
        HeadShape{4, 2, 128, 0, true}, HeadShape{2, 1, 200, 20, true}, HeadShape{2, 2, 256, 256, false},
        HeadShape{1, 1, 1, 0, false}, HeadShape{4, 2, 128, 128, true, true, true},
        HeadShape{3, 1, 64, 16, true, true}, HeadShape{4, 2, 128, 0, false, false, true},
        HeadShape{4, 1, 512, 512, true}, HeadShape{2, 2, 272, 16, true, true},
        HeadShape{4, 2, 256, 256, true, false, false, true},
        HeadShape{4, 1, 512, 128, true, false, true, true},
        HeadShape{4, 2, 6, 4, true, false, false, true}}) {
    for (const int tokens : {1, 3, 17, 255}) {
      PagedStep step(dtype(), tokens, shape.kv_heads, shape.dim, random_);
      const Pair qkv(dtype(), tokens, (shape.heads + 2 * shape.kv_heads) * shape.dim, random_);
      const Pair q_norm(DType::kF32, 1, shape.dim, random_);
      const Pair k_norm(DType::kF32, 1, shape.dim, random_);
      const Pair cos_sin(DType::kF32, 50, std::max(shape.rotary, 1), random_);
      const Pair q_scale(DType::kF32, 1, 50, random_);
      const auto input = [&](bool device) {
        AttentionInput result;
        result.qkv = device ? qkv.device() : qkv.host();
        result.norm_eps = 1e-6F;
        result.num_heads = shape.heads;
        result.num_kv_heads = shape.kv_heads;
        result.head_dim = shape.dim;
        if (shape.norm) {
          result.q_norm = device ? q_norm.device_vector() : q_norm.host_vector();
          result.k_norm = device ? k_norm.device_vector() : k_norm.host_vector();
        }
        if (shape.value_norm) result.v_norm = device ? k_norm.device_vector() : k_norm.host_vector();
        if (shape.rotary > 0) result.cos_sin = device ? cos_sin.device() : cos_sin.host();
        result.norm_after_rotary = shape.norm_after;
        if (shape.scaled) result.q_scale = device ? q_scale.device_vector() : q_scale.host_vector();
        return result;
      };
      AttentionBatch batch = step.host_batch();
      reference_.rotate_and_store(input(false), step.host_cache, batch);
      const DeviceTensor slots(ints(step.slots));
      const DeviceTensor positions(ints(step.positions));
      batch.slot_mapping = slots.tensor();
      batch.positions = positions.tensor();
      const std::int64_t block_rows = std::int64_t{shape.kv_heads} * 2 * PagedStep::kBlock;
      const Matrix before(dtype(), block_rows, shape.dim, random_);
      check(cudaMemcpy(before.tensor().data(), step.memory.device().data(), before.tensor().bytes(),
                       cudaMemcpyDeviceToHost),
            "the first block");
      rotate_and_store(context_, input(true), step.device_cache, batch);

      const std::string what = std::to_string(tokens) + " tokens, heads of " + std::to_string(shape.dim) +
                               ", " + std::to_string(shape.rotary) + " rotated";
      qkv.expect_equal("qkv, " + what, tolerance());
      // The first block is as it was; then it takes the reference's contents, and all must agree.
      const Matrix after(dtype(), block_rows, shape.dim, random_);
      check(cudaMemcpy(after.tensor().data(), step.memory.device().data(), after.tensor().bytes(),
                       cudaMemcpyDeviceToHost),
            "the first block");
      EXPECT_EQ(after.bytes(), before.bytes()) << what;
      check(cudaMemcpy(step.memory.device().data(), step.memory.host().data(), before.tensor().bytes(),
                       cudaMemcpyHostToDevice),
            "the first block");
      step.memory.expect_equal("cache, " + what, tolerance());
    }
  }
}

TEST_P(ElementwiseTest, CopyBlocksCopiesInOrder) {
  for (const int dim : {6, 128}) {
    const PagedStep step(dtype(), 1, 2, dim, random_);
    std::vector<std::int32_t> pairs = {5, 6, 1, 2, 6, 9, 30, 5};  // the third copies what the first wrote
    const Tensor host_pairs(pairs.data(), DType::kI32, {4, 2});
    const DeviceTensor device_pairs(host_pairs);
    const Tensor host = PagedStep::blocks_of(step.memory.host());
    const Tensor device = PagedStep::blocks_of(step.memory.device());
    reference_.copy_blocks(host, host, host_pairs);
    copy_blocks(context_, device, device, device_pairs.tensor());
    step.memory.expect_equal("cache", 0);
  }
}

TEST_P(ElementwiseTest, CopyBlocksGoesToPinnedMemoryAndBack) {
  for (const int dim : {6, 128}) {
    const PagedStep step(dtype(), 1, 2, dim, random_);
    const Tensor host = PagedStep::blocks_of(step.memory.host());
    const Tensor device = PagedStep::blocks_of(step.memory.device());
    std::vector<std::byte> expected(host.bytes());
    void* pinned = nullptr;
    check(cudaMallocHost(&pinned, expected.size()), "pinned memory");
    std::memset(pinned, 0, expected.size());
    const auto swapped = [&](void* data) { return Tensor(data, DType::kU8, {1, host.dim(1), host.dim(2)}); };
    std::vector<std::int32_t> saved = {5, 6, 1, 2, 39, 0}, restored = {2, 30, 0, 1};
    const Tensor saves(saved.data(), DType::kI32, {3, 2}), restores(restored.data(), DType::kI32, {2, 2});
    const DeviceTensor device_saves(saves), device_restores(restores);
    reference_.copy_blocks(swapped(expected.data()), host, saves);
    reference_.copy_blocks(host, swapped(expected.data()), restores);
    copy_blocks(context_, swapped(pinned), device, device_saves.tensor());
    copy_blocks(context_, device, swapped(pinned), device_restores.tensor());
    step.memory.expect_equal("cache", 0);
    EXPECT_EQ(std::memcmp(pinned, expected.data(), expected.size()), 0);
    check(cudaFreeHost(pinned), "pinned memory");
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ElementwiseTest, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

class CapTest : public testing::DeviceTest {};

TEST_F(CapTest, IsThatOfTheReferenceAndLeavesWhatLiesBesideItAlone) {
  std::mt19937 random(9);
  ReferenceBackend reference;
  for (const RowShape& shape : kRowShapes) {
    for (const float limit : {30.0F, 0.5F}) {
      const Pair x(DType::kF32, shape.rows, shape.cols + shape.padding, random, 40.0F);
      x.host().data_as<float>()[shape.offset] = -INFINITY;
      check(cudaMemcpy(x.device().data_as<float>(), x.host().data(), x.host().bytes(), cudaMemcpyDefault),
            "x");
      reference.cap(shape.of(x.host()), limit);
      cap(context_, shape.of(x.device()), limit);
      x.expect_equal(shape.describe(), 1e-6);
    }
  }
}

}  // namespace
}  // namespace quire::cuda
