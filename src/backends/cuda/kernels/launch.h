#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace quire::cuda {

using CudaEvent = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;

// Where a kernel runs, and what it must know of the device.
struct LaunchContext {
  cudaStream_t stream = nullptr;
  int num_sms = 0;
  int shared_bytes = 0;  // a block of threads can have
};

// The context of the current device, on its default stream.
LaunchContext make_context(int device);

// Error with `what` and the driver's words, unless status is success.
void check(cudaError_t status, const char* what);
// Error with `what`, unless it holds.
inline void require(bool holds, const char* what) {
  check(holds ? cudaSuccess : cudaErrorInvalidValue, what);
}

CudaEvent make_event(unsigned flags = cudaEventDefault);               // of the current device
double seconds_between(const CudaEvent& begin, const CudaEvent& end);  // which have passed

int current_device();  // its number, below 64
// Whether the current device lets a kernel start while the one before it ends: from Hopper on.
bool overlaps_kernels();
// Whether the current device has the instructions of 90a.
bool is_hopper();

#ifdef __CUDACC__
// This thread's place in its warp, and that warp's in a block of one dimension.
__device__ inline int lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int warp() { return static_cast<int>(threadIdx.x / 32); }
// A value that all of the warp's threads have; all of them call it. The compiler knows then that it is one
// value: addresses made of it are scalar, and branches by it do not part the threads.
template <typename T>
__device__ T of_warp(T value) {
  return __shfl_sync(0xFFFFFFFFU, value, 0);
}

// Kernels of one launch() overlap where overlaps_kernels(). What every kernel owes for that: it calls
// wait_for_kernels() before it reads what a kernel before it wrote and before it writes anything, in every
// thread that does either, and in some thread of every launch, since the next one takes its end for that of
// all before it; and it calls admit_next_kernel() at its start, since the next one waits for its end all the
// same, or after its own wait, if kernels behind it read ahead what was written in front of it. That one is
// fill_tokens, the first of a step.
__device__ inline void wait_for_kernels() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ inline void admit_next_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
#endif

template <typename A, typename B>
__host__ __device__ constexpr int ceil_div(A a, B b) {
  return static_cast<int>((a + b - 1) / b);
}

// Calls f.template operator()<kValue>() with the one of kValues that is `value`, or, in the second form, with
// the first that is at least that; whether there is one.
template <auto... kValues, typename Value, typename F>
constexpr bool dispatch(Value value, F&& f) {
  return ((value == kValues && (f.template operator()<kValues>(), true)) || ...);
}
template <auto... kValues, typename Value, typename F>
constexpr bool dispatch_up_to(Value value, F&& f) {
  return ((value <= kValues && (f.template operator()<kValues>(), true)) || ...);
}

// Lets `kernel` have so many bytes of shared memory, always the same, on the current device: asked once a
// device.
template <auto kernel>
void allow_shared_bytes(int bytes) {
  static std::atomic<std::uint64_t> devices = 0;
  const std::uint64_t bit = std::uint64_t{1} << current_device();
  if ((devices.load(std::memory_order_relaxed) & bit) != 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  devices.fetch_or(bit, std::memory_order_relaxed);
}

// Launches `kernel` in clusters of so many neighbours of the grid's first dimension; where the device can, by
// programmatic dependent launch.
template <typename... Params, typename... Args>
void launch_clusters(const LaunchContext& context, const char* name, void (*kernel)(Params...), dim3 grid,
                     unsigned cluster, dim3 block, std::size_t shared_bytes, const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (overlaps_kernels()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

// How many clusters of so many blocks, of so many threads and bytes of shared memory each, the current device
// runs at a time; 1 at least.
template <typename... Params>
int max_active_clusters(void (*kernel)(Params...), int blocks, int threads, int shared_bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "clusters");
  return clusters > 0 ? clusters : 1;
}

template <typename... Params, typename... Args>
void launch(const LaunchContext& context, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
            std::size_t shared_bytes, const Args&... args) {
  launch_clusters(context, name, kernel, grid, 1, block, shared_bytes, args...);
}

}  // namespace quire::cuda
