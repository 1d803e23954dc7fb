#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/kernels/linear_args.cuh"

// Products by plain multiply-adds in one order of summation: 64 tokens × 64 rows of the weight a block, 4 × 4
// a thread, k in steps of 16. The tile is the same whatever the number of tokens, k is never split, and a
// token's sums see no other token. For what must not be fast.
namespace quire::cuda {

constexpr int kPlainTile = 64;  // tokens, rows of the weight
constexpr int kPlainStep = 16;  // along k
constexpr int kPlainThreads = 256;

// A step of an operand in shared memory; odd, so that the transposing stores spread over the banks.
template <typename Value>
using PlainOperand = Value[kPlainStep][kPlainTile + 1];

// A thread's place in its block, and what it sums.
template <typename Sum>
struct PlainProduct {
  int first_row = static_cast<int>(blockIdx.x) * kPlainTile;
  int first_token = static_cast<int>(blockIdx.y) * kPlainTile;
  Sum sums[4][4] = {};

  // Of sums[i][j].
  __device__ int token(int i) const { return first_token + static_cast<int>(threadIdx.x) / 16 + i * 16; }
  __device__ int row(int j) const { return first_row + static_cast<int>(threadIdx.x) % 16 + j * 16; }
  // What a thread loads where it takes four neighbours along k: their row of the tile, the first of them.
  __device__ static int load_row() { return static_cast<int>(threadIdx.x) / 4; }
  __device__ static int load_column() { return static_cast<int>(threadIdx.x) % 4 * 4; }

  __device__ void add(const PlainOperand<Sum>& x, const PlainOperand<Sum>& weight) {
#pragma unroll
    for (int k = 0; k < kPlainStep; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums[i][j] += x[k][token(i) - first_token] * weight[k][row(j) - first_row];
      }
    }
  }
};

// Calls f(i, j) for each of a thread's sums.
template <typename F>
__device__ inline void for_plain_sums(const F& f) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) f(i, j);
  }
}

// Columns [column, column + kPlainStep) of rows [row, row + kPlainTile) of a matrix, zeros outside of it.
template <typename T>
__device__ inline void load_plain(PlainOperand<float>& to, const T* matrix, std::int64_t stride, int2 size,
                                  int row, int column) {
  for (int i = static_cast<int>(threadIdx.x); i < kPlainTile * kPlainStep; i += kPlainThreads) {
    const int r = i / kPlainStep, c = i % kPlainStep;
    const bool inside = row + r < size.x && column + c < size.y;
    to[c][r] = inside ? static_cast<float>(matrix[(row + r) * stride + column + c]) : 0.0F;
  }
}

// Writes sums as float32 and the bias.
template <typename Out, typename Args>
__device__ inline void store_plain(const Args& args, int num_rows, const PlainProduct<float>& product) {
  for_plain_sums([&](int i, int j) {
    const int t = product.token(i), o = product.row(j);
    if (t >= args.tokens || o >= num_rows) return;
    const float sum = product.sums[i][j];
    static_cast<Out*>(args.out)[t * args.out_stride + o] =
        round_to<Out>(args.bias == nullptr ? sum : sum + args.bias[o]);
  });
}

inline dim3 plain_grid(int rows, int tokens) {
  return dim3(static_cast<unsigned>(ceil_div(rows, kPlainTile)),
              static_cast<unsigned>(ceil_div(tokens, kPlainTile)));
}

}  // namespace quire::cuda
