#pragma once

#include "backends/registry.h"

namespace quire {

// What this machine offers, and what keeps Quire from using it.
struct Diagnosis {
  MachineReport machine;
  std::vector<std::string> problems;  // one line each: what is wrong, and what would be right
};

Diagnosis diagnose();

}  // namespace quire
