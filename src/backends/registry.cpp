#include "backends/registry.h"

#include <dlfcn.h>

#include <filesystem>

#include "backends/isa.h"
#include "base/error.h"
#include "base/log.h"
#include "base/module.h"
#include "base/parse_number.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

constexpr int kMaxThreads = 1024;

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  const CpuIsa isa = resolve_isa(options.cpu_isa);
  if (options.cpu_threads < 0 || options.cpu_threads > kMaxThreads)
    fail("cpu-threads is {}; it must be from 0 to {}", options.cpu_threads, kMaxThreads);
  return make_cpu_backend(isa, options.cpu_threads == 0 ? usable_cores() : options.cpu_threads);
}

// The CUDA backend's module.
class GpuModule {
 public:
  // Opened once, and never closed: what it made may live on.
  static const GpuModule& get() {
    static const GpuModule module;
    return module;
  }

  const ModuleReport& report() const { return report_; }
  ModuleReport report_with_memory() const {
    if (report_devices_ == nullptr) return report_;
    ModuleReport report;
    report_devices_(report, true);
    return report;
  }

  // Why the device cannot be used; empty: it can.
  std::string problem_of(int device) const {
    if (!report_.problem.empty()) return report_.problem;
    if (device < 0 || device >= std::ssize(report_.devices))
      return format_text("GPU {} is not there; this machine has {}", device, report_.devices.size());
    return report_.devices[static_cast<std::size_t>(device)].problem;
  }

  std::unique_ptr<Backend> open(const ModuleOptions& options) const {
    if (const std::string problem = problem_of(options.device); !problem.empty()) fail("{}", problem);
    std::unique_ptr<Backend> backend;
    open_(options, backend);
    return backend;
  }

 private:
  static constexpr char kFile[] = "libquire_cuda.so";

  GpuModule() {
    const std::filesystem::path path = find_module(kFile);
    if (path.empty()) {
      report_.problem = "this installation was built without CUDA";
      return;
    }
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      report_.problem = format_text("CUDA's libraries cannot be used: {}", dlerror());
      return;
    }
    open_ = reinterpret_cast<OpenBackend>(dlsym(module, kOpenBackend));
    report_devices_ = reinterpret_cast<ReportDevices>(dlsym(module, kReportDevices));
    QUIRE_CHECK(open_ != nullptr && report_devices_ != nullptr, "{} is not of this program", path.string());
    report_devices_(report_, false);
  }

  ModuleReport report_;
  ReportDevices report_devices_ = nullptr;
  OpenBackend open_ = nullptr;
};

// The index in "cuda" or "cuda:3".
int device_index(std::string_view device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (device == "cuda") return 0;
  std::optional<int> index;
  if (device.starts_with(kPrefix)) index = parse_number<int>(device.substr(kPrefix.size()));
  if (index.value_or(-1) < 0) fail("device \"{}\" is not known; use auto, cpu, cuda or cuda:N", device);
  return *index;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.device == "cpu") return make_cpu_backend(options);
  if (options.device == "auto") {
    if (const std::string problem = GpuModule::get().problem_of(0); !problem.empty()) {
      log_info("on the CPU: {}", problem);
      return make_cpu_backend(options);
    }
  }
  // A process that sees one GPU alone has it, whichever of its host's processes it is.
  const int place = GpuModule::get().report().devices.size() == 1 ? 0 : options.place;
  const int index = (options.device == "auto" ? 0 : device_index(options.device)) + place;
  const std::string name = place == 0 ? options.device : format_text("cuda:{}", index);
  try {
    return GpuModule::get().open({index, options.deterministic});
  } catch (const Error& e) {
    fail("device {} cannot be used: {}", name, e.what());
  }
}

std::string resolved_cpu_isa(const std::string& cpu_isa) {
  return std::string(to_string(resolve_isa(cpu_isa)));
}

MachineReport inspect_machine() {
  MachineReport report;
  for (const CpuIsa isa : available_isas()) report.cpu_isas.emplace_back(to_string(isa));
  report.best_cpu_isa = to_string(resolve_isa("auto"));
  report.cpu_problem = why_slow();
  report.cores = usable_cores();
  report.memory = make_cpu_backend(CpuIsa::kReference, 1)->total_memory();
  report.gpus = GpuModule::get().report_with_memory();
  return report;
}

}  // namespace quire
