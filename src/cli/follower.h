#pragma once

#include <functional>

#include "engine/model_files.h"
#include "quire/engine_config.h"

namespace quire::cli {

// Where mpirun started this process as another rank than 0: does what rank 0 says until that ends, and
// returns true. Error where there is not one process for each rank. What fails, a rank that is lost included,
// ends the program here. `open` opens the model that all share.
bool follows(const EngineConfig& config, const std::function<ModelFiles()>& open);

// Error where mpirun started several processes, for a command that has no use for them.
void refuse_several_processes(const char* command);

}  // namespace quire::cli
