// Kernels of the probe that measured shares are taken of. read_all: each block reads 64 KiB, eight 16-byte
// loads a thread in flight, past L1; bytes moved: the buffer, once. (Blocks that stay and loop reach 4 % less
// on an H200.)
#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/kernels/probe.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;

__global__ void occupy_kernel(std::int64_t nanoseconds) {
  std::uint64_t start = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (static_cast<std::int64_t>(now - start) < nanoseconds);
}

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, std::size_t count, unsigned* result) {
  unsigned sum = 0;
  uint4 values[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const std::size_t index = (std::size_t{blockIdx.x} * kLoads + i) * kThreads + threadIdx.x;
    values[i] = index < count ? load_once(data + index) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  if (sum == 0x9E3779B9U) *result = sum;  // practically never; it keeps the loads
}

__global__ void fill_kernel(__nv_bfloat16* data, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint64_t x = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL;  // splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    data[i] = __float2bfloat16(static_cast<float>(static_cast<std::int64_t>(x)) * 0x1p-63F);
  }
}

}  // namespace

void occupy(const LaunchContext& context, std::int64_t nanoseconds) {
  occupy_kernel<<<1, 1, 0, context.stream>>>(nanoseconds);
  check(cudaGetLastError(), "occupying the stream");
}

void read_all(const LaunchContext& context, const void* data, std::size_t bytes, unsigned* result) {
  constexpr std::size_t kBlockBytes = sizeof(uint4) * kThreads * kLoads;
  const auto blocks = static_cast<unsigned>((bytes + kBlockBytes - 1) / kBlockBytes);
  read_kernel<<<blocks, kThreads, 0, context.stream>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4),
                                                       result);
  check(cudaGetLastError(), "reading memory");
}

void fill_random(const LaunchContext& context, void* data, std::int64_t count) {
  fill_kernel<<<8 * context.num_sms, 256, 0, context.stream>>>(static_cast<__nv_bfloat16*>(data), count);
  check(cudaGetLastError(), "filling memory");
}

}  // namespace quire::cuda
