#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/quantized_weights.h"

namespace quire::cuda::testing {

// A tensor of a checkpoint that lies in memory.
class BytesTensor final : public WeightTensor {
 public:
  BytesTensor(DType dtype, std::int64_t rows, std::int64_t cols)
      : WeightTensor("weight", dtype, {rows, cols},
                     [this](std::int64_t row, const Tensor& dst) { read(row, dst); }),
        bytes_(static_cast<std::size_t>(rows * cols) * size_of(dtype)) {}

  void fill(const std::function<float()>& value) {
    for (std::int64_t i = 0; i < rows() * cols(); ++i) {
      const float v = value();
      std::byte* to = bytes_.data() + static_cast<std::size_t>(i) * size_of(dtype());
      if (is_float(dtype())) {
        convert(DType::kF32, &v, dtype(), to, 1);
      } else {
        *to = static_cast<std::byte>(static_cast<int>(v));
      }
    }
  }

 private:
  void read(std::int64_t row, const Tensor& dst) const {
    const std::byte* from = bytes_.data() + static_cast<std::size_t>(row * cols()) * size_of(dtype());
    if (dst.dtype() == dtype()) {
      std::memcpy(dst.data(), from, dst.bytes());
    } else {
      convert(dtype(), from, dst.dtype(), dst.data(), static_cast<std::size_t>(dst.numel()));
    }
  }

  std::vector<std::byte> bytes_;
};

struct NamedFormat {
  const char* name;
  LinearFormat format;
};

inline constexpr std::array<float, 16> kIq4Table = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                    1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::array<float, 16> kNf4Table = {
    -1.0F,       -0.6961928F, -0.52507305F, -0.3949175F, -0.28444138F, -0.18477343F, -0.091050036F, 0.0F,
    0.07958030F, 0.1609302F,  0.2461123F,   0.33791524F, 0.44070983F,  0.562617F,    0.72295684F,   1.0F};

// One for each way in which published formats use the kernels.
inline std::vector<NamedFormat> published_formats() {
  using enum CodeType;
  using S = ScaleType;
  using O = OffsetType;
  constexpr std::int64_t kWhole = LinearFormat::kWhole;
  return {
      {"int4 g128", {.code = kInt, .bits = 4, .code_offset = 8, .block_cols = 128, .scale = S::kF16}},
      {"int4 g128 zeros", {.code = kInt, .bits = 4, .block_cols = 128, .scale = S::kF16, .offset = O::kZero}},
      {"int4 rows zeros",
       {.code = kInt, .bits = 4, .block_cols = kWhole, .scale = S::kF16, .offset = O::kZero}},
      {"int4 g32 f32", {.code = kInt, .bits = 4, .code_offset = 8, .block_cols = 32, .scale = S::kF32}},
      {"int4 g64", {.code = kInt, .bits = 4, .code_offset = 8, .block_cols = 64, .scale = S::kF16}},
      {"int4 g64 zeros", {.code = kInt, .bits = 4, .block_cols = 64, .scale = S::kF16, .offset = O::kZero}},
      {"q4_1",
       {.code = kInt,
        .bits = 4,
        .block_cols = 32,
        .scale = S::kF16,
        .offset = O::kMinimum,
        .minimum = S::kF16}},
      {"q4_k",
       {.code = kInt,
        .bits = 4,
        .block_cols = 32,
        .scale = S::kU8,
        .offset = O::kMinimum,
        .minimum = S::kU8,
        .super_cols = 256}},
      {"q4_k cut",
       {.code = kInt,
        .bits = 4,
        .block_cols = 32,
        .scale = S::kU8,
        .offset = O::kMinimum,
        .minimum = S::kU8,
        .super_cols = 64}},
      {"q2_k",
       {.code = kInt,
        .bits = 2,
        .block_cols = 16,
        .scale = S::kU8,
        .offset = O::kMinimum,
        .minimum = S::kU8,
        .super_cols = 256}},
      {"q3_k",
       {.code = kInt, .bits = 3, .code_offset = 4, .block_cols = 16, .scale = S::kI8, .super_cols = 256}},
      {"q6_k",
       {.code = kInt, .bits = 6, .code_offset = 32, .block_cols = 16, .scale = S::kI8, .super_cols = 256}},
      {"q5_1",
       {.code = kInt,
        .bits = 5,
        .block_cols = 32,
        .scale = S::kF16,
        .offset = O::kMinimum,
        .minimum = S::kF16}},
      {"q8_0", {.code = kInt, .bits = 8, .code_offset = 128, .block_cols = 32, .scale = S::kF16}},
      {"int8 rows", {.code = kInt, .bits = 8, .code_offset = 128, .block_cols = kWhole, .scale = S::kF32}},
      {"int8 g128 zeros", {.code = kInt, .bits = 8, .block_cols = 128, .scale = S::kF16, .offset = O::kZero}},
      {"fp8 blocks", {.code = kE4m3, .bits = 8, .block_rows = 128, .block_cols = 128, .scale = S::kF32}},
      {"fp8 rows", {.code = kE4m3, .bits = 8, .block_cols = kWhole, .scale = S::kF32}},
      {"fp8 tensor",
       {.code = kE4m3, .bits = 8, .block_rows = kWhole, .block_cols = kWhole, .scale = S::kF32}},
      {"mxfp8", {.code = kE4m3, .bits = 8, .block_cols = 32, .scale = S::kE8m0}},
      {"mxfp4", {.code = kTable, .bits = 4, .table = kE2m1Table, .block_cols = 32, .scale = S::kE8m0}},
      {"nvfp4",
       {.code = kTable,
        .bits = 4,
        .table = kE2m1Table,
        .block_cols = 16,
        .scale = S::kE4m3,
        .super_cols = kWhole}},
      {"iq4_nl", {.code = kTable, .bits = 4, .table = kIq4Table, .block_cols = 32, .scale = S::kF16}},
      {"iq4_xs",
       {.code = kTable, .bits = 4, .table = kIq4Table, .block_cols = 32, .scale = S::kI8, .super_cols = 256}},
      {"nf4", {.code = kTable, .bits = 4, .table = kNf4Table, .block_cols = 64, .scale = S::kF32}},
  };
}

// With activations in E4M3.
inline LinearFormat fp8(std::int64_t block_rows, std::int64_t block_cols, bool in_blocks, float scale = 0) {
  return {.code = CodeType::kE4m3,
          .bits = 8,
          .block_rows = block_rows,
          .block_cols = block_cols,
          .scale = ScaleType::kF32,
          .input = {InputFormat::Code::kE4m3, in_blocks, scale}};
}

// One for each way in which products round their activations.
inline std::vector<NamedFormat> w8a8_formats() {
  constexpr std::int64_t kWhole = LinearFormat::kWhole;
  const auto int8 = [](float scale) {
    return LinearFormat{.code = CodeType::kInt,
                        .bits = 8,
                        .code_offset = 128,
                        .block_cols = kWhole,
                        .scale = ScaleType::kF32,
                        .input = {InputFormat::Code::kI8, false, scale}};
  };
  return {{"w8a8 fp8 rows", fp8(1, kWhole, false)},
          {"w8a8 fp8 static", fp8(kWhole, kWhole, false, 0.004F)},
          {"w8a8 fp8 blocks", fp8(128, 128, true)},
          {"w8a8 fp8 blocks, tokens", fp8(128, 128, false)},
          {"w8a8 fp8 blocks cut", fp8(64, 64, true)},
          {"w8a8 fp8 narrow blocks", fp8(16, 16, true)},
          {"w8a8 int8 rows", int8(0)},
          {"w8a8 int8 static", int8(0.02F)}};
}

// Random codes, scales and offsets.
inline WeightGroup random_group(const LinearFormat& format, std::int64_t rows, std::int64_t cols,
                                std::mt19937& random) {
  const auto blocks = [](std::int64_t n, std::int64_t block) { return (n + block - 1) / block; };
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  const auto integer = [&](int low, int high) {
    return static_cast<float>(std::uniform_int_distribution<int>(low, high)(random));
  };
  WeightGroup group{{}, format, rows, cols};
  const auto add = [&](WeightPart part, DType dtype, std::int64_t part_rows, std::int64_t part_cols,
                       const std::function<float()>& value) {
    auto tensor = std::make_shared<BytesTensor>(dtype, part_rows, part_cols);
    tensor->fill(value);
    group.tensors.push_back({part, tensor});
  };
  const auto scale_of = [&](ScaleType type) {
    return [&, type]() -> float {
      switch (type) {
        case ScaleType::kU8:
          return integer(0, 63);
        case ScaleType::kI8:
          return integer(-32, 31);
        case ScaleType::kE4m3:
          return integer(0x20, 0x60);
        case ScaleType::kE8m0:
          return integer(120, 130);
        default:
          return uniform(0.01F, 0.03F);
      }
    };
  };
  const int most = (1 << format.bits) - 1;
  add(WeightPart::kWeight, DType::kU8, rows, cols, [&] {
    const float code = integer(0, most);
    return format.code == CodeType::kE4m3 && (static_cast<int>(code) & 0x7F) == 0x7F ? 0.0F : code;
  });
  const std::int64_t block_rows = blocks(rows, format.block_rows),
                     block_cols = blocks(cols, format.block_cols);
  add(WeightPart::kScale, dtype_of(format.scale), block_rows, block_cols, scale_of(format.scale));
  if (format.offset == OffsetType::kZero)
    add(WeightPart::kOffset, DType::kU8, block_rows, block_cols, [&] { return integer(0, most); });
  if (format.offset == OffsetType::kMinimum)
    add(WeightPart::kOffset, dtype_of(format.minimum), block_rows, block_cols, scale_of(format.minimum));
  if (format.super_cols == 0) return group;
  const std::int64_t supers = blocks(cols, format.super_cols);
  add(WeightPart::kSuperScale, DType::kF32, block_rows, supers, [&] { return uniform(0.01F, 0.03F); });
  if (format.offset == OffsetType::kMinimum)
    add(WeightPart::kSuperMinimum, DType::kF32, block_rows, supers, [&] { return uniform(0.01F, 0.1F); });
  return group;
}

// A group's bytes as they lie on the device, in the order of quantized_bytes.
inline std::vector<std::byte> packed_bytes(const WeightGroup& group) {
  const QuantizedLayout layout = quantized_layout({&group, 1});
  const QuantizedRows rows = quantized_rows({&group, 1});
  std::vector<std::byte> bytes(quantized_bytes(layout));
  quantized_tiles(rows, layout)
      ->read_rows(0, Tensor(bytes.data(), DType::kU8, {layout.row_tiles(), layout.row_bytes()}));
  std::ranges::copy(quantized_tail(rows, layout), bytes.data() + layout.row_tiles() * layout.row_bytes());
  return bytes;
}

}  // namespace quire::cuda::testing
