#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/backend_module.h"
#include "ops/ops.h"

namespace quire {

struct BackendOptions {
  std::string device = "auto";   // auto (a GPU where there is one), cpu, cuda, cuda:1
  std::string cpu_isa = "auto";  // auto, reference, avx2, avx512, avx512_bf16, amx
  int cpu_threads = 0;           // 0: one for each core this process may use
  bool deterministic = false;    // a sequence's logits are bitwise the same whatever else runs
  int place = 0;                 // among the GPUs from that of `device` on
};

// Error that lists the names on any other, on an instruction set that this machine does not have, and where a
// GPU was asked for and cannot be used.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// The instruction set that BackendOptions::cpu_isa stands for on this machine.
std::string resolved_cpu_isa(const std::string& cpu_isa);

// What this machine offers.
struct MachineReport {
  std::vector<std::string> cpu_isas;  // that the CPU kernels can use
  std::string best_cpu_isa;
  std::string cpu_problem;  // why inference on the CPU is slow; empty: it is not
  int cores = 0;            // that this process may use
  std::size_t memory = 0;   // of the host, in bytes
  ModuleReport gpus;
};
MachineReport inspect_machine();

}  // namespace quire
