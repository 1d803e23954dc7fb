#pragma once

#include "backends/cpu/simd/panel_weights.h"
#include "base/thread_pool.h"

namespace quire {

// A matrix in panels of rows, as simd/kernels.h describes them.
class PackedWeights : public PanelWeights {
 public:
  PackedWeights(Buffer buffer, DType dtype, std::int64_t out_features, std::int64_t in_features);
  static std::size_t packed_bytes(DType dtype, const MatrixShape& shape);

  DType dtype() const { return dtype_; }

  // Fills the matrix.
  void pack(const WeightTensor& rows, ThreadPool& pool);
  // One row as float32.
  void read_row(std::int64_t row, float* out) const;

 private:
  void pack_panels(const WeightTensor& rows, std::int64_t begin, std::int64_t end);

  DType dtype_;
};

}  // namespace quire
