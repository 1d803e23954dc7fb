#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <functional>
#include <type_traits>

#include "backends/cuda/kernels/hopper.cuh"
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
inline int row_group_size() { return overlaps_kernels() ? kRowBlocks : 1; }

// T::combine over kLanes neighbours, in each of them, by exchange of T's words. Whole warps take part.
template <int kLanes, typename T>
__device__ T combine_lanes(const T& of_lane) {
  T value = of_lane;
  static_assert(sizeof(T) % sizeof(unsigned) == 0);
#pragma unroll 1
  for (int step = kLanes / 2; step > 0; step /= 2) {
    T other;
    const auto* from = reinterpret_cast<const unsigned*>(&value);
    auto* to = reinterpret_cast<unsigned*>(&other);
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / sizeof(unsigned); ++i) to[i] = __shfl_xor_sync(~0U, from[i], step);
    value = T::combine(value, other);
  }
  return value;
}

// Reductions over the threads of a block and of a group. Values are of a type T that combine_lanes() takes,
// and T{} is neutral. Every thread of every block makes a RowGroup at its start, and calls ready() before the
// first reduce().
class RowGroup {
 public:
  __device__ RowGroup() { arrive_relaxed(); }
  __device__ static void ready() { wait(); }

  // Over the block's threads, in one order; in its first warp. A barrier of the block, and to be followed by
  // one before the next.
  template <typename T>
  __device__ static T reduce_block(const T& value) {
    __shared__ Places<T, 32> of_warps;
    const bool any = __any_sync(~0U, !value.neutral());  // warps that have nothing take no part
    const T warps = any ? combine_lanes<32>(value) : T{};
    if (threadIdx.x % 32 == 0) of_warps.at(static_cast<int>(threadIdx.x) / 32) = warps;
    __syncthreads();
    if (threadIdx.x >= 32) return T{};
    return combine_lanes<32>(threadIdx.x < blockDim.x / 32 ? of_warps.at(static_cast<int>(threadIdx.x))
                                                           : T{});
  }

  // `finish` of the values of all the group's threads, combined in one order; in every thread. A barrier of
  // the group.
  template <typename T, typename Finish = std::identity>
  __device__ auto reduce(const T& value, Finish&& finish = {}) {
    using Result = std::decay_t<decltype(finish(value))>;
    __shared__ Places<T, 2 * kRowBlocks> of_blocks;
    __shared__ Places<Result, 1> shared_result;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const T of_block = reduce_block(value);
    if (threadIdx.x < 32) {
      if (lane < size()) *of_other_block(&of_blocks.at(turn_ + rank()), lane) = of_block;
      arrive();
    } else {
      arrive_relaxed();  // these warps have written nothing that other blocks read
    }
    wait();
    if (threadIdx.x < 32) {
      const int block = lane % kRowBlocks;
      const T of_group = block < size() ? of_blocks.at(turn_ + block) : T{};
      const Result result = finish(combine_lanes<kRowBlocks>(of_group));
      if (lane == 0) shared_result.at(0) = result;
    }
    __syncthreads();
    turn_ ^= kRowBlocks;  // the other places are free: all have read them before this barrier
    return shared_result.at(0);
  }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ static int size() { return static_cast<int>(cooperative_groups::this_cluster().num_blocks()); }
  __device__ static int rank() { return static_cast<int>(cooperative_groups::this_cluster().block_rank()); }

 private:
  __device__ static void arrive() { hopper::arrive_at_cluster(); }
  __device__ static void arrive_relaxed() { hopper::arrive_relaxed_at_cluster(); }
  __device__ static void wait() { hopper::wait_for_cluster(); }
  template <typename T>
  __device__ static T* of_other_block(T* mine, int rank) {
    return cooperative_groups::this_cluster().map_shared_rank(mine, static_cast<unsigned>(rank));
  }
#else
  __device__ static int size() { return 1; }
  __device__ static int rank() { return 0; }

 private:
  __device__ static void arrive() {}
  __device__ static void arrive_relaxed() {}
  __device__ static void wait() { __syncwarp(); }
  template <typename T>
  __device__ static T* of_other_block(T* mine, int) {
    return mine;
  }
#endif

  // Values in shared memory, whose constructors must not run there.
  template <typename T, int kCount>
  struct Places {
    alignas(T) unsigned char bytes[kCount * sizeof(T)];
    __device__ T& at(int i) { return reinterpret_cast<T*>(bytes)[i]; }
  };

  int turn_ = 0;
};

}  // namespace quire::cuda
