#include "layers/rotary.h"

#include <algorithm>
#include <cmath>

namespace quire {

Tensor make_rotary_table(const LoadContext& context, const RotaryFrequencies& frequencies) {
  constexpr std::int64_t kChunk = 4096;  // positions computed on the host at a time
  const auto half = std::ssize(frequencies.inverse_frequencies);
  const Tensor table = context.workspace.allocate(DType::kF32, context.max_model_len, 2 * half);
  std::vector<float> rows(static_cast<std::size_t>(std::min<std::int64_t>(kChunk, table.dim(0)) * 2 * half));
  for (std::int64_t first = 0; first < table.dim(0); first += kChunk) {
    const std::int64_t count = std::min(kChunk, table.dim(0) - first);
    for (std::int64_t position = 0; position < count; ++position) {
      float* row = &rows[static_cast<std::size_t>(position * 2 * half)];
      for (std::int64_t i = 0; i < half; ++i) {
        // The angle is rounded to float32, as the reference does.
        const double angle = static_cast<float>(first + position) *
                             frequencies.inverse_frequencies[static_cast<std::size_t>(i)];
        row[i] = static_cast<float>(std::cos(angle)) * frequencies.attention_scaling;
        row[i + half] = static_cast<float>(std::sin(angle)) * frequencies.attention_scaling;
      }
    }
    context.backend.copy(table.rows(first, count), Tensor(rows.data(), DType::kF32, {count, 2 * half}));
    context.backend.wait(context.backend.record());  // the rows are written again
  }
  return table;
}

}  // namespace quire
