#pragma once

#include "backends/registry.h"

namespace quire {

// What keeps Quire from using what this machine offers, a line each: what is wrong, and what would be right.
std::vector<std::string> problems_of(const MachineReport& machine);

}  // namespace quire
