#include "inspect/doctor.h"

#include <filesystem>

#include "base/error.h"

namespace quire {
namespace {

bool has_nvidia_gpu() {
  // What the kernel's driver makes, with or without CUDA's own libraries.
  return std::filesystem::exists("/proc/driver/nvidia/version") || std::filesystem::exists("/dev/nvidiactl");
}

}  // namespace

Diagnosis diagnose() {
  Diagnosis diagnosis;
  diagnosis.machine = inspect_machine();
  const MachineReport& machine = diagnosis.machine;
  if (!machine.cpu_problem.empty()) diagnosis.problems.push_back(machine.cpu_problem);
  if (!machine.gpus.problem.empty() && has_nvidia_gpu()) {
    diagnosis.problems.push_back("there is an NVIDIA GPU, and it cannot be used: " + machine.gpus.problem);
  }
  for (const DeviceInfo& gpu : machine.gpus.devices) {
    if (!gpu.problem.empty()) diagnosis.problems.push_back(gpu.problem);
    if (gpu.free_memory < gpu.total_memory / 2) {
      diagnosis.problems.push_back(format_text("{}: {} of {} MiB are free; another program holds the rest",
                                               gpu.name, gpu.free_memory >> 20, gpu.total_memory >> 20));
    }
  }
  return diagnosis;
}

}  // namespace quire
