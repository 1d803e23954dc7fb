#pragma once

#include <cstdint>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/linear.h"
#include "base/tensor.h"
#include "ops/linear_format.h"

namespace quire::cuda {

// A matrix [rows, cols] of codes of 8 bits on the device, in a product with which x is rounded to such codes,
// too (InputFormat). Row-major, so that a library and kernels of ours read one form.
struct W8a8Matrix {
  const std::uint8_t* codes = nullptr;  // [rows, stride]: E4M3, or i8; zeros from cols on
  const float* scales = nullptr;        // [ceil(rows / block_rows), scale_stride]
  int rows = 0;
  int cols = 0;
  int stride = 0;  // cols, up to a multiple of 16
  int block_rows = 1;
  int block_cols = 0;  // cols where a row has one scale, else a power of two from 16 to 256
  int num_blocks = 1;  // of columns
  int scale_stride = 1;
  InputFormat input;

  constexpr bool is_float() const { return input.code == InputFormat::Code::kE4m3; }
  // The codes as [rows, stride] of a type of 8 bits.
  Tensor code_tensor(DType dtype) const {
    return Tensor(const_cast<std::uint8_t*>(codes), dtype, {rows, stride}, DeviceKind::kCuda);
  }
};

// Rows of x as codes u8 [tokens, matrix.stride], zeros from cols on, and their scales f32
// [matrix.num_blocks, tokens]; a token's scale stands in each.
struct RoundedInput {
  Tensor codes;
  Tensor scales;
};
// Of x [tokens, cols], of any dtype and strided: what quantize_input (ops/linear_format.h) says, to the bit.
void round_input(const LaunchContext& context, const RoundedInput& out, const Tensor& x,
                 const W8a8Matrix& matrix);

// out [tokens, rows] = x · matrixᵀ + bias f32 [rows], or undefined; out in x's dtype or f32. A gate is as
// in linear.h.

// Whether the next one takes it: up to 8 tokens of 16 bits, whose codes fit beside the weights' ring.
bool w8a8_matvec_supports(const LaunchContext& context, const Tensor& x, const W8a8Matrix& matrix);
// rounded: of x; of one token it may be undefined: the kernel rounds it itself.
void w8a8_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x,
                 const RoundedInput& rounded, const W8a8Matrix& matrix, const Tensor& bias, Gate gate = {});
// Whether the next one can take it: E4M3 in whole rows, on Hopper; where gated, gate's rows a multiple of 8.
bool w8a8_has_batched_matmul(const W8a8Matrix& matrix, bool gated);
// For any number of tokens, made for some dozens to hundreds.
void w8a8_batched_matmul(const LaunchContext& context, const Tensor& out, const RoundedInput& x,
                         const W8a8Matrix& matrix, const Tensor& bias, Gate gate = {});
// For any number of tokens; every element is summed over cols in one order, whatever the number of tokens.
void w8a8_fixed_order_matmul(const LaunchContext& context, const Tensor& out, const RoundedInput& x,
                             const W8a8Matrix& matrix, const Tensor& bias);
// The same of sums i32 [tokens, rows], contiguous, over codes, as a library gives them.
void scale_sums(const LaunchContext& context, const Tensor& out, const Tensor& sums, const RoundedInput& x,
                const W8a8Matrix& matrix, const Tensor& bias);

// Backend::embedding of such a matrix.
void embedding(const LaunchContext& context, const Tensor& out, const W8a8Matrix& matrix, const Tensor& ids,
               std::int64_t first_row, float scale);

}  // namespace quire::cuda
