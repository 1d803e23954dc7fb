#pragma once

#include <cstdint>

namespace quire {

enum class Activation : std::uint8_t {
  kSilu,   // x * sigmoid(x) (Elfwing et al., 2018)
  kGelu,   // in its tanh form (Hendrycks and Gimpel, 2016)
  kRelu2,  // max(x, 0)^2 (So et al., "Primer", 2021)
  kIdentity,
  // x * sigmoid(1.702 * x); a gate is at most 7, and what it gates, within 7 of 0, gets 1 added (gpt-oss)
  kSwigluOai,
};

inline constexpr float kSwigluAlpha = 1.702F, kSwigluLimit = 7;  // of kSwigluOai

}  // namespace quire
