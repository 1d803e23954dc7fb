#include "backends/cpu/simd/isa.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"

namespace quire {
namespace {

constexpr std::array kAllIsas = {CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};

// By cpuid, and by what the operating system saves of the registers.
bool is_available(CpuIsa isa) {
#if defined(__x86_64__)
  // F16C is as old as AVX2 on every processor, and no name that Clang 14 knows.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case CpuIsa::kReference:
      return true;
    case CpuIsa::kAvx2:
      return avx2;
    case CpuIsa::kAvx512:
      return avx512;
    case CpuIsa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return isa == CpuIsa::kReference;
}

// On Intel's processors vdpbf16ps takes twice as long as a float32 product, so it gains nothing (Sapphire
// Rapids: 86 against 174 GFLOP/s a core); on AMD's it doubles the rate.
CpuIsa best_isa() {
#if defined(__x86_64__)
  if (is_available(CpuIsa::kAvx512Bf16) && __builtin_cpu_is("amd")) return CpuIsa::kAvx512Bf16;
  if (is_available(CpuIsa::kAvx512)) return CpuIsa::kAvx512;
#endif
  return available_isas().back();
}

std::string names_of(const std::vector<CpuIsa>& isas) {
  std::string names;
  for (const CpuIsa isa : isas) names += (names.empty() ? "" : ", ") + std::string(to_string(isa));
  return names;
}

}  // namespace

std::string_view to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return "reference";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "";
}

std::vector<CpuIsa> available_isas() {
  std::vector<CpuIsa> isas;
  std::copy_if(kAllIsas.begin(), kAllIsas.end(), std::back_inserter(isas), is_available);
  return isas;
}

CpuIsa resolve_isa(std::string_view name) {
  if (name == "auto") return best_isa();
  const auto found =
      std::find_if(kAllIsas.begin(), kAllIsas.end(), [&](CpuIsa isa) { return to_string(isa) == name; });
  if (found == kAllIsas.end()) {
    fail("cpu-isa \"{}\" is not known; use auto, {}", name,
         names_of(std::vector(kAllIsas.begin(), kAllIsas.end())));
  }
  if (!is_available(*found)) {
    fail("cpu-isa {} is not to be had on this machine, which has {}", name, names_of(available_isas()));
  }
  return *found;
}

}  // namespace quire
