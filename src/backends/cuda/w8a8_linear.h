#pragma once

#include <span>
#include <vector>

#include "backends/cuda/kernels/w8a8.h"
#include "backends/cuda/matmul.h"
#include "ops/ops.h"

namespace quire::cuda {

// How the matrix of groups that are alike, whose format rounds x to 8 bits, lies in the device's memory, its
// codes from `device` on and its scales behind them. Error that names it where the format is not supported.
W8a8Matrix w8a8_matrix(const void* device, std::span<const WeightGroup> parts);
std::size_t w8a8_bytes(const W8a8Matrix& matrix);

// The codes, u8 [rows, matrix.stride], as they are read; and the scales in the matrix's order.
WeightTensorPtr w8a8_codes(const QuantizedRows& rows, const W8a8Matrix& matrix);
std::vector<float> w8a8_scales(const QuantizedRows& rows, const W8a8Matrix& matrix);

// As those of matmul.h. workspace: u8, on the device, for codes of x, as many tokens at a time as fit.
void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const W8a8Matrix& matrix, const Tensor& bias, const Tensor& workspace);
bool fused_gated_linear(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const W8a8Matrix& matrix, Activation activation, SumOrder order,
                        const Tensor& workspace);

}  // namespace quire::cuda
