#include "inspect/doctor.h"

#include "base/format.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace quire::cli {
namespace {

void print_table(const MachineReport& machine, const std::vector<std::string>& problems) {
  print_text(stdout, "CPU      {} cores, kernels: {} (auto: {})\n", machine.cores,
             join_text(machine.cpu_isas, ", "), machine.best_cpu_isa);
  print_text(stdout, "memory   {} MiB\n", machine.memory >> 20);
  for (const DeviceInfo& gpu : machine.gpus.devices)
    if (gpu.problem.empty())  // its problem is told below
      print_text(stdout, "GPU      {}, compute capability {}, {} of {} MiB free\n", gpu.name,
                 gpu.architecture, gpu.free_memory >> 20, gpu.total_memory >> 20);
  for (const std::string& version : machine.gpus.versions) print_text(stdout, "library  {}\n", version);
  if (!machine.gpus.problem.empty()) print_text(stdout, "GPU      none: {}\n", machine.gpus.problem);
  for (const std::string& problem : problems) print_text(stdout, "problem  {}\n", problem);
  if (problems.empty()) print_text(stdout, "nothing is wrong\n");
}

void print_json(const MachineReport& machine, const std::vector<std::string>& problems) {
  OrderedJson gpus = OrderedJson::array();
  for (const DeviceInfo& gpu : machine.gpus.devices)
    gpus.push_back({{"name", gpu.name},
                    {"compute_capability", gpu.architecture},
                    {"total_bytes", gpu.total_memory},
                    {"free_bytes", gpu.free_memory}});
  print_json_line({{"cores", machine.cores},
                   {"memory_bytes", machine.memory},
                   {"cpu_isas", machine.cpu_isas},
                   {"gpus", gpus},
                   {"libraries", machine.gpus.versions},
                   {"gpu_problem", machine.gpus.problem},
                   {"problems", problems}});
}

struct Doctor {
  bool json = false;

  void add_to(Flags flags) { flags.on("--json", json, "print one JSON object"); }
  int run() const {
    const MachineReport machine = inspect_machine();
    const std::vector<std::string> problems = problems_of(machine);
    json ? print_json(machine, problems) : print_table(machine, problems);
    return problems.empty() ? 0 : kFailed;
  }
};

}  // namespace

void add_doctor(CLI::App& app, Command& chosen) {
  add_command<Doctor>(app, chosen, "doctor", "Show what this machine offers, and what is wrong with it");
}

}  // namespace quire::cli
