#include "backends/registry.h"

#include <sched.h>

#include "backends/cpu/simd/simd_backend.h"
#include "base/error.h"

namespace quire {
namespace {

constexpr int kMaxThreads = 1024;

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  const CpuIsa isa = resolve_isa(options.cpu_isa);
  if (options.cpu_threads < 0 || options.cpu_threads > kMaxThreads) {
    fail("cpu-threads is {}; it must be from 0 to {}", options.cpu_threads, kMaxThreads);
  }
  if (isa == CpuIsa::kReference) return std::make_unique<ReferenceBackend>();
  return std::make_unique<SimdBackend>(isa, options.cpu_threads == 0 ? usable_cores() : options.cpu_threads);
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.device == "auto" || options.device == "cpu") return make_cpu_backend(options);
  fail("device \"{}\" is not known; use auto or cpu", options.device);
}

}  // namespace quire
