#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace quire {

// The CPU's kernels, as the registry knows them: what src/backends/cpu/simd implements, and
// src/backends/absent/simd.cpp where that part is left out.

// Instruction sets the CPU kernels are written for, from the plainest to the widest.
enum class CpuIsa : std::uint8_t { kReference, kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view to_string(CpuIsa isa);  // "reference", "avx2", "avx512", "avx512_bf16", "amx"

// Those this machine and this build run, in the order above.
std::vector<CpuIsa> available_isas();

// By name, or the fastest one for "auto". Error when there is no such name, or it cannot be run.
CpuIsa resolve_isa(std::string_view name);

// Why inference on this CPU is slow. Empty: it is not.
std::string_view why_slow();

// isa: one that is available. num_threads: at least 1; the reference has one.
std::unique_ptr<Backend> make_cpu_backend(CpuIsa isa, int num_threads);

}  // namespace quire
