#pragma once

#include <cstdint>

#include "backends/cuda/kernels/hopper.cuh"

// What the Hopper products share whose left operand is the weight: rings of stages, and how sums, which lie
// transposed, are written.
namespace quire::cuda {

struct RingStage {
  int place = 0;
  unsigned parity = 0;

  __device__ void next(int stages) {
    if (++place == stages) {
      place = 0;
      parity ^= 1;
    }
  }
};
__device__ inline RingStage of_warp(RingStage stage) { return {of_warp(stage.place), of_warp(stage.parity)}; }

// The barriers of a ring: a stage is full when its copies are there, free when all warps have read it.
template <int kStages>
struct RingBarriers {
  std::uint64_t full[kStages], free[kStages];

  // By one thread; a barrier of the block must follow. warps: that read the stages.
  __device__ void init(int stages, int warps) {
    for (int s = 0; s < stages; ++s) {
      hopper::init_barrier(&full[s], 1);
      hopper::init_barrier(&free[s], static_cast<unsigned>(warps));
    }
    hopper::publish_barriers();
  }
};

// Of an 8 × 8 matrix of 16-bit values, of which a lane holds two neighbours of row lane / 4.
__device__ inline std::uint32_t transpose(std::uint32_t pair) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace quire::cuda
