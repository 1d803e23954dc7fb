#include "models/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

// The plain frequencies theta^(-2i/dim) (Su et al., RoFormer, 2021), computed in float32 as the reference
// does.
std::vector<float> plain_frequencies(double theta, int dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    frequencies.push_back(1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  return frequencies;
}

// YaRN (Peng et al., 2023): high frequencies stay, low ones are divided by the factor, a ramp lies between.
RotaryFrequencies yarn_frequencies(const ModelConfig::RotaryConfig& rotary, int dim) {
  RotaryFrequencies result{plain_frequencies(rotary.theta, dim)};
  // The dimension whose wave turns `rotations` times over the original context.
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(rotary.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rotary.theta));
  };
  double low = dimension_of(rotary.beta_fast);
  double high = dimension_of(rotary.beta_slow);
  if (rotary.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (int i = 0; i < dim / 2; ++i) {
    float& frequency = result.inverse_frequencies[static_cast<std::size_t>(i)];
    const auto scaled = static_cast<float>(std::clamp((i - low) / (high - low), 0.0, 1.0));
    frequency = frequency / static_cast<float>(rotary.factor) * scaled + frequency * (1.0F - scaled);
  }
  const auto magnitude = [&](double weight) {
    return rotary.factor <= 1 ? 1.0 : 0.1 * weight * std::log(rotary.factor) + 1.0;
  };
  if (rotary.attention_factor) {
    result.attention_scaling = static_cast<float>(*rotary.attention_factor);
  } else if (rotary.mscale && rotary.mscale_all_dim) {
    result.attention_scaling =
        static_cast<float>(magnitude(*rotary.mscale) / magnitude(*rotary.mscale_all_dim));
  } else {
    result.attention_scaling = static_cast<float>(magnitude(1.0));
  }
  return result;
}

// Llama 3: waves longer than the original context are stretched by the factor, short ones stay, a ramp lies
// between.
RotaryFrequencies llama3_frequencies(const ModelConfig::RotaryConfig& rotary, int dim) {
  RotaryFrequencies result{plain_frequencies(rotary.theta, dim)};
  const double original = rotary.original_max_position_embeddings;
  for (float& frequency : result.inverse_frequencies) {
    const double turns = original * frequency / (2 * std::numbers::pi);  // over the original context
    const double kept = std::clamp(
        (turns - rotary.low_freq_factor) / (rotary.high_freq_factor - rotary.low_freq_factor), 0.0, 1.0);
    frequency = static_cast<float>((1 - kept) * frequency / rotary.factor + kept * frequency);
  }
  return result;
}

// LongRoPE (Ding et al., 2024): a factor for each pair of dimensions.
RotaryFrequencies longrope_frequencies(const ModelConfig::RotaryConfig& rotary, int dim, int max_model_len) {
  const bool is_long = max_model_len > rotary.original_max_position_embeddings;
  const std::vector<double>& factors = is_long ? rotary.long_factor : rotary.short_factor;
  if (std::ssize(factors) != dim / 2)
    fail("config.json: {} factors of longrope; heads have {} pairs of dimensions", factors.size(), dim / 2);
  RotaryFrequencies result{plain_frequencies(rotary.theta, dim)};
  for (std::size_t i = 0; i < factors.size(); ++i)
    result.inverse_frequencies[i] /= static_cast<float>(factors[i]);
  if (rotary.attention_factor) {
    result.attention_scaling = static_cast<float>(*rotary.attention_factor);
  } else if (rotary.factor > 1) {
    result.attention_scaling = static_cast<float>(
        std::sqrt(1 + std::log(rotary.factor) / std::log(rotary.original_max_position_embeddings)));
  }
  return result;
}

}  // namespace

int rotary_dim(const ModelConfig::RotaryConfig& rotary, int head_dim) {
  const int dim = static_cast<int>(head_dim * rotary.partial_rotary_factor);
  if (dim <= 0 || dim % 2 != 0 || dim > head_dim)
    fail("config.json: rotary embedding over {} of {} dimensions", dim, head_dim);
  return dim;
}

RotaryFrequencies rotary_frequencies(const ModelConfig::RotaryConfig& rotary, int head_dim,
                                     int max_model_len) {
  const int dim = rotary_dim(rotary, head_dim);
  if (rotary.type == "yarn") return yarn_frequencies(rotary, dim);
  if (rotary.type == "llama3") return llama3_frequencies(rotary, dim);
  if (rotary.type == "longrope") return longrope_frequencies(rotary, dim, max_model_len);
  // The base that positions beyond the original length would change is fixed by alpha.
  if (rotary.type == "dynamic" && rotary.alpha)
    return {plain_frequencies(rotary.theta * std::pow(*rotary.alpha, dim / (dim - 2.0)), dim)};
  RotaryFrequencies result{plain_frequencies(rotary.theta, dim)};
  if (rotary.type == "linear") {
    for (float& frequency : result.inverse_frequencies) frequency /= static_cast<float>(rotary.factor);
  } else if (rotary.type != "default") {
    fail(
        "config.json: rotary type {} is not supported; supported are default, linear, dynamic with alpha, "
        "yarn, llama3 and longrope",
        in_quotes(rotary.type));
  }
  return result;
}

int scaled_max_positions(const ModelConfig::RotaryConfig& rotary, int max_position_embeddings) {
  double positions = max_position_embeddings;
  if (rotary.type == "yarn") positions = rotary.original_max_position_embeddings * rotary.factor;
  if (rotary.type == "linear") positions *= rotary.factor;
  return static_cast<int>(std::min(positions, 1.0 * (1 << 30)));
}

}  // namespace quire
