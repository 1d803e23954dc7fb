#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx512.h"
//
#include "backends/cpu/simd/kernel_table.h"
#include "backends/cpu/simd/matmul_amx.h"

namespace quire::simd {

constinit const Kernels kAmxKernels = make_kernels(prepare_tiles, linear_by_tiles);

}  // namespace quire::simd

#endif
