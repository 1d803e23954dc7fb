#pragma once

#include "cli/commands.h"

namespace quire::cli {

// --config FILE: YAML whose keys are the command's flags. To be added before them, so that it is read before
// what they mean is looked at. What the command line or the environment gives stays.
void add_config_file(Flags flags);

// Flags of vLLM's that say what is so here in any case.
void add_taken_flags(Flags flags);

}  // namespace quire::cli
