#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {

// The blocks that work on one row together: a cluster of kRowBlocks where the GPU has clusters (compute
// capability 9.0), else a single block. Kernels that use it are declared QUIRE_ROW_CLUSTER.
constexpr int kRowBlocks = 8;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define QUIRE_ROW_CLUSTER __cluster_dims__(kRowBlocks, 1, 1)
#else
#define QUIRE_ROW_CLUSTER
#endif

// Blocks in a group, on this device.
inline int row_group_size() {
  static const int size = [] {
    int device = 0;
    int major = 0;
    check(cudaGetDevice(&device), "the current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    return major >= 9 ? kRowBlocks : 1;
  }();
  return size;
}

class RowGroup {
 public:
  // Every thread of every block makes one at its start, and calls ready() before the first reduce().
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ RowGroup() { arrive_relaxed(); }
  __device__ static void ready() { wait(); }
  __device__ static int size() { return static_cast<int>(cooperative_groups::this_cluster().num_blocks()); }
  __device__ static int rank() { return static_cast<int>(cooperative_groups::this_cluster().block_rank()); }
#else
  __device__ static void ready() {}
  __device__ static int size() { return 1; }
  __device__ static int rank() { return 0; }
#endif

  // T::combine over the group's threads, in one order, in every thread; T{} is the neutral element. A barrier
  // of the group.
  template <typename T>
  __device__ T reduce(T value) {
    __shared__ T of_warps[32];
    __shared__ T of_blocks[2][kRowBlocks];
    const unsigned lane = threadIdx.x % 32;
    value = reduce_warp(value);
    if (lane == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
      value = reduce_warp(lane < blockDim.x / 32 ? of_warps[lane] : T{});
      if (static_cast<int>(lane) < size())
        *of_block(&of_blocks[turn_][rank()], static_cast<int>(lane)) = value;
      arrive();
    } else {
      arrive_relaxed();  // these warps have written nothing that other blocks read
    }
    wait();
    T total = of_blocks[turn_][0];
    for (int i = 1; i < size(); ++i) total = T::combine(total, of_blocks[turn_][i]);
    turn_ ^= 1;  // the other places are free: all have read them before this barrier
    return total;
  }

 private:
  template <typename T>
  __device__ static T reduce_warp(T value) {
    static_assert(sizeof(T) % 4 == 0);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      T other;
      const auto* from = reinterpret_cast<const unsigned*>(&value);
      auto* to = reinterpret_cast<unsigned*>(&other);
#pragma unroll
      for (unsigned i = 0; i < sizeof(T) / 4; ++i) to[i] = __shfl_xor_sync(~0U, from[i], step);
      value = T::combine(value, other);
    }
    return value;
  }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ static void arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
  __device__ static void arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }
  __device__ static void wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
  template <typename T>
  __device__ static T* of_block(T* mine, int rank) {
    return cooperative_groups::this_cluster().map_shared_rank(mine, static_cast<unsigned>(rank));
  }
#else
  __device__ static void arrive() {}
  __device__ static void arrive_relaxed() {}
  __device__ static void wait() { __syncthreads(); }
  template <typename T>
  __device__ static T* of_block(T* mine, int) {
    return mine;
  }
#endif

  int turn_ = 0;
};

}  // namespace quire::cuda
