#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <optional>

#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/quantized.h"

namespace quire::cuda {

// What the codes of a product of E4M3 are times, f32 on the device, from a multiple of 16 bytes on.
struct MatmulScales {
  const float* weight = nullptr;  // [n]; or in blocks of 128 × 128, of rows of a multiple of 4
  const float* x = nullptr;       // [tokens]; or [blocks of 128 columns, tokens]
  bool in_blocks = false;
};

// Products of 16-bit types, of E4M3 (as u8, with scales), and of i8 to i32, by cuBLASLt; what the tensors are
// is said in linear.h. How a shape is computed is the library's first choice and stays: after a shape's first
// use nothing is allocated, and calls can be captured. (On an H200 the fastest of its first five choices took
// 3.5 % less, in the mean of 90 shapes of Qwen3-0.6B with 24 to 512 tokens; to find it takes 0.5 s at every
// start.)
// Thread contract: one thread at a time, one stream.
class LibraryMatmul {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // as NVIDIA advises for Hopper

  // workspace: u8, on the device.
  explicit LibraryMatmul(const Tensor& workspace);
  ~LibraryMatmul();
  LibraryMatmul(const LibraryMatmul&) = delete;
  LibraryMatmul& operator=(const LibraryMatmul&) = delete;

  // False where the library has no way to compute this shape; nothing was done.
  [[nodiscard]] bool multiply(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const Tensor& weight, const Tensor& bias, const MatmulScales& scales = {});

 private:
  struct Shape {
    std::int64_t tokens, n, k, x_stride, out_stride;
    DType dtype, out_dtype;
    int alignment;  // bytes, of all pointers
    bool in_blocks;
    auto operator<=>(const Shape&) const = default;
  };
  struct Problem;
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;

  cublasLtHandle_t handle_ = nullptr;
  Tensor workspace_;
  std::map<Shape, Algorithm> algorithms_;
};

// Backend::linear, by what is fastest for the weight's form and the shape; w8a8_linear.h has one more form.
// Without a library (null) every element is summed in one order, whatever the number of tokens: in float32 of
// a quantised weight. workspace: u8, on the device, for rows of such a weight in 16 bits, as many at a time
// as fit, or for x as quantized_batched_matmul packs it.
constexpr std::size_t kQuantizedWorkspaceBytes = std::size_t{64} << 20;
void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const Tensor& weight, const Tensor& bias, const Tensor& workspace = {});
void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const QuantizedMatrix& weight, const Tensor& bias, const Tensor& workspace);

// activation(x · gateᵀ) * (x · upᵀ) by one kernel, as gated products in kernels/linear.h. False: no such
// kernel is the fastest for the shape, or none takes it in a fixed order, and nothing was done.
bool fused_gated_linear(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const Tensor& weight, Activation activation, SumOrder order,
                        const Tensor& workspace = {});
bool fused_gated_linear(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const QuantizedMatrix& weight, Activation activation, SumOrder order,
                        const Tensor& workspace = {});

}  // namespace quire::cuda
