#pragma once

#include <utility>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cpu/simd/kernels.h"
#include "base/thread_pool.h"

namespace quire {

// A matrix in panels of rows, as simd/kernels.h describes them.
class PanelWeights : public RowWeights {
 public:
  PanelWeights(Buffer buffer, DType dtype, std::int64_t out_features, std::int64_t in_features)
      : RowWeights(out_features, in_features, buffer.bytes()), dtype_(dtype), buffer_(std::move(buffer)) {}

  const std::byte* data() const { return buffer(); }
  DType dtype() const { return dtype_; }  // of codes, one that holds all their values: bf16 or f32
  std::int64_t num_panels() const { return simd::round_up(out_features(), simd::kPanel) / simd::kPanel; }

 protected:
  std::byte* buffer() const { return static_cast<std::byte*>(buffer_.data()); }
  std::int64_t panel_width(std::int64_t panel) const { return simd::panel_width(out_features(), panel); }

  DType dtype_;

 private:
  Buffer buffer_;
};

// One of floats.
class PackedWeights : public PanelWeights {
 public:
  static std::size_t packed_bytes(DType dtype, const MatrixShape& shape);

  // buffer: packed_bytes. Fills it.
  PackedWeights(Buffer buffer, DType dtype, const WeightTensor& rows, ThreadPool& pool);

  void read_row(std::int64_t row, float* out) const override;

 private:
  void pack_panels(const WeightTensor& rows, std::int64_t begin, std::int64_t end);
};

}  // namespace quire
