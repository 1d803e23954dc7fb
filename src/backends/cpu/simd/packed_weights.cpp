#include "backends/cpu/simd/packed_weights.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/simd/kernels.h"
#include "base/error.h"

namespace quire {

using simd::kPanel;
using simd::kPanelStep;
using simd::round_up;

PackedWeights::PackedWeights(Buffer buffer, DType dtype, std::int64_t out_features, std::int64_t in_features)
    : buffer_(std::move(buffer)), dtype_(dtype), out_features_(out_features), in_features_(in_features) {}

std::size_t PackedWeights::packed_bytes(DType dtype, std::int64_t out_features, std::int64_t in_features) {
  return static_cast<std::size_t>(round_up(out_features, kPanelStep) * round_up(in_features, 2)) *
         size_of(dtype);
}

std::int64_t PackedWeights::num_panels() const { return round_up(out_features_, kPanel) / kPanel; }

std::int64_t PackedWeights::offset_of(std::int64_t row, std::int64_t k) const {
  const std::int64_t first = row / kPanel * kPanel;
  const std::int64_t rows = std::min(kPanel, round_up(out_features_ - first, kPanelStep));
  const std::int64_t panel = first * round_up(in_features_, 2);
  if (dtype_ == DType::kBF16) return panel + (k / 2 * rows + row - first) * 2 + k % 2;
  return panel + k * rows + row - first;
}

template <typename T>
void PackedWeights::pack_panel(std::int64_t panel, const T* rows) {
  auto* data = static_cast<T*>(buffer_.data());
  const std::int64_t end = std::min(out_features_, (panel + 1) * kPanel);
  constexpr std::int64_t kRun = 32;  // of k: what is read and written stays in the first cache
  for (std::int64_t begin = 0; begin < in_features_; begin += kRun) {
    for (std::int64_t row = panel * kPanel; row < end; ++row) {
      const T* from = rows + (row - panel * kPanel) * in_features_;
      for (std::int64_t k = begin; k < std::min(begin + kRun, in_features_); ++k)
        data[offset_of(row, k)] = from[k];
    }
  }
}

void PackedWeights::pack(std::span<const WeightTensorPtr> parts) {
  std::vector<std::byte> rows(static_cast<std::size_t>(std::min(kPanel, out_features_) * in_features_) *
                              size_of(dtype_));
  const auto row_bytes = static_cast<std::size_t>(in_features_) * size_of(dtype_);
  auto part = parts.begin();
  std::int64_t taken = 0;  // rows of *part
  for (std::int64_t panel = 0; panel < num_panels(); ++panel) {
    const std::int64_t wanted = std::min(kPanel, out_features_ - panel * kPanel);
    for (std::int64_t filled = 0; filled < wanted;) {
      while (taken == (*part)->rows()) {
        ++part;
        taken = 0;
      }
      const std::int64_t count = std::min(wanted - filled, (*part)->rows() - taken);
      (*part)->read_rows(taken, Tensor(rows.data() + static_cast<std::size_t>(filled) * row_bytes, dtype_,
                                       {count, in_features_}));
      filled += count;
      taken += count;
    }
    dispatch_float(dtype_, [&]<typename T>() { pack_panel(panel, reinterpret_cast<const T*>(rows.data())); });
  }
}

void PackedWeights::read_row(std::int64_t row, float* out) const {
  dispatch_float(dtype_, [&]<typename T>() {
    const auto* values = static_cast<const T*>(buffer_.data());
    for (std::int64_t k = 0; k < in_features_; ++k) out[k] = to_float(values[offset_of(row, k)]);
  });
}

}  // namespace quire
