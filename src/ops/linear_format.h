#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace quire {

// How a code stands for a number, before its scale.
enum class CodeType : std::uint8_t {
  kNone,   // no codes: the matrix is stored in a float type
  kInt,    // the code - code_offset
  kTable,  // table[code]
  kE4m3,   // 8-bit floating point of 4 bits of exponent and 3 of mantissa ("OCP 8-bit Floating Point
           // Specification", 2023): no infinities, 0x7F and 0xFF are NaN
};

// How a scale or a minimum of a block is stored.
enum class ScaleType : std::uint8_t {
  kNone,  // there is none
  kF32,
  kF16,
  kU8,    // an integer
  kI8,    // an integer
  kE4m3,  // as CodeType's
  kE8m0,  // 2^(code - 127) ("OCP Microscaling Formats Specification", 2023); 0xFF is NaN
};

// What is taken away from a block's values.
enum class OffsetType : std::uint8_t {
  kNone,
  kZero,     // the zero point, u8, times the scale
  kMinimum,  // the minimum
};

// How the activations x of a product are rounded before they meet the codes of the weights: to codes of their
// own, each the nearest of x / scale, ties to even, at most the largest one. The scale is the largest
// magnitude / 448 (E4M3) or / 127 (integers) of a token, or of each of its blocks of
// LinearFormat::block_cols columns; 1 where that is 0; or what the checkpoint says. A rank rounds the columns
// that it has.
struct InputFormat {
  enum class Code : std::uint8_t {
    kNone,  // x stays as it is
    kE4m3,  // beside weights of E4M3
    kI8,    // -127 to 127, beside integers of 8 bits whose scales are of whole rows
  };

  Code code = Code::kNone;
  bool in_blocks = false;  // else of a token
  float scale = 0;         // of all, from the checkpoint; 0: there is none

  bool operator==(const InputFormat&) const = default;
};

// How the tensors of a group stand for a matrix W [rows, cols]. Its elements have codes; blocks of block_rows
// × block_cols of them share a scale s and what is taken away:
//   W[r, c] = s * value(code[r, c]) - s * zero, or - minimum, or nothing.
// With super-blocks, block_rows × super_cols, a block's scale is the product of the stored one and its
// super-block's, which is an f32; so is its minimum. Blocks at the end may be cut short. A block may be as
// wide as the matrix: whole_row.
struct LinearFormat {
  static constexpr std::int64_t kWhole = std::int64_t{1} << 40;

  CodeType code = CodeType::kNone;
  int bits = 0;         // of a code: 2, 3, 4, 5, 6 or 8
  int code_offset = 0;  // kInt
  std::array<float, 16> table = {};
  std::int64_t block_rows = 1;
  std::int64_t block_cols = 1;
  ScaleType scale = ScaleType::kNone;
  OffsetType offset = OffsetType::kNone;
  ScaleType minimum = ScaleType::kNone;  // of OffsetType::kMinimum
  std::int64_t super_cols = 0;           // 0: there are no super-blocks
  // The columns of the codes stand in another order than those of the input: column i of the codes is column
  // order[i] of W (GPTQ's activation order).
  bool is_ordered = false;
  InputFormat input = {};

  bool is_plain() const { return code == CodeType::kNone; }
  bool operator==(const LinearFormat&) const = default;
};

// x [cols] of one token as codes, each as the number that it stands for, and their scales, one or [blocks].
void quantize_input(const LinearFormat& format, const float* x, std::int64_t cols, float* codes,
                    float* scales);

// What OCP E4M3 and E8M0 bits stand for.
float from_e4m3(std::uint8_t bits);
inline float from_e8m0(std::uint8_t bits) {
  // The exponent 0 is a subnormal of float32.
  return std::bit_cast<float>(bits == 0      ? 0x00400000U
                              : bits == 0xFF ? 0x7FC00000U
                                             : std::uint32_t{bits} << 23);
}
// The nearest E4M3, ties to even; what is larger than 448 becomes 448.
std::uint8_t to_e4m3(float value);

// The eight values of E2M1, 4-bit floating point, by code, and their negatives (OCP Microscaling).
inline constexpr std::array<float, 16> kE2m1Table = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                     -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// The values of all codes of a format.
std::array<float, 256> code_values(const LinearFormat& format);
// The type that tensors of such scales have.
DType dtype_of(ScaleType type);
// n of them as float32, before their super-blocks' scales.
void read_scales(ScaleType type, const void* scales, std::int64_t n, float* out);

}  // namespace quire
