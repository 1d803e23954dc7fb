#pragma once

#include <vector>

#include "checkpoint/model_config.h"
#include "layers/attention.h"

namespace quire {

// Angles per position of a rotary embedding: inverse_frequencies[i] radians a position for dimension pair i.
struct RotaryFrequencies {
  std::vector<float> inverse_frequencies;
  float attention_scaling = 1.0F;  // cosines and sines are multiplied by it (YaRN)
};

// The angles of a rotary embedding over heads of head_dim, fixed at start. Types: default, linear, dynamic
// with alpha, yarn, llama3, proportional and longrope, which stretches by its long factors where sequences of
// max_model_len are longer than the original length; others are refused by name.
RotaryFrequencies rotary_frequencies(const ModelConfig::RotaryConfig& rotary, int head_dim,
                                     int max_model_len);

// Of the dimensions of a head, how many rotate. Error where they cannot be paired.
int rotary_dim(const ModelConfig::RotaryConfig& rotary, int head_dim);

// Positions the model was made for, scaling included (as vLLM derives max_model_len).
int scaled_max_positions(const ModelConfig::RotaryConfig& rotary, int max_position_embeddings);

// Computed once, for every position.
RotaryTables make_rotary_tables(const LoadContext& context, const ModelConfig::RotaryConfig& rotary,
                                int head_dim);

}  // namespace quire
