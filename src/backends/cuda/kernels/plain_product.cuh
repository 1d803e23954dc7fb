#pragma once

#include <cstdint>

#include "backends/cuda/kernels/linear_args.cuh"

// Products by plain multiply-adds, for nothing that must be fast: a block computes 64 tokens × 64 rows of the
// weight, k in steps of 16. The tile is the same whatever the number of tokens, k is never split, and a
// token's sums see no other token.
namespace quire::cuda {

constexpr int kPlainTile = 64;  // tokens, rows of the weight
constexpr int kPlainStep = 16;  // along k
constexpr int kPlainThreads = 256;

inline dim3 plain_grid(const LinearArgs& args) {
  return dim3(ceil_div(args.n, kPlainTile), ceil_div(args.tokens, kPlainTile));
}

// What a thread computes: 4 × 4 elements of out, 16 apart.
struct PlainPlace {
  int first_row = static_cast<int>(blockIdx.x) * kPlainTile;  // of the block
  int first_token = static_cast<int>(blockIdx.y) * kPlainTile;
  int token = static_cast<int>(threadIdx.x) / 16;
  int row = static_cast<int>(threadIdx.x) % 16;
};

// A step's operands, in shared memory.
template <typename Value>
struct PlainTile {
  Value x[kPlainStep][kPlainTile + 1];  // odd, so that the transposing stores spread over the banks
  Value weight[kPlainStep][kPlainTile + 1];

  // sums of this thread += the step's products.
  __device__ void multiply(Value (&sums)[4][4], const PlainPlace& at) const {
#pragma unroll
    for (int k = 0; k < kPlainStep; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += x[k][at.token + i * 16] * weight[k][at.row + j * 16];
      }
    }
  }
};

// A step's operand: rows from first_row on of a row-major matrix [rows, columns], columns from `begin` on;
// zeros outside of it.
template <typename T>
__device__ inline void load_plain(float (&to)[kPlainStep][kPlainTile + 1], const void* matrix,
                                  std::int64_t stride, int first_row, int rows, int begin, int columns) {
  for (int i = static_cast<int>(threadIdx.x); i < kPlainTile * kPlainStep; i += kPlainThreads) {
    const int r = i / kPlainStep, c = i % kPlainStep;
    const T* from = static_cast<const T*>(matrix) + (first_row + r) * stride + begin + c;
    to[c][r] = first_row + r < rows && begin + c < columns ? static_cast<float>(*from) : 0.0F;
  }
}

// out = the thread's sums + bias.
template <typename Out>
__device__ inline void store_plain(const LinearArgs& args, const float (&sums)[4][4], const PlainPlace& at) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      store_sum<Out>(args, at.first_token + at.token + i * 16, at.first_row + at.row + j * 16, sums[i][j]);
  }
}

}  // namespace quire::cuda
