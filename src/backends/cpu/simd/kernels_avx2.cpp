#if defined(__x86_64__)

#include "backends/cpu/simd/vec_avx2.h"
//
#include "backends/cpu/simd/kernel_table.h"

namespace quire::simd {

constinit const Kernels kAvx2Kernels = make_kernels();

}  // namespace quire::simd

#endif
