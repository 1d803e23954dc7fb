#include "cli/follower.h"

#include <cstdlib>

#include "base/error.h"
#include "cli/commands.h"
#include "engine/rank_group.h"

namespace quire::cli {

bool follows(const EngineConfig& config, const std::function<ModelFiles()>& open) {
  if (!is_follower()) return false;
  try {
    follow(config, open);
  } catch (const std::exception& e) {
    print_text(stderr, "quire: {}\n", e.what());
    std::_Exit(kFailed);  // MPI may still be at work in what would be destroyed
  }
  return true;
}

void refuse_several_processes(const char* command) {
  if (num_processes() > 1)
    fail("{} runs in one process; under mpirun there are serve, generate and chat", command);
}

}  // namespace quire::cli
