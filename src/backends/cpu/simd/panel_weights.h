#pragma once

#include <algorithm>
#include <utility>

#include "backends/cpu/simd/kernels.h"
#include "ops/ops.h"

namespace quire {

// A matrix in panels of rows, as simd/kernels.h describes them.
class PanelWeights : public LinearWeights {
 public:
  PanelWeights(Buffer buffer, std::int64_t out_features, std::int64_t in_features)
      : LinearWeights(out_features, in_features, buffer.bytes()), buffer_(std::move(buffer)) {}

  const std::byte* data() const { return buffer(); }
  std::int64_t num_panels() const { return simd::round_up(out_features(), simd::kPanel) / simd::kPanel; }

 protected:
  std::byte* buffer() const { return static_cast<std::byte*>(buffer_.data()); }
  std::int64_t panel_width(std::int64_t panel) const {
    return std::min(simd::kPanel, simd::round_up(out_features() - panel * simd::kPanel, simd::kPanelStep));
  }

 private:
  Buffer buffer_;
};

}  // namespace quire
