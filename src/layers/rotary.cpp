#include "layers/rotary.h"

#include <cmath>

namespace quire {

Tensor make_rotary_table(const LoadContext& context, const RotaryFrequencies& frequencies) {
  const std::size_t half = frequencies.inverse_frequencies.size();
  const auto positions = static_cast<std::size_t>(context.max_model_len);
  std::vector<float> table(positions * 2 * half);
  for (std::size_t position = 0; position < positions; ++position) {
    float* row = &table[position * 2 * half];
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies.inverse_frequencies[i];
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * frequencies.attention_scaling;
      row[i + half] =
          static_cast<float>(std::sin(static_cast<double>(angle))) * frequencies.attention_scaling;
    }
  }
  return context.workspace.upload(table, context.max_model_len);
}

}  // namespace quire
