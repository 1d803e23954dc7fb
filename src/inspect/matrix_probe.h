#pragma once

#include <cstdint>

namespace quire {

struct MatrixProbe {
  double flop = 0;
  float result = 0;  // to be used, or the work would be left out
};

// Multiply-adds on the widest instruction this CPU has, all operands in registers; each step is a dozen of
// them or so.
MatrixProbe run_matrix_probe(std::int64_t steps);

}  // namespace quire
