#pragma once

#include <array>
#include <cstdint>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/linear.h"
#include "base/tensor.h"

namespace quire::cuda {

// How the codes of a quantised matrix lie in a tile; what they stand for.
enum class CodeKind : std::uint8_t {
  kInt4,    // 4 bits: the code - code_offset
  kE2m1,    // 4 bits: E2M1
  kTable4,  // 4 bits: of a table of 16
  kInt8,    // 8 bits: the code - code_offset
  kE4m3,    // 8 bits: E4M3
};
// How a block's scale or minimum lies in a tile.
enum class ScaleKind : std::uint8_t { kNone, kF16, kF32, kByte };  // kByte: one of 256 values

// A quantised matrix [rows, cols] in tiles of 16 rows × 128 columns, zeros at the end, which lie one behind
// the other along a row of tiles. A tile is cut along its columns into 8 steps of 16, each the left operand
// of one tensor-core product: lane l of the warp holds rows g = l / 4 and g + 8 at columns 4 (l % 4) to
// 4 (l % 4) + 3 of the step, of which the first two are the product's columns 2 (l % 4) and its right
// neighbour, the others those 8 further on. A tile is
//   codes: 16 bytes for each lane, lane by lane, so many times as there are vectors (below);
//   scales, then minima: for each block of columns [8][2], rows g and g + 8 side by side;
//   super scales, then super minima: f32 [8][2].
// Of 4 bits a vector holds 4 steps, a word each: the nibbles i and i + 4 of the word are register i of the
// operand (mma.cuh's a), with kTable4 2 i and 2 i + 1. Of 8 bits it holds 2 steps, two words each: of word w
// bytes 0 and 2 are register 2 w, bytes 1 and 3 are 2 w + 1.
struct QuantizedLayout {
  static constexpr int kTileRows = 16;
  static constexpr int kTileColumns = 128;
  static constexpr int kStepColumns = 16;
  static constexpr int kSteps = kTileColumns / kStepColumns;

  CodeKind code = CodeKind::kInt4;
  ScaleKind scale = ScaleKind::kNone;
  ScaleKind minimum = ScaleKind::kNone;
  bool is_zero = false;     // minima are times the block's scale
  bool has_supers = false;  // scales, and minima that are no zero points, are times their tile's row's
  bool has_row_scales = false;
  int code_offset = 0;
  int block_log2 = 3;  // of the steps of a block of columns: 0 to 3
  int rows = 0;
  int cols = 0;
  int scale_at = 0;  // bytes from a tile's begin
  int minimum_at = 0;
  int super_at = 0;
  int super_minimum_at = 0;
  int tile_bytes = 0;

  constexpr bool is_4_bits() const {
    return code == CodeKind::kInt4 || code == CodeKind::kE2m1 || code == CodeKind::kTable4;
  }
  constexpr int row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  constexpr int col_tiles() const { return (cols + kTileColumns - 1) / kTileColumns; }
  // Of a row of tiles.
  constexpr std::int64_t row_bytes() const { return std::int64_t{tile_bytes} * col_tiles(); }
};

// What 256 codes stand for; scale bytes, minimum bytes and codes.
struct QuantizedValues {
  float scale[256];
  float minimum[256];
  float code[256];
};

// It on the device.
struct QuantizedMatrix {
  QuantizedLayout layout;
  const std::uint8_t* tiles = nullptr;
  const float* row_scales = nullptr;  // [rows of tiles * 16], or null: a row's sums are times them
  const QuantizedValues* values = nullptr;
  // Of kTable4: the low bytes of the table's 16 values, then the high ones, in bfloat16 and in float16.
  std::array<std::uint32_t, 8> table_bf16 = {};
  std::array<std::uint32_t, 8> table_f16 = {};

  // The tiles under the matrix's own sizes.
  Tensor tile_tensor() const {
    return Tensor(const_cast<std::uint8_t*>(tiles), DType::kU8, {layout.rows, layout.cols},
                  DeviceKind::kCuda);
  }
};

// out [tokens, rows] = x [tokens, cols] · matrixᵀ + bias f32 [rows], or undefined; out in x's dtype or f32.
// Rows of x may be strided. A gate is as in linear.h; gate and up have multiples of 16 rows.

// Whether the fast ones can take it: 16 bits, rows that can be read 16 bytes at a time.
bool quantized_products_support(const Tensor& x);
// For 1 to so many tokens.
constexpr int kMaxQuantizedMatvecTokens = 16;
void quantized_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x,
                      const QuantizedMatrix& matrix, const Tensor& bias, Gate gate = {});
// For any number of tokens, made for some dozens to hundreds, on Hopper alone. The order of an element's sum
// depends on the number of tokens. workspace: u8, on the device, of at least so many bytes.
std::size_t quantized_batched_workspace_bytes(std::int64_t tokens, const QuantizedLayout& layout);
void quantized_batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const QuantizedMatrix& matrix, const Tensor& bias, const Tensor& workspace);
// For any number of tokens and any dtype, in float32; every element is summed over cols in one order,
// whatever the number of tokens.
void quantized_fixed_order_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                                  const QuantizedMatrix& matrix, const Tensor& bias);

// out [n, cols], contiguous, of 16 bits = rows [row, row + n) of the matrix, rounded; row is a multiple
// of 16.
void dequantize_rows(const LaunchContext& context, const Tensor& out, const QuantizedMatrix& matrix,
                     std::int64_t row);
// Backend::embedding of a quantised matrix.
void embedding(const LaunchContext& context, const Tensor& out, const QuantizedMatrix& matrix,
               const Tensor& ids, std::int64_t first_row, float scale);

}  // namespace quire::cuda
