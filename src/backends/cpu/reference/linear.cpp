#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "base/error.h"

namespace quire {
namespace {

// Row-major [out, in] in one piece.
class PlainWeights : public RowWeights {
 public:
  PlainWeights(Buffer buffer, DType dtype, const WeightTensor& rows)
      : RowWeights(rows.rows(), rows.cols(), buffer.bytes()),
        buffer_(std::move(buffer)),
        matrix_(buffer_.data(), dtype, {rows.rows(), rows.cols()}) {
    rows.read_rows(0, matrix_);
  }

  const Tensor& matrix() const { return matrix_; }
  void read_row(std::int64_t row, float* out) const override {
    convert(matrix_.dtype(), matrix_.rows(row, 1).data(), DType::kF32, out,
            static_cast<std::size_t>(in_features()));
  }

 private:
  Buffer buffer_;
  Tensor matrix_;
};

// Codes, and scales and minima of their blocks.
class CodedWeights : public RowWeights {
 public:
  CodedWeights(Buffer buffer, const QuantizedRows& matrix)
      : RowWeights(matrix.rows, matrix.cols, buffer.bytes()),
        buffer_(std::move(buffer)),
        format_(matrix.format),
        values_(code_values(matrix.format)),
        block_cols_(matrix.format.block_cols),
        num_blocks_(matrix.num_blocks()),
        scales_(static_cast<float*>(buffer_.data())),
        minima_(scales_ + matrix.rows * num_blocks_),
        codes_(reinterpret_cast<std::uint8_t*>(minima_ + matrix.rows * num_blocks_)) {
    read_block_scales(matrix, 0, matrix.rows, scales_, minima_);
    matrix.codes->read_rows(0, Tensor(codes_, DType::kU8, {matrix.rows, matrix.cols}));
    const auto is_nan = [this](std::uint8_t code) { return std::isnan(values_[code]); };
    if (std::any_of(codes_, codes_ + matrix.rows * matrix.cols, is_nan))
      fail("tensor {} holds a value that is not a number", matrix.codes->name());
  }
  static std::size_t bytes_of(const QuantizedRows& matrix) {
    return static_cast<std::size_t>(matrix.rows *
                                    (matrix.cols + 2 * matrix.num_blocks() * std::int64_t{sizeof(float)}));
  }

  // What a product takes in place of x [in].
  void round_input(float* x) const {
    if (format_.input.code == InputFormat::Code::kNone) return;
    std::vector<float> codes(in_features()), scales(codes.size());
    quantize_input(format_, x, in_features(), codes.data(), scales.data());
    const std::int64_t block = format_.input.in_blocks ? block_cols_ : in_features();
    for (std::int64_t i = 0; i < in_features(); ++i) x[i] = codes[i] * scales[i / block];
  }
  void read_row(std::int64_t row, float* out) const override {
    const std::uint8_t* codes = codes_ + row * in_features();
    for (std::int64_t col = 0; col < in_features(); ++col) {
      const std::int64_t block = row * num_blocks_ + col / block_cols_;
      out[col] = scales_[block] * values_[codes[col]] - minima_[block];
    }
  }

 private:
  Buffer buffer_;
  LinearFormat format_;
  std::array<float, 256> values_;
  std::int64_t block_cols_, num_blocks_;
  float *scales_, *minima_;  // [out, num_blocks]
  std::uint8_t* codes_;      // [out, in]
};

constexpr std::size_t kLanes = 16;

// The dot product in its one order: 16 partial sums over k mod 16, then added pairwise.
template <typename T>
float dot(const float* x, const T* w, std::int64_t n) {
  std::array<float, kLanes> sums{};
  std::int64_t k = 0;
  for (; k + static_cast<std::int64_t>(kLanes) <= n; k += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[k + lane] * to_float(w[k + lane]);
  for (std::size_t lane = 0; k < n; ++k, ++lane) sums[lane] += x[k] * to_float(w[k]);
  for (std::size_t step = kLanes / 2; step > 0; step /= 2)
    for (std::size_t lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
  return sums[0];
}

// Calls row(i, values) for the rows of a matrix as float32, or in their own type.
template <typename Row>
void for_each_row(const LinearWeights& weights, std::vector<float>& scratch, const Row& row) {
  const std::int64_t n = weights.out_features(), k = weights.in_features();
  if (const auto* coded = dynamic_cast<const CodedWeights*>(&weights)) {
    scratch.resize(k);
    for (std::int64_t i = 0; i < n; ++i) {
      coded->read_row(i, scratch.data());
      row(i, static_cast<const float*>(scratch.data()));
    }
    return;
  }
  const Tensor& matrix = dynamic_cast<const PlainWeights&>(weights).matrix();
  dispatch_float(matrix.dtype(), [&]<typename W>() {
    for (std::int64_t i = 0; i < n; ++i) row(i, matrix.data_as<const W>() + i * k);
  });
}

}  // namespace

std::size_t ReferenceBackend::linear_bytes(std::span<const WeightGroup> parts, DType dtype) const {
  return parts.front().format.is_plain() ? Backend::linear_bytes(parts, dtype)
                                         : CodedWeights::bytes_of(quantized_rows(parts));
}

std::unique_ptr<LinearWeights> ReferenceBackend::make_linear(std::span<const WeightGroup> parts,
                                                             DType dtype) {
  Buffer buffer = allocate(ReferenceBackend::linear_bytes(parts, dtype), MemoryKind::kDevice);
  if (!parts.front().format.is_plain())
    return std::make_unique<CodedWeights>(std::move(buffer), quantized_rows(parts));
  return std::make_unique<PlainWeights>(std::move(buffer), dtype, *plain_rows(parts));
}

void ReferenceBackend::linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                              const Tensor& bias) {
  const std::int64_t tokens = x.dim(0);
  const std::int64_t k = weights.in_features();
  scratch_.resize(tokens * k);
  const auto* coded = dynamic_cast<const CodedWeights*>(&weights);
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* row = scratch_.data() + t * k;
    convert(x.dtype(), x.rows(t, 1).data(), DType::kF32, row, static_cast<std::size_t>(k));
    if (coded != nullptr) coded->round_input(row);
  }
  const float* bias_values = bias.data_as<const float>();
  for_each_row(weights, coded_row_, [&](std::int64_t o, const auto* row) {
    dispatch_float(out.dtype(), [&]<typename Out>() {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float sum = dot(scratch_.data() + t * k, row, k);
        out.data_as<Out>()[t * out.stride(0) + o] =
            from_float<Out>(bias_values != nullptr ? sum + bias_values[o] : sum);
      }
    });
  });
}

void ReferenceBackend::embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids,
                                 std::int64_t first_row, float scale) {
  const auto& matrix = dynamic_cast<const RowWeights&>(weights);
  const std::int64_t k = weights.in_features();
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    const std::int64_t row = ids.data_as<const std::int32_t>()[t] - first_row;
    float* values = out.data_as<float>() + t * out.stride(0);
    if (row < 0 || row >= weights.out_features()) {
      std::fill_n(values, k, 0.0F);
      continue;
    }
    matrix.read_row(row, values);
    for (std::int64_t i = 0; scale != 1.0F && i < k; ++i) values[i] *= scale;
  }
}

}  // namespace quire
