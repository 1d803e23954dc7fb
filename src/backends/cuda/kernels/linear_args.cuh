#pragma once

#include <cstdint>

#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/mma.cuh"
#include "base/tensor.h"

namespace quire::cuda {

// A product as its kernel sees it; what the tensors are is said in linear.h.
struct LinearArgs {
  LinearArgs(const Tensor& out_tensor, const Tensor& x_tensor, const Tensor& weight_tensor,
             const Tensor& bias_tensor, Gate gate = {})
      : x(x_tensor.data()),
        weight(weight_tensor.data()),
        bias(bias_tensor.data_as<const float>()),
        out(out_tensor.data()),
        x_stride(x_tensor.stride(0)),
        out_stride(out_tensor.stride(0)),
        tokens(static_cast<int>(x_tensor.dim(0))),
        n(static_cast<int>(weight_tensor.dim(0)) / (gate ? 2 : 1)),
        k(static_cast<int>(weight_tensor.dim(1))),
        activation(gate ? terms_of(*gate) : ActivationTerms()) {}

  const void* x;
  const void* weight;
  const float* bias;  // or null
  void* out;
  std::int64_t x_stride;  // elements between rows
  std::int64_t out_stride;
  int tokens;
  int n;                       // columns of out
  int k;                       // in_features
  ActivationTerms activation;  // of a gate
};

// Whether every row can be read 16 bytes at a time.
inline bool has_vector_rows(const Tensor& matrix) {
  const auto elements = static_cast<std::int64_t>(16 / size_of(matrix.dtype()));
  return reinterpret_cast<std::uintptr_t>(matrix.data()) % 16 == 0 && matrix.dim(1) % elements == 0 &&
         (matrix.dim(0) == 1 || matrix.stride(0) % elements == 0);
}

// Calls f.template operator()<T, Out>() with the device's types of the weight and of the output.
template <typename F>
void dispatch_linear(DType weight, DType out, F&& f) {
  dispatch_operand(weight, [&]<typename T>() {
    out == DType::kF32 ? f.template operator()<T, float>() : f.template operator()<T, T>();
  });
}

// Calls f.template operator()<Out>() with the device's type of the output.
template <typename F>
void dispatch_out(DType out, F&& f) {
  out == DType::kF32 ? f.template operator()<float>() : dispatch_operand(out, f);
}

// out(token, column) = sum + bias, where there is such an element.
template <typename Out>
__device__ inline void store_sum(const LinearArgs& args, int token, int column, float sum) {
  if (token >= args.tokens || column >= args.n) return;
  const float value = args.bias == nullptr ? sum : sum + args.bias[column];
  static_cast<Out*>(args.out)[token * args.out_stride + column] = static_cast<Out>(value);
}

}  // namespace quire::cuda
