#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace quire {

// Instruction sets the CPU kernels are written for, from the plainest to the widest.
enum class CpuIsa : std::uint8_t { kReference, kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view to_string(CpuIsa isa);  // "reference", "avx2", "avx512", "avx512_bf16", "amx"

// Those this machine runs, in the order above.
std::vector<CpuIsa> available_isas();

// By name, or the fastest one for "auto". Error when there is no such name, or this machine cannot run it.
CpuIsa resolve_isa(std::string_view name);

}  // namespace quire
