#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx512.h"
//
#include "backends/cpu/simd/kernel_table.h"

namespace quire::simd {

constinit const Kernels kAvx512Kernels = make_kernels();

}  // namespace quire::simd

#endif
