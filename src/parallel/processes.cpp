#include "parallel/processes.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "base/error.h"
#include "base/module.h"

namespace quire {
namespace {

// Whether a launcher started several processes, of which this is one. Open MPI and MPICH (Intel MPI, too)
// tell the number; launchers that speak PMIx alone, such as srun, may not: then MPI has to be asked, but
// where Slurm tells of one task.
bool launched_with_others() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* size = std::getenv(name)) return std::string_view(size) != "1";
  const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return std::getenv("PMIX_RANK") != nullptr && (tasks == nullptr || std::string_view(tasks) != "1");
}

std::unique_ptr<Processes> open_processes() {
  const std::filesystem::path path = find_module("libquire_mpi.so");
  if (path.empty()) {
    fail(
        "mpirun started several processes, but this installation was built without MPI; build it with "
        "-DQUIRE_MPI=ON (needs libopenmpi-dev), or start one process");
  }
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (module == nullptr) fail("MPI's libraries cannot be used: {}", dlerror());
  const auto open = reinterpret_cast<OpenProcesses>(dlsym(module, kOpenProcesses));
  QUIRE_CHECK(open != nullptr, "{} is not of this program", path.string());
  std::unique_ptr<Processes> processes;
  open(processes);
  return processes;
}

}  // namespace

Processes* started_processes() {
  static std::mutex mutex;
  static std::unique_ptr<Processes> processes;
  const std::lock_guard lock(mutex);
  if (processes == nullptr && launched_with_others()) processes = open_processes();
  return processes != nullptr && processes->size() > 1 ? processes.get() : nullptr;
}

}  // namespace quire
