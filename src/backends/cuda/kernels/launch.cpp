#include "backends/cuda/kernels/launch.h"

#include "base/error.h"

namespace quire::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) [[unlikely]] {
    fail("CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
  }
}

namespace {

// 90 for 9.0. Devices that are used together are of one kind.
int compute_capability() {
  static const int capability = [] {
    const int device = current_device();
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
    return major * 10 + minor;
  }();
  return capability;
}

}  // namespace

CudaEvent make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "making an event");
  return {event, cudaEventDestroy};
}

double seconds_between(const CudaEvent& begin, const CudaEvent& end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "the time between events");
  return 1e-3 * static_cast<double>(milliseconds);
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "the current device");
  return device;
}

LaunchContext make_context(int device) {
  LaunchContext context;
  check(cudaDeviceGetAttribute(&context.num_sms, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  check(cudaDeviceGetAttribute(&context.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared memory");
  // A multiprocessor divides its memory between cache and shared memory, and can change that only when it is
  // empty: a kernel that wants more than the one before it would wait for that one's end instead of
  // overlapping.
  check(cudaDeviceSetCacheConfig(cudaFuncCachePreferShared), "shared memory");
  return context;
}

bool overlaps_kernels() { return compute_capability() >= 90; }

bool is_hopper() { return compute_capability() == 90; }

}  // namespace quire::cuda
