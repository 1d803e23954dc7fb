// out [tokens, n] = x [tokens, k] · weight [n, k]ᵀ + bias, each element summed over k in one order: the tile
// is the same whatever the number of tokens, k is never split, and a token's sums see no other token. So a
// row of out has the same bits in any batch. Both operands are row-major. Moves n·k + tokens·k elements and
// does 2·tokens·n·k operations; bf16 and f16 on tensor cores by mma.sync, float32 by plain multiply-adds.
// On an H200, where the library reaches 630 to 710 TFLOP/s at 4,096 tokens (a ceiling of 810): 150 to 180,
// bf16; at 64 tokens 12 to 137, a half to a fifth of the library's speed (bench/cuda/linear_bench.cpp).
#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/plain_product.cuh"

namespace quire::cuda {
namespace {

// 16-bit types: 4 warps, each 32 tokens × 32 rows of the weight; k in steps of 64, copied kStages - 1 ahead.
constexpr int kTile = 64;      // tokens, rows of the weight, and k
constexpr int kThreads = 128;  // 2 × 2 warps
constexpr int kStages = 3;     // 48 KiB
constexpr int kChunk = 8;      // elements of 16 bytes
constexpr int kWarpTile = 32;  // tokens and rows of the weight

// Rows of 8 chunks, whose place is turned by the row: 8 rows of one chunk lie in different banks.
template <typename T>
struct Tile {
  T values[kTile * kTile];

  __device__ T* chunk(int row, int index) { return values + row * kTile + (index ^ (row % kChunk)) * kChunk; }
};

template <typename T>
struct Stage {
  Tile<T> x;
  Tile<T> weight;
};

// Copies rows [row, row + kTile) and columns [column, column + kTile) of a matrix, zeros outside of it.
template <typename T, bool kVectors>
__device__ void load_tile(Tile<T>& tile, const T* matrix, std::int64_t stride, int num_rows, int num_columns,
                          int row, int column) {
#pragma unroll
  for (int i = threadIdx.x; i < kTile * kTile / kChunk; i += kThreads) {
    const int r = i / kChunk;
    const int c = column + i % kChunk * kChunk;
    T* to = tile.chunk(r, i % kChunk);
    const T* from = matrix + (row + r) * stride + c;
    const bool inside = row + r < num_rows && c < num_columns;
    if constexpr (kVectors) {
      copy_async_16(to, inside ? from : matrix, inside);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) to[j] = inside && c + j < num_columns ? from[j] : static_cast<T>(0.0F);
    }
  }
}

// sums of this warp += the stage's products.
template <typename T>
__device__ void multiply_stage(float (&sums)[2][4][4], Stage<T>& stage, int token, int row) {
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    std::uint32_t a[2][4];
    std::uint32_t b[2][4];  // [16 rows of the weight]: both halves of k for the first 8, then for the others
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(a[i], stage.x.chunk(token + i * 16 + lane() % 16, step * 2 + lane() / 16));
      load_matrices(
          b[i], stage.weight.chunk(row + i * 16 + lane() / 16 * 8 + lane() % 8, step * 2 + lane() / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        multiply_add<T>(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <typename Out>
__device__ void store_sums(const LinearArgs& args, const float (&sums)[2][4][4], int token, int row) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        store_sum<Out>(args, token + i * 16 + part / 2 * 8 + lane() / 4,
                       row + j * 8 + lane() % 4 * 2 + part % 2, sums[i][j][part]);
      }
    }
  }
}

template <typename T, typename Out, bool kVectors>
__global__ __launch_bounds__(kThreads) void tensor_core_kernel(LinearArgs args) {
  __shared__ alignas(128) Stage<T> stages[kStages];
  admit_next_kernel();
  wait_for_kernels();
  const int first_row = blockIdx.x * kTile;
  const int first_token = blockIdx.y * kTile;
  const int num_steps = (args.k + kTile - 1) / kTile;
  const auto load = [&](int step) {
    if (step < num_steps) {
      Stage<T>& stage = stages[step % kStages];
      load_tile<T, kVectors>(stage.x, static_cast<const T*>(args.x), args.x_stride, args.tokens, args.k,
                             first_token, step * kTile);
      load_tile<T, kVectors>(stage.weight, static_cast<const T*>(args.weight), args.k, args.n, args.k,
                             first_row, step * kTile);
    }
    commit_copies();
  };
  for (int step = 0; step < kStages - 1; ++step) load(step);

  const int token = warp() / 2 * kWarpTile;
  const int row = warp() % 2 * kWarpTile;
  float sums[2][4][4] = {};
  for (int step = 0; step < num_steps; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage is complete, and the one before it has been read
    load(step + kStages - 1);
    multiply_stage(sums, stages[step % kStages], token, row);
  }
  store_sums<Out>(args, sums, first_token + token, first_row + row);
}

__global__ __launch_bounds__(kPlainThreads) void plain_kernel(LinearArgs args) {
  __shared__ PlainTile<float> tile;
  admit_next_kernel();
  wait_for_kernels();
  const PlainPlace at;
  float sums[4][4] = {};
  for (int begin = 0; begin < args.k; begin += kPlainStep) {
    load_plain<float>(tile.x, args.x, args.x_stride, at.first_token, args.tokens, begin, args.k);
    load_plain<float>(tile.weight, args.weight, args.k, at.first_row, args.n, begin, args.k);
    __syncthreads();
    tile.multiply(sums, at);
    __syncthreads();
  }
  store_plain<float>(args, sums, at);
}

constexpr int kBiasThreads = 256;

template <typename Out>
__global__ __launch_bounds__(kBiasThreads) void add_bias_kernel(Out* out, std::int64_t stride,
                                                                const float* bias, int n) {
  admit_next_kernel();
  wait_for_kernels();
  const int o = blockIdx.y * kBiasThreads + threadIdx.x;
  if (o >= n) return;
  Out& value = out[blockIdx.x * stride + o];
  value = static_cast<Out>(static_cast<float>(value) + bias[o]);
}

}  // namespace

void fixed_order_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const Tensor& weight, const Tensor& bias) {
  const LinearArgs args(out, x, weight, bias);
  if (args.tokens == 0 || args.n == 0) return;
  const dim3 grid(ceil_div(args.n, kTile), ceil_div(args.tokens, kTile));
  if (weight.dtype() == DType::kF32) {
    launch(context, "fixed_order_matmul", plain_kernel, plain_grid(args), kPlainThreads, 0, args);
    return;
  }
  const bool vectors = has_vector_rows(x) && has_vector_rows(weight);
  dispatch_linear(weight.dtype(), out.dtype(), [&]<typename T, typename Out>() {
    launch(context, "fixed_order_matmul",
           vectors ? tensor_core_kernel<T, Out, true> : tensor_core_kernel<T, Out, false>, grid, kThreads, 0,
           args);
  });
}

void add_bias(const LaunchContext& context, const Tensor& out, const Tensor& bias) {
  const auto n = static_cast<int>(out.dim(1));
  if (n == 0 || out.dim(0) == 0) return;
  const dim3 grid(out.dim(0), ceil_div(n, kBiasThreads));
  const auto* values = bias.data_as<const float>();
  dispatch_out(out.dtype(), [&]<typename Out>() {
    launch(context, "add_bias", add_bias_kernel<Out>, grid, kBiasThreads, 0, out.data_as<Out>(),
           out.stride(0), values, n);
  });
}

}  // namespace quire::cuda
