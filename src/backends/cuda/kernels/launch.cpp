#include "backends/cuda/kernels/launch.h"

#include "base/error.h"

namespace quire::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) [[unlikely]] {
    fail("CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
  }
}

}  // namespace quire::cuda
