#pragma once

#include <cstdint>

namespace quire {

enum class Activation : std::uint8_t {
  kSilu,   // x * sigmoid(x) (Elfwing et al., 2018)
  kGelu,   // in its tanh form (Hendrycks and Gimpel, 2016)
  kRelu2,  // max(x, 0)^2 (So et al., "Primer", 2021)
};

}  // namespace quire
