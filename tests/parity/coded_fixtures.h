#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/weight_group.h"

namespace quire::testing {

// A tensor of any type that lies in memory.
class StoredTensor final : public WeightTensor {
 public:
  StoredTensor(DType dtype, std::vector<std::int64_t> shape)
      : WeightTensor("coded.weight", dtype, std::move(shape),
                     [this](std::int64_t row, const Tensor& dst) { read(row, dst); }),
        bytes_(static_cast<std::size_t>(rows() * cols()) * size_of(dtype)) {}

  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(bytes_.data());
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

// Scales of a type between 2^-6 and 1 (integers: from 1 to 60).
inline WeightTensorPtr random_scales(ScaleType type, std::int64_t rows, std::int64_t cols,
                                     std::mt19937& random) {
  auto tensor = std::make_shared<StoredTensor>(dtype_of(type), std::vector{rows, cols});
  std::uniform_real_distribution<float> value(0x1p-6F, 1.0F);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const float scale = value(random);
    if (type == ScaleType::kF32) tensor->data<float>()[i] = scale;
    if (type == ScaleType::kF16) tensor->data<Float16>()[i] = from_float<Float16>(scale);
    if (type == ScaleType::kU8) tensor->data<std::uint8_t>()[i] = static_cast<std::uint8_t>(1 + scale * 59);
    if (type == ScaleType::kI8) tensor->data<std::int8_t>()[i] = static_cast<std::int8_t>(60 * scale - 30);
    if (type == ScaleType::kE4m3) tensor->data<std::uint8_t>()[i] = to_e4m3(scale);
    if (type == ScaleType::kE8m0)
      tensor->data<std::uint8_t>()[i] = static_cast<std::uint8_t>(127 - 6 * scale);
  }
  return tensor;
}

// Random codes and scales of a format.
inline WeightGroup random_codes(const LinearFormat& format, std::int64_t rows, std::int64_t cols,
                                std::mt19937& random) {
  const auto blocks = [](std::int64_t n, std::int64_t block) { return (n + block - 1) / block; };
  auto codes = std::make_shared<StoredTensor>(DType::kU8, std::vector{rows, cols});
  std::uniform_int_distribution<int> code(0, (1 << format.bits) - 1);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    int value = code(random);
    if (format.code == CodeType::kE4m3) value &= 0xB7;  // up to 0.9375, and no NaN
    codes->data<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
  }
  const std::int64_t row_blocks = blocks(rows, format.block_rows),
                     col_blocks = blocks(cols, format.block_cols);
  WeightGroup group = {{{WeightPart::kWeight, codes},
                        {WeightPart::kScale, random_scales(format.scale, row_blocks, col_blocks, random)}},
                       format,
                       rows,
                       cols};
  const auto add = [&](WeightPart part, ScaleType type, std::int64_t n) {
    group.tensors.push_back({part, random_scales(type, row_blocks, n, random)});
  };
  if (format.offset == OffsetType::kZero) add(WeightPart::kOffset, ScaleType::kU8, col_blocks);
  if (format.offset == OffsetType::kMinimum) add(WeightPart::kOffset, format.minimum, col_blocks);
  if (format.super_cols > 0) {
    add(WeightPart::kSuperScale, ScaleType::kF32, blocks(cols, format.super_cols));
    if (format.offset == OffsetType::kMinimum)
      add(WeightPart::kSuperMinimum, ScaleType::kF32, blocks(cols, format.super_cols));
  }
  return group;
}

struct NamedFormat {
  const char* name;
  LinearFormat format;
};

// One format for each way that codes, scales and what is taken away are stored.
inline std::vector<NamedFormat> all_formats() {
  constexpr std::array<float, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
  constexpr std::array<float, 16> kNf4 = {-1.0F,
                                          -0.6961928009986877F,
                                          -0.5250730514526367F,
                                          -0.39491748809814453F,
                                          -0.28444138169288635F,
                                          -0.18477343022823334F,
                                          -0.09105003625154495F,
                                          0.0F,
                                          0.07958029955625534F,
                                          0.16093020141124725F,
                                          0.24611230194568634F,
                                          0.33791524171829224F,
                                          0.44070982933044434F,
                                          0.5626170039176941F,
                                          0.7229568362236023F,
                                          1.0F};
  constexpr std::int64_t kWhole = LinearFormat::kWhole;
  return {
      {"int4_g128",
       {.code = CodeType::kInt, .bits = 4, .code_offset = 8, .block_cols = 128, .scale = ScaleType::kF16}},
      {"int4_g32_zeros",
       {.code = CodeType::kInt,
        .bits = 4,
        .block_cols = 32,
        .scale = ScaleType::kF32,
        .offset = OffsetType::kZero}},
      {"int4_rows",
       {.code = CodeType::kInt, .bits = 4, .code_offset = 8, .block_cols = kWhole, .scale = ScaleType::kF32}},
      {"int8_rows",
       {.code = CodeType::kInt,
        .bits = 8,
        .code_offset = 128,
        .block_cols = kWhole,
        .scale = ScaleType::kF32}},
      {"int8_g128_zeros",
       {.code = CodeType::kInt,
        .bits = 8,
        .block_cols = 128,
        .scale = ScaleType::kF16,
        .offset = OffsetType::kZero}},
      {"q8_0",
       {.code = CodeType::kInt, .bits = 8, .code_offset = 128, .block_cols = 32, .scale = ScaleType::kF16}},
      {"q5_1",
       {.code = CodeType::kInt,
        .bits = 5,
        .block_cols = 32,
        .scale = ScaleType::kF16,
        .offset = OffsetType::kMinimum,
        .minimum = ScaleType::kF16}},
      {"int6_rows",
       {.code = CodeType::kInt,
        .bits = 6,
        .code_offset = 32,
        .block_cols = kWhole,
        .scale = ScaleType::kF32}},
      {"int5_g8",
       {.code = CodeType::kInt, .bits = 5, .code_offset = 16, .block_cols = 8, .scale = ScaleType::kF16}},
      {"q2_k",
       {.code = CodeType::kInt,
        .bits = 2,
        .block_cols = 16,
        .scale = ScaleType::kU8,
        .offset = OffsetType::kMinimum,
        .minimum = ScaleType::kU8,
        .super_cols = 256}},
      {"q3_k",
       {.code = CodeType::kInt,
        .bits = 3,
        .code_offset = 4,
        .block_cols = 16,
        .scale = ScaleType::kI8,
        .super_cols = 256}},
      {"q4_k",
       {.code = CodeType::kInt,
        .bits = 4,
        .block_cols = 32,
        .scale = ScaleType::kU8,
        .offset = OffsetType::kMinimum,
        .minimum = ScaleType::kU8,
        .super_cols = 256}},
      {"q6_k",
       {.code = CodeType::kInt,
        .bits = 6,
        .code_offset = 32,
        .block_cols = 16,
        .scale = ScaleType::kI8,
        .super_cols = 256}},
      {"iq4_xs",
       {.code = CodeType::kTable,
        .bits = 4,
        .table = kIq4,
        .block_cols = 32,
        .scale = ScaleType::kI8,
        .super_cols = 256}},
      {"nf4",
       {.code = CodeType::kTable, .bits = 4, .table = kNf4, .block_cols = 64, .scale = ScaleType::kF32}},
      {"mxfp4",
       {.code = CodeType::kTable,
        .bits = 4,
        .table = kE2m1Table,
        .block_cols = 32,
        .scale = ScaleType::kE8m0}},
      {"nvfp4",
       {.code = CodeType::kTable,
        .bits = 4,
        .table = kE2m1Table,
        .block_cols = 16,
        .scale = ScaleType::kE4m3,
        .super_cols = kWhole}},
      {"fp8_blocks",
       {.code = CodeType::kE4m3, .bits = 8, .block_rows = 128, .block_cols = 128, .scale = ScaleType::kF32}},
      {"fp8_tensor",
       {.code = CodeType::kE4m3,
        .bits = 8,
        .block_rows = kWhole,
        .block_cols = kWhole,
        .scale = ScaleType::kF32}},
  };
}

// Formats whose products round their input.
inline std::vector<NamedFormat> rounding_formats() {
  LinearFormat fp8 = {
      .code = CodeType::kE4m3, .bits = 8, .block_cols = LinearFormat::kWhole, .scale = ScaleType::kF32};
  LinearFormat int8 = fp8, fp8_static = fp8, fp8_blocks = fp8;
  fp8.input = {.code = InputFormat::Code::kE4m3};
  fp8_static.input = {.code = InputFormat::Code::kE4m3, .scale = 0.003F};
  fp8_blocks.block_rows = fp8_blocks.block_cols = 128;
  fp8_blocks.input = {.code = InputFormat::Code::kE4m3, .in_blocks = true};
  int8.code = CodeType::kInt;
  int8.code_offset = 128;
  int8.input = {.code = InputFormat::Code::kI8};
  return {{"fp8_of_fp8_tokens", fp8},
          {"fp8_of_fp8_static", fp8_static},
          {"fp8_of_fp8_blocks", fp8_blocks},
          {"int8_of_int8_tokens", int8}};
}

// What a product takes in place of x.
inline std::vector<float> rounded_input(const LinearFormat& format, const std::vector<float>& x) {
  if (format.input.code == InputFormat::Code::kNone) return x;
  std::vector<float> codes(x.size()), scales(x.size());
  quantize_input(format, x.data(), std::ssize(x), codes.data(), scales.data());
  const std::int64_t block = format.input.in_blocks ? format.block_cols : std::ssize(x);
  for (std::int64_t i = 0; i < std::ssize(x); ++i)
    codes[static_cast<std::size_t>(i)] *= scales[static_cast<std::size_t>(i / block)];
  return codes;
}

}  // namespace quire::testing
