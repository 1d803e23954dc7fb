#pragma once

#include "backends/cuda/kernels/mma.cuh"

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

// Of an 8 × 8 matrix of 16-bit values, of which a lane holds two neighbours of row lane / 4.
__device__ inline std::uint32_t transpose(std::uint32_t pair) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace quire::cuda
