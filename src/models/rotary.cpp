#include "models/rotary.h"

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
void stretch_yarn(const ModelConfig::RotaryConfig& rotary, int dim, RotaryFrequencies& result) {
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
    float& frequency = result.inverse_frequencies[i];
    const auto scaled = static_cast<float>(std::clamp((i - low) / (high - low), 0.0, 1.0));
    frequency = frequency / static_cast<float>(rotary.factor) * scaled + frequency * (1.0F - scaled);
  }
  const auto magnitude = [&](double weight) {
    return rotary.factor <= 1 ? 1.0 : 0.1 * weight * std::log(rotary.factor) + 1.0;
  };
  const double derived = rotary.mscale && rotary.mscale_all_dim
                             ? magnitude(*rotary.mscale) / magnitude(*rotary.mscale_all_dim)
                             : magnitude(1.0);
  result.attention_scaling =
      static_cast<float>(rotary.attention_factor.value_or(derived * rotary.attn_factor));
}

// Llama 3: waves longer than the original context are stretched by the factor, short ones stay, a ramp lies
// between.
void stretch_llama3(const ModelConfig::RotaryConfig& rotary, RotaryFrequencies& result) {
  const double original = rotary.original_max_position_embeddings;
  for (float& frequency : result.inverse_frequencies) {
    const double turns = original * frequency / (2 * std::numbers::pi);  // over the original context
    const double kept = std::clamp(
        (turns - rotary.low_freq_factor) / (rotary.high_freq_factor - rotary.low_freq_factor), 0.0, 1.0);
    frequency = static_cast<float>((1 - kept) * frequency / rotary.factor + kept * frequency);
  }
}

// LongRoPE (Ding et al., 2024): a factor for each pair of dimensions.
void stretch_longrope(const ModelConfig::RotaryConfig& rotary, int max_model_len, RotaryFrequencies& result) {
  const bool is_long = max_model_len > rotary.original_max_position_embeddings;
  const std::vector<double>& factors = is_long ? rotary.long_factor : rotary.short_factor;
  const std::size_t pairs = result.inverse_frequencies.size();
  if (factors.size() != pairs)
    fail("config.json: {} factors of longrope; heads have {} pairs of dimensions", factors.size(), pairs);
  for (std::size_t i = 0; i < factors.size(); ++i)
    result.inverse_frequencies[i] /= static_cast<float>(factors[i]);
  const double derived =
      rotary.factor > 1
          ? std::sqrt(1 + std::log(rotary.factor) / std::log(rotary.original_max_position_embeddings))
          : 1.0;
  result.attention_scaling = static_cast<float>(rotary.attention_factor.value_or(derived));
}

// [max_model_len, rotary_dim]
Tensor make_cos_sin(const LoadContext& context, const RotaryFrequencies& frequencies) {
  constexpr std::int64_t kChunk = 4096;  // positions computed on the host at a time
  const auto half = std::ssize(frequencies.inverse_frequencies);
  const Tensor table = context.workspace.allocate(DType::kF32, {context.max_model_len, 2 * half});
  std::vector<float> rows(std::min<std::int64_t>(kChunk, table.dim(0)) * 2 * half);
  for (std::int64_t first = 0; first < table.dim(0); first += kChunk) {
    const std::int64_t count = std::min(kChunk, table.dim(0) - first);
    for (std::int64_t position = 0; position < count; ++position) {
      float* row = &rows[position * 2 * half];
      for (std::int64_t i = 0; i < half; ++i) {
        // The angle is rounded to float32, as the reference does.
        const double angle = static_cast<float>(first + position) * frequencies.inverse_frequencies[i];
        row[i] = static_cast<float>(std::cos(angle)) * frequencies.attention_scaling;
        row[i + half] = static_cast<float>(std::sin(angle)) * frequencies.attention_scaling;
      }
    }
    context.backend.copy(table.rows(first, count), Tensor(rows.data(), DType::kF32, {count, 2 * half}));
    context.backend.wait(context.backend.record());  // the rows are written again
  }
  return table;
}

}  // namespace

int rotary_dim(const ModelConfig::RotaryConfig& rotary, int head_dim) {
  const int dim =
      rotary.type == "proportional" ? head_dim : static_cast<int>(head_dim * rotary.partial_rotary_factor);
  if (dim <= 0 || dim % 2 != 0 || dim > head_dim)
    fail("config.json: rotary embedding over {} of {} dimensions", dim, head_dim);
  return dim;
}

RotaryFrequencies rotary_frequencies(const ModelConfig::RotaryConfig& rotary, int head_dim,
                                     int max_model_len) {
  const int dim = rotary_dim(rotary, head_dim);
  // Of the dynamic type, the base that positions beyond the original length would change is fixed by alpha.
  const bool fixed = rotary.type == "dynamic" && rotary.alpha;
  const double theta = fixed ? rotary.theta * std::pow(*rotary.alpha, dim / (dim - 2.0)) : rotary.theta;
  RotaryFrequencies result{plain_frequencies(theta, dim)};
  const bool is_proportional = rotary.type == "proportional";
  if (rotary.type == "yarn") {
    stretch_yarn(rotary, dim, result);
  } else if (rotary.type == "llama3") {
    stretch_llama3(rotary, result);
  } else if (rotary.type == "longrope") {
    stretch_longrope(rotary, max_model_len, result);
  } else if (rotary.type == "linear" || is_proportional) {
    for (float& frequency : result.inverse_frequencies) frequency /= static_cast<float>(rotary.factor);
  } else if (rotary.type != "default" && !fixed) {
    fail(
        "config.json: rotary type {} is not supported; supported are default, linear, dynamic with alpha, "
        "yarn, llama3, longrope and proportional",
        in_quotes(rotary.type));
  }
  if (is_proportional)  // of the pairs of a whole head only the first ones turn (Gemma 4)
    std::fill(result.inverse_frequencies.begin() + static_cast<int>(rotary.partial_rotary_factor * dim / 2),
              result.inverse_frequencies.end(), 0.0F);
  return result;
}

int scaled_max_positions(const ModelConfig::RotaryConfig& rotary, int max_position_embeddings) {
  double positions = max_position_embeddings;
  if (rotary.type == "yarn") positions = rotary.original_max_position_embeddings * rotary.factor;
  if (rotary.type == "linear") positions *= rotary.factor;
  return static_cast<int>(std::min(positions, 1.0 * (1 << 30)));
}

RotaryTables make_rotary_tables(const LoadContext& context, const ModelConfig::RotaryConfig& rotary,
                                int head_dim) {
  RotaryTables tables = {make_cos_sin(context, rotary_frequencies(rotary, head_dim, context.max_model_len)),
                         {}};
  if (rotary.query_scaling_beta == 0) return tables;
  // So that scores stay apart where there are many keys: as Llama 4 has it, 1 + beta log(1 + floor(position /
  // original length)).
  std::vector<float> scales;
  for (int position = 0; position < context.max_model_len; ++position) {
    const int stretches = position / rotary.original_max_position_embeddings;
    scales.push_back(static_cast<float>(1 + rotary.query_scaling_beta * std::log1p(stretches)));
  }
  tables.q_scale = context.workspace.upload(scales);
  return tables;
}

}  // namespace quire
