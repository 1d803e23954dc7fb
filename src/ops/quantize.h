#pragma once

#include <string_view>

#include "ops/weight_group.h"

namespace quire {

// What 16-bit weights are made into as they are loaded.
enum class Quantization : std::uint8_t {
  kNone,
  kFp8,   // E4M3, a scale for each row: the largest magnitude / 448; inputs are E4M3, too, for each token
  kInt8,  // a scale for each row: the largest magnitude / 127; so are inputs, for each token
  kInt4,  // a scale for each 128 columns of a row: the largest magnitude / 7.5, rounded to what both binary16
          // and bfloat16 have; codes from -8 to 7
  kNf4,   // a scale for each 64 columns of a row: the largest magnitude; codes are quantiles of the normal
          // distribution (Dettmers et al., "QLoRA", 2023)
};

inline constexpr std::string_view kQuantizations = "none, fp8, int8, int4 or nf4";
// Error where the name is none of them.
Quantization parse_quantization(std::string_view name);
std::string_view to_string(Quantization quantization);
inline bool rounds_inputs(Quantization quantization) {
  return quantization == Quantization::kFp8 || quantization == Quantization::kInt8;
}

// A plain group's matrix in that form. Codes and scales are computed as they are read, each to the nearest,
// ties to even. Error where a value is not finite. A group that is not plain stays as it is.
WeightGroup quantized(WeightGroup group, Quantization quantization);

}  // namespace quire
