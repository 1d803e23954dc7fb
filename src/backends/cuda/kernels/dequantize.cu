// Quantised matrices by the value, each computed in float32 as scale * value(code) - minimum: a product in a
// fixed order of summation (plain_product.cuh), for float32 and for who asks for one order; rows rounded to
// 16 bits for a library's product; and rows of an embedding.
//
// Rows for the library: must read the tiles and write 2 bytes a weight. On an H200 24576 × 4096 takes some
// 136 us (the product of 256 tokens with it less the product without), 1.8 TB/s.
#include "backends/cuda/kernels/plain_product.cuh"
#include "backends/cuda/kernels/quantized_values.cuh"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

using Layout = QuantizedLayout;

static_assert(kPlainStep == Layout::kStepColumns);

template <typename T, typename Out>
__global__ __launch_bounds__(kPlainThreads) void fixed_order_kernel(
    const __grid_constant__ LinearArgs args, const __grid_constant__ QuantizedMatrix matrix) {
  __shared__ PlainTile<float> tile;
  admit_next_kernel();
  wait_for_kernels();
  const PlainPlace at;
  float sums[4][4] = {};
  for (int begin = 0; begin < args.k; begin += kPlainStep) {
    load_plain<T>(tile.x, args.x, args.x_stride, at.first_token, args.tokens, begin, args.k);
    const int r = static_cast<int>(threadIdx.x) / 4;
    const int c = static_cast<int>(threadIdx.x) % 4 * 4;
    float4 values = make_float4(0, 0, 0, 0);
    if (at.first_row + r < args.n) values = four_values(matrix, at.first_row + r, begin + c);
    tile.weight[c][r] = values.x;
    tile.weight[c + 1][r] = values.y;
    tile.weight[c + 2][r] = values.z;
    tile.weight[c + 3][r] = values.w;
    __syncthreads();
    tile.multiply(sums, at);
    __syncthreads();
  }
  store_plain<Out>(args, sums, at);
}

// A warp turns a tile into 16 rows of 128 columns.
constexpr int kRowThreads = 128;

template <typename T>
__global__ __launch_bounds__(kRowThreads) void dequantize_kernel(
    const __grid_constant__ QuantizedMatrix matrix, T* out, std::int64_t first_row, std::int64_t num_rows) {
  __shared__ float code_values[256];
  admit_next_kernel();
  const Layout& layout = matrix.layout;
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kRowThreads)
    code_values[i] = matrix.values->code[i];
  __syncthreads();
  wait_for_kernels();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int col_tile = static_cast<int>(blockIdx.y) * (kRowThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (col_tile * Layout::kTileColumns >= layout.cols) return;
  const std::int64_t row = first_row + std::int64_t{blockIdx.x} * Layout::kTileRows + lane / 4;
  const std::uint8_t* tile = tile_of(matrix, row, col_tile * Layout::kTileColumns);
  const bool in_pairs = layout.cols % 4 == 0;
  for (int step = 0; step < Layout::kSteps; ++step) {
    const StepCodes codes(layout, tile, step, lane);
    const int column = col_tile * Layout::kTileColumns + step * Layout::kStepColumns + lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = row + half * 8 - first_row;
      if (at >= num_rows || column >= layout.cols) continue;
      const RowScale scale(matrix, tile, row + half * 8, step);
      Vec<T, 4> values;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values.values[i] =
            narrow<T>(fmaf(scale.scale, code_values[codes.code(layout, half, i)], -scale.minimum));
      T* to = out + at * layout.cols + column;
      if (in_pairs) {
        store_vec(to, values);
      } else {
        for (int i = 0; i < min(4, layout.cols - column); ++i) to[i] = values.values[i];
      }
    }
  }
}

__global__ __launch_bounds__(kRowThreads) void quantized_embedding_kernel(
    const __grid_constant__ QuantizedMatrix matrix, float* out, const int* ids, std::int64_t first_row,
    std::int64_t out_stride, float scale) {
  admit_next_kernel();
  const int column = (static_cast<int>(blockIdx.y) * kRowThreads + static_cast<int>(threadIdx.x)) * 4;
  if (column >= matrix.layout.cols) return;
  wait_for_kernels();
  const std::int64_t row = ids[blockIdx.x] - first_row;
  float4 values = make_float4(0, 0, 0, 0);
  if (row >= 0 && row < matrix.layout.rows) values = four_values(matrix, row, column);
  const float all[4] = {values.x, values.y, values.z, values.w};
  float* to = out + blockIdx.x * out_stride + column;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < matrix.layout.cols) to[i] = scale * all[i];
}

}  // namespace

void quantized_fixed_order_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                                  const QuantizedMatrix& matrix, const Tensor& bias) {
  const LinearArgs args(out, x, matrix.tile_tensor(), bias);
  if (args.tokens == 0 || args.n == 0) return;
  const auto run = [&]<typename T, typename Out>() {
    launch(context, "quantized_fixed_order_matmul", fixed_order_kernel<T, Out>, plain_grid(args),
           kPlainThreads, 0, args, matrix);
  };
  if (x.dtype() == DType::kF32) return run.template operator()<float, float>();
  dispatch_linear(x.dtype(), out.dtype(), run);
}

void dequantize_rows(const LaunchContext& context, const Tensor& out, const QuantizedMatrix& matrix,
                     std::int64_t row) {
  if (out.numel() == 0) return;
  const dim3 grid(ceil_div(out.dim(0), Layout::kTileRows),
                  ceil_div(matrix.layout.col_tiles(), kRowThreads / 32));
  const auto run = [&]<typename T>() {
    launch(context, "dequantize_rows", dequantize_kernel<T>, grid, kRowThreads, 0, matrix, out.data_as<T>(),
           row, out.dim(0));
  };
  out.dtype() == DType::kBF16 ? run.template operator()<BFloat16>() : run.template operator()<Float16>();
}

void embedding(const LaunchContext& context, const Tensor& out, const QuantizedMatrix& matrix,
               const Tensor& ids, std::int64_t first_row, float scale) {
  if (out.numel() == 0) return;
  const dim3 grid(ids.dim(0), ceil_div(matrix.layout.cols, kRowThreads * 4));
  launch(context, "quantized_embedding", quantized_embedding_kernel, grid, kRowThreads, 0, matrix,
         out.data_as<float>(), ids.data_as<const int>(), first_row, out.stride(0), scale);
}

}  // namespace quire::cuda
