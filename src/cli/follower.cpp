#include "cli/follower.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "engine/rank_group.h"

namespace quire::cli {

bool follows(const EngineConfig& config, const std::function<ModelFiles()>& open) {
  check_processes(config);
  if (!is_follower()) return false;
  std::signal(SIGINT, SIG_IGN);  // mpirun sends them to all; rank 0 says when to end
  std::signal(SIGTERM, SIG_IGN);
  try {
    follow(config, open);
  } catch (const std::exception& e) {
    print_text(stderr, "quire: {}\n", e.what());
    // Rank 0 has its clients to tell: once a process has died, mpirun gives the others a second, unless one
    // more ends meanwhile.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::_Exit(kFailed);  // MPI may still be at work in what would be destroyed
  }
  return true;
}

void refuse_several_processes(const char* command) {
  if (num_processes() > 1)
    fail("{} runs in one process; under mpirun there are serve, generate and chat", command);
}

}  // namespace quire::cli
