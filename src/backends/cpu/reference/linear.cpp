#include <algorithm>
#include <array>

#include "backends/cpu/reference/reference_backend.h"

namespace quire {
namespace {

// Row-major [out, in] in one piece.
class PlainWeights : public LinearWeights {
 public:
  PlainWeights(Buffer buffer, DType dtype, std::int64_t out, std::int64_t in)
      : LinearWeights(out, in, buffer.bytes()),
        buffer_(std::move(buffer)),
        matrix_(buffer_.data(), dtype, {out, in}) {}

  const Tensor& matrix() const { return matrix_; }

 private:
  Buffer buffer_;
  Tensor matrix_;
};

constexpr std::size_t kLanes = 16;

// The dot product in its one order: 16 partial sums over k mod 16, then added pairwise.
template <typename T>
float dot(const float* x, const T* w, std::int64_t n) {
  std::array<float, kLanes> sums{};
  std::int64_t k = 0;
  for (; k + static_cast<std::int64_t>(kLanes) <= n; k += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[k + lane] * to_float(w[k + lane]);
  }
  for (std::size_t lane = 0; k < n; ++k, ++lane) sums[lane] += x[k] * to_float(w[k]);
  for (std::size_t step = kLanes / 2; step > 0; step /= 2) {
    for (std::size_t lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
  }
  return sums[0];
}

}  // namespace

std::unique_ptr<LinearWeights> ReferenceBackend::make_linear(std::span<const WeightGroup> parts,
                                                             DType dtype) {
  const WeightTensorPtr rows = plain_rows(parts);
  auto weights = std::make_unique<PlainWeights>(allocate(linear_bytes(parts, dtype), MemoryKind::kDevice),
                                                dtype, rows->rows(), rows->cols());
  rows->read_rows(0, weights->matrix());
  return weights;
}

void ReferenceBackend::linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                              const Tensor& bias) {
  const Tensor& matrix = dynamic_cast<const PlainWeights&>(weights).matrix();
  const std::int64_t tokens = x.dim(0);
  const std::int64_t n = matrix.dim(0);
  const std::int64_t k = matrix.dim(1);
  scratch_.resize(static_cast<std::size_t>(tokens * k));
  for (std::int64_t t = 0; t < tokens; ++t) {
    convert(x.dtype(), x.rows(t, 1).data(), DType::kF32, scratch_.data() + t * k,
            static_cast<std::size_t>(k));
  }
  const float* bias_values = bias.data_as<const float>();
  dispatch_float(matrix.dtype(), [&]<typename W>() {
    dispatch_float(out.dtype(), [&]<typename Out>() {
      for (std::int64_t o = 0; o < n; ++o) {
        const W* row = matrix.data_as<const W>() + o * k;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const float sum = dot(scratch_.data() + t * k, row, k);
          out.data_as<Out>()[t * out.stride(0) + o] =
              from_float<Out>(bias_values != nullptr ? sum + bias_values[o] : sum);
        }
      }
    });
  });
}

void ReferenceBackend::embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids,
                                 std::int64_t first_row, float scale) {
  const Tensor& matrix = dynamic_cast<const PlainWeights&>(weights).matrix();
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    const std::int64_t row = ids.data_as<const std::int32_t>()[t] - first_row;
    float* values = out.data_as<float>() + t * out.stride(0);
    if (row < 0 || row >= matrix.dim(0)) {
      std::fill_n(values, matrix.dim(1), 0.0F);
    } else {
      convert(matrix.dtype(), matrix.rows(row, 1).data(), DType::kF32, values,
              static_cast<std::size_t>(matrix.dim(1)));
      for (std::int64_t i = 0; i < matrix.dim(1); ++i) values[i] *= scale;
    }
  }
}

}  // namespace quire
