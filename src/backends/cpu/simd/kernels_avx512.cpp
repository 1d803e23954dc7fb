#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx512.h"
//
#include "backends/cpu/simd/attention.h"
#include "backends/cpu/simd/elementwise.h"
#include "backends/cpu/simd/matmul.h"
#include "backends/cpu/simd/sampling.h"

namespace quire::simd {

const Kernels kAvx512Kernels = {prepare_activations, linear_panels, norm, silu_mul, gelu,
                                prepare_attention,   attention,     top,  race};

}  // namespace quire::simd

#endif
