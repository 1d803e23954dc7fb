#pragma once

#include <string>
#include <string_view>

#include "inspect/techniques.h"

namespace quire {

// An SVG drawing in light and dark, as the viewer prefers: of each row a bar as long as the logarithm of its
// factor, and the figures it was made of.
std::string technique_plot(std::string_view title, const TechniqueReport& report);

}  // namespace quire
