#include "backends/cuda/kernels/launch.h"

#include "base/error.h"

namespace quire::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) [[unlikely]] {
    fail("CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
  }
}

bool overlaps_kernels() {
  static const bool overlaps = [] {
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "the current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    return major >= 9;
  }();
  return overlaps;
}

}  // namespace quire::cuda
