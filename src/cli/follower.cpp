#include "cli/follower.h"

#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "cli/commands.h"
#include "engine/rank_group.h"

namespace quire::cli {

bool follows(const EngineConfig& config, const std::function<ModelFiles()>& open) {
  if (config.tensor_parallel_size == 1 && num_processes() > 1)
    fail("mpirun started {} processes, and --tensor-parallel-size is 1; it is the number of processes",
         num_processes());
  if (!is_follower()) return false;
  std::signal(SIGINT, SIG_IGN);  // mpirun sends them to all; rank 0 says when to end
  std::signal(SIGTERM, SIG_IGN);
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
