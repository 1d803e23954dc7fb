#pragma once

#include "backends/cpu/simd/packed_weights.h"

namespace quire {

// A matrix of codes in panels of rows, as simd/kernels.h describes them (CodedLayout).
class PackedCodes : public PanelWeights {
 public:
  // Error that names a tensor where the format is not supported.
  static simd::CodedLayout layout_of(const QuantizedRows& matrix);
  static std::size_t packed_bytes(const QuantizedRows& matrix);

  // buffer: packed_bytes. Fills it; Error where a code is not a number.
  PackedCodes(Buffer buffer, const QuantizedRows& matrix, ThreadPool& pool);

  const simd::CodedLayout& layout() const { return layout_; }
  std::int64_t padded() const { return simd::round_up(in_features(), simd::kCodedStep); }

  void read_row(std::int64_t row, float* out) const override;

 private:
  struct PanelRows;
  void pack_panel(const QuantizedRows& matrix, std::int64_t panel, PanelRows& rows);
  std::byte* panel_at(std::int64_t panel) const;

  simd::CodedLayout layout_;
};

}  // namespace quire
