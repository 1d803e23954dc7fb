#include "inspect/doctor.h"

#include <filesystem>

#include "base/error.h"

namespace quire {

std::vector<std::string> problems_of(const MachineReport& machine) {
  std::vector<std::string> problems;
  if (!machine.cpu_problem.empty()) problems.push_back(machine.cpu_problem);
  // What the kernel's driver makes, with or without CUDA's own libraries.
  const bool has_nvidia_gpu =
      std::filesystem::exists("/proc/driver/nvidia/version") || std::filesystem::exists("/dev/nvidiactl");
  if (!machine.gpus.problem.empty() && has_nvidia_gpu)
    problems.push_back("there is an NVIDIA GPU, and it cannot be used: " + machine.gpus.problem);
  for (const DeviceInfo& gpu : machine.gpus.devices) {
    if (!gpu.problem.empty()) problems.push_back(gpu.problem);
    if (gpu.free_memory < gpu.total_memory / 2)
      problems.push_back(format_text("{}: {} of {} MiB are free; another program holds the rest", gpu.name,
                                     gpu.free_memory >> 20, gpu.total_memory >> 20));
  }
  return problems;
}

}  // namespace quire
