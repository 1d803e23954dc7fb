// Matrices of codes of 8 bits: x rounded to codes, a product in a fixed order of summation, what follows a
// library's product, and rows of an embedding.
//
// Rounding must read x and write a byte for each of its elements; a block of threads takes a token, and reads
// it twice where its scale is the token's: the second time from L2.
//
// The product computes 64 tokens × 64 rows of the weight a block, k in steps of 16, by plain multiply-adds of
// code values in float32 or int32: the tile is the same whatever the number of tokens, k is never split, and
// a token's sums see no other token. It is the path for float32, for who asks for one order and for shapes
// that the library does not take, and for nothing that must be fast.
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/w8a8.cuh"

namespace quire::cuda {
namespace {

struct RoundArgs {
  const void* x;
  std::int64_t x_stride;
  std::uint8_t* codes;
  float* scales;
  W8a8Matrix matrix;
};

template <typename Codes, typename T, bool kVectors>
__global__ __launch_bounds__(kRoundThreads) void round_kernel(const __grid_constant__ RoundArgs args) {
  admit_next_kernel();
  wait_for_kernels();
  const std::int64_t token = blockIdx.x;
  std::uint8_t* codes = args.codes + token * args.matrix.stride;
  round_row<Codes, kVectors>(
      static_cast<const T*>(args.x) + token * args.x_stride, args.matrix, static_cast<int>(threadIdx.x),
      args.scales + token, static_cast<int>(gridDim.x),
      [&](int column, uint2 eight) { *reinterpret_cast<uint2*>(codes + column) = eight; });
}

constexpr int kTile = 64;  // tokens, rows of the weight
constexpr int kStep = 16;  // along k; of a block of columns always some whole ones
constexpr int kProductThreads = 256;

struct ProductArgs {
  ProductArgs(const Tensor& out_tensor, const RoundedInput& input, const W8a8Matrix& weight,
              const Tensor& bias_tensor)
      : x(input.codes.data_as<const std::uint8_t>()),
        x_scales(input.scales.data_as<const float>()),
        bias(bias_tensor.data_as<const float>()),
        out(out_tensor.data()),
        out_stride(out_tensor.stride(0)),
        tokens(static_cast<int>(out_tensor.dim(0))),
        matrix(weight) {}

  const std::uint8_t* x;
  const float* x_scales;
  const float* bias;  // or null
  void* out;
  std::int64_t out_stride;
  int tokens;
  W8a8Matrix matrix;
};

// Four neighbours of a row from column on, or zeros.
template <typename Codes, typename Value>
__device__ inline void load_four(const std::uint8_t* codes, int row, int num_rows, int column, int stride,
                                 Value (&values)[4]) {
  std::uint32_t word = 0;
  if (row < num_rows)
    word = *reinterpret_cast<const std::uint32_t*>(codes + std::int64_t{row} * stride + column);
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = Codes::value(static_cast<std::uint8_t>(word >> (8 * i)));
}

template <typename Codes, typename Out>
__global__ __launch_bounds__(kProductThreads) void w8a8_fixed_order_kernel(
    const __grid_constant__ ProductArgs args) {
  using Sum = typename Codes::Sum;
  __shared__ Sum x_tile[kStep][kTile + 1];  // odd, so that the transposing stores spread over the banks
  __shared__ Sum weight_tile[kStep][kTile + 1];
  admit_next_kernel();
  wait_for_kernels();
  const W8a8Matrix& matrix = args.matrix;
  const int first_row = static_cast<int>(blockIdx.x) * kTile;
  const int first_token = static_cast<int>(blockIdx.y) * kTile;
  const int token = static_cast<int>(threadIdx.x) / 16;
  const int row = static_cast<int>(threadIdx.x) % 16;
  float totals[4][4] = {};
  Sum sums[4][4] = {};
  for (int begin = 0; begin < matrix.stride; begin += kStep) {
    const int r = static_cast<int>(threadIdx.x) / 4;
    const int c = static_cast<int>(threadIdx.x) % 4 * 4;
    Sum x[4], weight[4];
    load_four<Codes>(args.x, first_token + r, args.tokens, begin + c, matrix.stride, x);
    load_four<Codes>(matrix.codes, first_row + r, matrix.rows, begin + c, matrix.stride, weight);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x_tile[c + i][r] = x[i];
      weight_tile[c + i][r] = weight[i];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += x_tile[k][token + i * 16] * weight_tile[k][row + j * 16];
      }
    }
    __syncthreads();
    const int end = begin + kStep;
    if (end % matrix.block_cols != 0 && end < matrix.stride) continue;
    const int block = begin / matrix.block_cols;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = min(first_token + token + i * 16, args.tokens - 1);
        const int o = min(first_row + row + j * 16, matrix.rows - 1);
        const float row_scale =
            matrix.scales[std::int64_t{o / matrix.block_rows} * matrix.scale_stride + block];
        totals[i][j] = scaled_sum(static_cast<float>(sums[i][j]), row_scale,
                                  args.x_scales[std::int64_t{block} * args.tokens + t], totals[i][j]);
        sums[i][j] = 0;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int t = first_token + token + i * 16;
      const int o = first_row + row + j * 16;
      if (t >= args.tokens || o >= matrix.rows) continue;
      const float value = args.bias == nullptr ? totals[i][j] : totals[i][j] + args.bias[o];
      static_cast<Out*>(args.out)[t * args.out_stride + o] = round_to<Out>(value);
    }
  }
}

constexpr int kRowThreads = 256;

template <typename Out>
__global__ __launch_bounds__(kRowThreads) void scale_sums_kernel(const __grid_constant__ ProductArgs args,
                                                                 const int* sums) {
  admit_next_kernel();
  wait_for_kernels();
  const int o = static_cast<int>(blockIdx.x) * kRowThreads + static_cast<int>(threadIdx.x);
  const std::int64_t t = blockIdx.y;
  if (o >= args.matrix.rows) return;
  const float value = scaled_sum(static_cast<float>(sums[t * args.matrix.rows + o]), args.matrix.scales[o],
                                 args.x_scales[t], args.bias == nullptr ? 0.0F : args.bias[o]);
  static_cast<Out*>(args.out)[t * args.out_stride + o] = round_to<Out>(value);
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

template <typename F>
void dispatch_out(DType dtype, F&& f) {
  dtype == DType::kF32   ? f.template operator()<float>()
  : dtype == DType::kF16 ? f.template operator()<__half>()
                         : f.template operator()<__nv_bfloat16>();
}

}  // namespace

void round_input(const LaunchContext& context, const RoundedInput& out, const Tensor& x,
                 const W8a8Matrix& matrix) {
  const RoundArgs args{x.data(), x.stride(0), out.codes.data_as<std::uint8_t>(), out.scales.data_as<float>(),
                       matrix};
  const auto run = [&]<typename T>() {
    dispatch_w8a8(matrix, [&]<typename Codes>() {
      launch(context, "round_input",
             splits_into(x, kPiece) ? round_kernel<Codes, T, true> : round_kernel<Codes, T, false>,
             static_cast<unsigned>(x.dim(0)), kRoundThreads, 0, args);
    });
  };
  x.dtype() == DType::kF32   ? run.template operator()<float>()
  : x.dtype() == DType::kF16 ? run.template operator()<Float16>()
                             : run.template operator()<BFloat16>();
}

void w8a8_fixed_order_matmul(const LaunchContext& context, const Tensor& out, const RoundedInput& x,
                             const W8a8Matrix& matrix, const Tensor& bias) {
  const ProductArgs args(out, x, matrix, bias);
  const dim3 grid(ceil_div(matrix.rows, kTile), ceil_div(args.tokens, kTile));
  dispatch_w8a8(matrix, [&]<typename Codes>() {
    dispatch_out(out.dtype(), [&]<typename Out>() {
      launch(context, "w8a8_fixed_order_matmul", w8a8_fixed_order_kernel<Codes, Out>, grid, kProductThreads,
             0, args);
    });
  });
}

void scale_sums(const LaunchContext& context, const Tensor& out, const Tensor& sums, const RoundedInput& x,
                const W8a8Matrix& matrix, const Tensor& bias) {
  const ProductArgs args(out, x, matrix, bias);
  const dim3 grid(ceil_div(matrix.rows, kRowThreads), static_cast<unsigned>(args.tokens));
  dispatch_out(out.dtype(), [&]<typename Out>() {
    launch(context, "scale_sums", scale_sums_kernel<Out>, grid, kRowThreads, 0, args,
           sums.data_as<const int>());
  });
}

void w8a8_embedding(const LaunchContext& context, const Tensor& out, const W8a8Matrix& matrix,
                    const Tensor& ids, std::int64_t first_row, float scale) {
  if (out.numel() == 0) return;
  const dim3 grid(static_cast<unsigned>(ids.dim(0)), ceil_div(matrix.cols, kRowThreads));
  dispatch_w8a8(matrix, [&]<typename Codes>() {
    launch(context, "w8a8_embedding", w8a8_embedding_kernel<Codes>, grid, kRowThreads, 0, matrix,
           out.data_as<float>(), out.stride(0), ids.data_as<const int>(), first_row, scale);
  });
}

}  // namespace quire::cuda
