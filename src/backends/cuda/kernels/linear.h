#pragma once

#include <optional>

#include "backends/cuda/kernels/launch.h"
#include "base/tensor.h"
#include "ops/activation.h"

namespace quire::cuda {

// out [tokens, out_features] = x [tokens, in_features] · weightᵀ + bias, where weight is [out_features,
// in_features], row-major, in x's dtype; bias f32 or undefined; out in x's dtype or f32. Rows of x may be
// strided.
//
// Where there is a gate, out [tokens, out_features / 2] = activation(x · gateᵀ) * (x · upᵀ) in x's dtype; the
// weight holds gate's rows, then up's, and there is no bias.
using Gate = std::optional<Activation>;

// For 1 to kMaxMatvecTokens tokens: bound by reading the weight once.
constexpr int kMaxMatvecTokens = 16;
// Whether the kernels of this path take it: few enough tokens, 16-bit types, rows that can be read 16 bytes
// at a time, and a device with shared memory enough.
bool matvec_supports(const LaunchContext& context, const Tensor& x, const Tensor& weight);
void matvec(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
            const Tensor& bias, Gate gate = {});

// Whether the next one can take these: 16 bits, on Hopper, in_features a multiple of 64, rows of x and of
// the weight multiples of 16 bytes; where gated, out_features is a multiple of 16.
bool has_batched_matmul(const Tensor& x, const Tensor& weight, bool gated);
// In which order an element's products are summed: in any, or one that does not depend on the number of
// tokens.
enum class SumOrder { kFree, kFixed };
// For any number of tokens, made for some dozens to hundreds.
void batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, SumOrder order, Gate gate = {});

// For any number of tokens, in a fixed order, on any device. Also the path for float32.
void fixed_order_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const Tensor& weight, const Tensor& bias);

// out [tokens, n] in f32 or x's dtype += bias f32 [n]: what a library's product left out.
void add_bias(const LaunchContext& context, const Tensor& out, const Tensor& bias);

}  // namespace quire::cuda
