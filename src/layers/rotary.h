#pragma once

#include <vector>

#include "layers/load_context.h"

namespace quire {

// Angles per position of a rotary embedding: inverse_frequencies[i] radians a position for dimension pair i.
struct RotaryFrequencies {
  std::vector<float> inverse_frequencies;
  float attention_scaling = 1.0F;  // cosines and sines are multiplied by it (YaRN)
};

// The cosines and sines of every position, computed once: [max_model_len, rotary_dim].
Tensor make_rotary_table(const LoadContext& context, const RotaryFrequencies& frequencies);

}  // namespace quire
