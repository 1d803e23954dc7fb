#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx512.h"
//
#include "backends/cpu/simd/attention.h"
#include "backends/cpu/simd/elementwise.h"
#include "backends/cpu/simd/matmul_amx.h"
#include "backends/cpu/simd/sampling.h"

namespace quire::simd {

const Kernels kAmxKernels = {.prepare_activations = prepare_tiles,
                             .linear_panels = linear_by_tiles,
                             .norm = norm,
                             .activate = activate,
                             .activate_gate = activate_gate,
                             .cap = cap,
                             .prepare_attention = prepare_attention,
                             .attention = attention,
                             .top = top,
                             .race = race};

}  // namespace quire::simd

#endif
