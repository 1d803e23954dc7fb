#pragma once

#include <functional>

#include "engine/model_files.h"
#include "quire/engine_config.h"

namespace quire::cli {

// Where mpirun started this process as another rank than 0: does what rank 0 says until that ends, and
// returns true. Where a rank is lost the program ends here. `open` opens the model that all ranks share.
bool follows(const EngineConfig& config, const std::function<ModelFiles()>& open);

// Error where mpirun started several processes, for a command that has no use for them.
void refuse_several_processes(const char* command);

}  // namespace quire::cli
