#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx512.h"
//
#include "backends/cpu/simd/attention.h"
#include "backends/cpu/simd/elementwise.h"
#include "backends/cpu/simd/matmul_amx.h"
#include "backends/cpu/simd/sampling.h"

namespace quire::simd {

const Kernels kAmxKernels = {prepare_tiles,     linear_by_tiles, norm, silu_mul, gelu,
                             prepare_attention, attention,       top,  race};

}  // namespace quire::simd

#endif
