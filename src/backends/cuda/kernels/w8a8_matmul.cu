// Matrices of codes of 8 bits: x rounded to codes, a product in a fixed order of summation, what follows a
// library's product, and rows of an embedding.
//
// Rounding must read x and write a byte for each of its elements; a block of threads takes a token, and reads
// it twice where its scale is the token's: the second time from L2.
//
// The product multiplies code values in float32 or int32 (plain_product.cuh). It is the path for float32, for
// who asks for one order and for shapes that the library does not take.
#include "backends/cuda/kernels/plain_product.cuh"
#include "backends/cuda/kernels/w8a8.cuh"

namespace quire::cuda {
namespace {

template <typename Codes, typename T, bool kVectors>
__global__ __launch_bounds__(kRoundThreads) void round_kernel(const __grid_constant__ W8a8Matrix matrix,
                                                              const T* x, std::int64_t x_stride,
                                                              std::uint8_t* codes, float* scales) {
  admit_next_kernel();
  wait_for_kernels();
  const std::int64_t token = blockIdx.x;
  codes += token * matrix.stride;
  round_row<Codes, kVectors>(x + token * x_stride, matrix, static_cast<int>(threadIdx.x), scales + token,
                             static_cast<int>(gridDim.x), [&](int column, uint2 eight) {
                               *reinterpret_cast<uint2*>(codes + column) = eight;
                             });
}

// Four neighbours of a row from column on, or zeros.
template <typename Codes, typename Value>
__device__ inline void load_four(const void* codes, int row, int num_rows, int column, int stride,
                                 Value (&values)[4]) {
  std::uint32_t word = 0;
  if (row < num_rows)
    word = *reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint8_t*>(codes) +
                                                   std::int64_t{row} * stride + column);
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = Codes::value(static_cast<std::uint8_t>(word >> (8 * i)));
}

template <typename Codes, typename Out>
__global__ __launch_bounds__(kPlainThreads) void w8a8_fixed_order_kernel(
    const __grid_constant__ LinearArgs args, const __grid_constant__ W8a8Matrix matrix,
    const float* x_scales) {
  using Sum = typename Codes::Sum;
  __shared__ PlainTile<Sum> tile;
  admit_next_kernel();
  wait_for_kernels();
  const PlainPlace at;
  float totals[4][4] = {};
  Sum sums[4][4] = {};
  for (int begin = 0; begin < args.k; begin += kPlainStep) {  // of a block of columns some whole steps
    const int r = static_cast<int>(threadIdx.x) / 4;
    const int c = static_cast<int>(threadIdx.x) % 4 * 4;
    Sum x[4], weight[4];
    load_four<Codes>(args.x, at.first_token + r, args.tokens, begin + c, args.k, x);
    load_four<Codes>(args.weight, at.first_row + r, args.n, begin + c, args.k, weight);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.x[c + i][r] = x[i];
      tile.weight[c + i][r] = weight[i];
    }
    __syncthreads();
    tile.multiply(sums, at);
    __syncthreads();
    const int end = begin + kPlainStep;
    if (end % matrix.block_cols != 0 && end < args.k) continue;
    const int block = begin / matrix.block_cols;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = min(at.first_token + at.token + i * 16, args.tokens - 1);
        const int o = min(at.first_row + at.row + j * 16, args.n - 1);
        const float row_scale =
            matrix.scales[std::int64_t{o / matrix.block_rows} * matrix.scale_stride + block];
        totals[i][j] = scaled_sum(static_cast<float>(sums[i][j]), row_scale,
                                  x_scales[std::int64_t{block} * args.tokens + t], totals[i][j]);
        sums[i][j] = 0;
      }
    }
  }
  store_plain<Out>(args, totals, at);
}

constexpr int kRowThreads = 256;

template <typename Out>
__global__ __launch_bounds__(kRowThreads) void scale_sums_kernel(const __grid_constant__ LinearArgs args,
                                                                 const __grid_constant__ W8a8Matrix matrix,
                                                                 const float* x_scales, const int* sums) {
  admit_next_kernel();
  wait_for_kernels();
  const int o = static_cast<int>(blockIdx.x) * kRowThreads + static_cast<int>(threadIdx.x);
  const std::int64_t t = blockIdx.y;
  if (o >= matrix.rows) return;
  const float value = scaled_sum(static_cast<float>(sums[t * matrix.rows + o]), matrix.scales[o], x_scales[t],
                                 args.bias == nullptr ? 0.0F : args.bias[o]);
  static_cast<Out*>(args.out)[t * args.out_stride + o] = static_cast<Out>(value);
}

template <typename Codes>
__global__ __launch_bounds__(kRowThreads) void w8a8_embedding_kernel(
    const __grid_constant__ W8a8Matrix matrix, float* out, std::int64_t out_stride, const int* ids,
    std::int64_t first_row, float scale) {
  admit_next_kernel();
  const int column = static_cast<int>(blockIdx.y) * kRowThreads + static_cast<int>(threadIdx.x);
  if (column >= matrix.cols) return;
  wait_for_kernels();
  const std::int64_t row = ids[blockIdx.x] - first_row;
  float value = 0;
  if (row >= 0 && row < matrix.rows) {
    const float row_scale =
        matrix.scales[row / matrix.block_rows * matrix.scale_stride + column / matrix.block_cols];
    value = row_scale * static_cast<float>(Codes::value(matrix.codes[row * matrix.stride + column]));
  }
  out[blockIdx.x * out_stride + column] = scale * value;
}

// Calls f.template operator()<Codes>().
template <typename F>
void dispatch_w8a8(const W8a8Matrix& matrix, F&& f) {
  matrix.is_float() ? f.template operator()<E4m3Codes>() : f.template operator()<Int8Codes>();
}

}  // namespace

void round_input(const LaunchContext& context, const RoundedInput& out, const Tensor& x,
                 const W8a8Matrix& matrix) {
  dispatch_float(x.dtype(), [&]<typename T>() {
    dispatch_w8a8(matrix, [&]<typename Codes>() {
      launch(context, "round_input",
             splits_into(x, kPiece) ? round_kernel<Codes, T, true> : round_kernel<Codes, T, false>, x.dim(0),
             kRoundThreads, 0, matrix, x.data_as<const T>(), x.stride(0), out.codes.data_as<std::uint8_t>(),
             out.scales.data_as<float>());
    });
  });
}

void w8a8_fixed_order_matmul(const LaunchContext& context, const Tensor& out, const RoundedInput& x,
                             const W8a8Matrix& matrix, const Tensor& bias) {
  const LinearArgs args(out, x.codes, matrix.code_tensor(DType::kU8), bias);
  dispatch_w8a8(matrix, [&]<typename Codes>() {
    dispatch_out(out.dtype(), [&]<typename Out>() {
      launch(context, "w8a8_fixed_order_matmul", w8a8_fixed_order_kernel<Codes, Out>, plain_grid(args),
             kPlainThreads, 0, args, matrix, x.scales.data_as<const float>());
    });
  });
}

void scale_sums(const LaunchContext& context, const Tensor& out, const Tensor& sums, const RoundedInput& x,
                const W8a8Matrix& matrix, const Tensor& bias) {
  const LinearArgs args(out, x.codes, matrix.code_tensor(DType::kU8), bias);
  const dim3 grid(ceil_div(matrix.rows, kRowThreads), args.tokens);
  dispatch_out(out.dtype(), [&]<typename Out>() {
    launch(context, "scale_sums", scale_sums_kernel<Out>, grid, kRowThreads, 0, args, matrix,
           x.scales.data_as<const float>(), sums.data_as<const int>());
  });
}

void embedding(const LaunchContext& context, const Tensor& out, const W8a8Matrix& matrix, const Tensor& ids,
               std::int64_t first_row, float scale) {
  if (out.numel() == 0) return;
  const dim3 grid(ids.dim(0), ceil_div(matrix.cols, kRowThreads));
  dispatch_w8a8(matrix, [&]<typename Codes>() {
    launch(context, "w8a8_embedding", w8a8_embedding_kernel<Codes>, grid, kRowThreads, 0, matrix,
           out.data_as<float>(), out.stride(0), ids.data_as<const int>(), first_row, scale);
  });
}

}  // namespace quire::cuda
