#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx512.h"
//
#include "backends/cpu/simd/attention.h"
#include "backends/cpu/simd/elementwise.h"
#include "backends/cpu/simd/matmul.h"
#include "backends/cpu/simd/sampling.h"

namespace quire::simd {

const Kernels kAvx512Kernels = {.prepare_activations = prepare_activations,
                                .linear_panels = linear_panels,
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
