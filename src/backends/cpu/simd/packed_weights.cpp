#include "backends/cpu/simd/packed_weights.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/simd/kernels.h"

namespace quire {

using simd::kPanel;
using simd::kPanelStep;
using simd::round_up;

namespace {

// The rows of a panel, one below the other, change places with k, kPer elements at a time.
template <typename Unit, std::int64_t kPer, typename T>
void interleave(const T* from, std::int64_t num_rows, std::int64_t in_features, T* to, std::int64_t width) {
  constexpr std::int64_t kRun = 16;  // units: what is written meanwhile stays in the first cache
  const std::int64_t units = in_features / kPer;
  for (std::int64_t begin = 0; begin < units; begin += kRun) {
    const std::int64_t end = std::min(begin + kRun, units);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t u = begin; u < end; ++u) {
        Unit unit;
        std::memcpy(&unit, from + row * in_features + u * kPer, sizeof(Unit));
        std::memcpy(to + (u * width + row) * kPer, &unit, sizeof(Unit));
      }
    }
  }
  if (in_features % kPer == 0) return;
  for (std::int64_t row = 0; row < num_rows; ++row)
    to[(units * width + row) * kPer] = from[(row + 1) * in_features - 1];
}

}  // namespace

PackedWeights::PackedWeights(Buffer buffer, DType dtype, const WeightTensor& rows, ThreadPool& pool)
    : PanelWeights(std::move(buffer), dtype, rows.rows(), rows.cols()) {
  pool.run_ranges(num_panels(), [&](std::int64_t begin, std::int64_t end) { pack_panels(rows, begin, end); });
}

std::size_t PackedWeights::packed_bytes(DType dtype, const MatrixShape& shape) {
  return static_cast<std::size_t>(round_up(shape.rows, kPanelStep) * round_up(shape.cols, 2)) *
         size_of(dtype);
}

void PackedWeights::pack_panels(const WeightTensor& rows, std::int64_t begin, std::int64_t end) {
  const auto row_bytes = static_cast<std::size_t>(in_features()) * size_of(dtype_);
  std::vector<std::byte> values(static_cast<std::size_t>(std::min(kPanel, out_features())) * row_bytes);
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t wanted = std::min(kPanel, out_features() - panel * kPanel);
    rows.read_rows(panel * kPanel, Tensor(values.data(), dtype_, {wanted, in_features()}));
    dispatch_float(dtype_, [&]<typename T>() {
      constexpr bool kPairs = std::is_same_v<T, BFloat16>;
      using Unit = std::conditional_t<kPairs, std::uint32_t, T>;
      const auto* from = reinterpret_cast<const T*>(values.data());
      T* to = reinterpret_cast<T*>(buffer()) + panel * kPanel * round_up(in_features(), 2);
      interleave<Unit, kPairs ? 2 : 1>(from, wanted, in_features(), to, panel_width(panel));
    });
  }
}

void PackedWeights::read_row(std::int64_t row, float* out) const {
  const std::int64_t panel = row / kPanel;
  const std::int64_t width = panel_width(panel);
  dispatch_float(dtype_, [&]<typename T>() {
    constexpr std::int64_t kPer = std::is_same_v<T, BFloat16> ? 2 : 1;
    const T* values = reinterpret_cast<const T*>(buffer()) + panel * kPanel * round_up(in_features(), 2);
    for (std::int64_t k = 0; k < in_features(); ++k)
      out[k] = to_float(values[(k / kPer * width + row % kPanel) * kPer + k % kPer]);
  });
}

}  // namespace quire
