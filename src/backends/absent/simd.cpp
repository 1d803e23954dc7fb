// A CPU without kernels of its own: every op is its reference.
#include "backends/cpu/reference/reference_backend.h"
#include "backends/isa.h"
#include "base/error.h"

namespace quire {

std::string_view to_string(CpuIsa /*isa*/) { return "reference"; }

std::vector<CpuIsa> available_isas() { return {CpuIsa::kReference}; }

CpuIsa resolve_isa(std::string_view name) {
  if (name != "auto" && name != "reference")
    fail("cpu-isa {}: this build has no SIMD kernels (QUIRE_SIMD=OFF); use auto or reference", name);
  return CpuIsa::kReference;
}

std::string_view why_slow() {
  return "this build has no SIMD kernels (QUIRE_SIMD=OFF): CPU inference runs on plain C++ and is slow";
}

std::unique_ptr<Backend> make_cpu_backend(CpuIsa /*isa*/, int /*num_threads*/) {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace quire
