// RMS norm, LayerNorm or a copy of rows, alone or after adding the update to the residual stream, which is
// float32: one block of threads a row, the row in registers, read once. Rows are dense, strides between them
// free. Bytes a row of n: 4n read and n elements written; with the addition also n elements read and 4n bytes
// written (Qwen3-8B, bf16: 48 KiB). The order of the sum depends on n alone, not on the other rows. Measured
// on an H200, bench/cuda/elementwise_bench, with the addition, n = 1024 / 4096: 1.0 / 1.5 us for one row, 1.9
// / 3.5 us for 256, 49 / 194 us for 16384 (4.1 TB/s, 96 % of what a copy reaches).
#include <algorithm>
#include <type_traits>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/norm.cuh"

namespace quire::cuda {
namespace {

// The residual at `column` as it stays, added to and written back where there is an update.
template <int kWidth, typename In, typename Out, typename Row>
__device__ Vec<float, kWidth> updated(const NormArgs<In, Out, Row>& args, Row* residual, const In* x,
                                      int column) {
  auto values = load_wide<kWidth>(residual + column);
  if constexpr (std::is_same_v<Row, float>) {
    if (x != nullptr) {
      const auto update = load_wide<kWidth>(x + column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        values.values[i] = args.sum_scale * (values.values[i] + args.scale * update.values[i]);
      store_vec(residual + column, values);
    }
  }
  return values;
}

// A thread keeps kHeld vectors in registers; what a row has beyond that is read again (over 16384 columns, or
// 4096 where rows are not aligned).
template <int kWidth, int kHeld, NormForm kForm, typename In, typename Out, typename Row>
__global__ void __launch_bounds__(kMaxNormThreads) norm_kernel(NormArgs<In, Out, Row> args) {
  admit_next_kernel();
  const std::int64_t row = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int rest = first + kHeld * step;
  Row* residual = args.residual[row];
  const In* x = args.x.data == nullptr ? nullptr : args.x[row];
  Out* out = args.out[row];
  const auto columns = static_cast<float>(args.columns);

  Vec<float, kWidth> weight[kHeld];
  Vec<float, kWidth> held[kHeld];
  const auto for_held = [&](auto&& f) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v)
      if (first + v * step < args.columns) f(v, first + v * step);
  };
  if constexpr (kForm != NormForm::kCopy)  // weights are there before any kernel
    for_held([&](int v, int c) { weight[v] = load_vec<kWidth>(args.weight + c); });
  wait_for_kernels();
  for_held([&](int v, int c) { held[v] = updated<kWidth>(args, residual, x, c); });
  Normed<kForm> normed{};
  float sum = 0;
  if constexpr (kForm == NormForm::kLayer) {
    for_held([&](int v, int) { sum += sum_of(held[v]); });
    for (int c = rest; c < args.columns; c += step) sum += sum_of(updated<kWidth>(args, residual, x, c));
    normed.center = block_sum(sum) / columns;
    __syncthreads();
    sum = 0;
    for_held([&](int v, int) { sum += squares(held[v], normed.center); });
    for (int c = rest; c < args.columns; c += step)
      sum += squares(load_wide<kWidth>(residual + c), normed.center);
  } else if constexpr (kForm == NormForm::kRms) {
    for_held([&](int v, int) { sum += squares(held[v], 0); });
    for (int c = rest; c < args.columns; c += step) sum += squares(updated<kWidth>(args, residual, x, c), 0);
  } else {
    for (int c = rest; c < args.columns; c += step) updated<kWidth>(args, residual, x, c);
  }
  if constexpr (kForm != NormForm::kCopy) normed.inverse = rsqrtf(block_sum(sum) / columns + args.eps);
  for_held(
      [&](int v, int c) { store_vec(out + c, normed.template of<Out>(held[v], weight[v], args.bias + c)); });
  for (int c = rest; c < args.columns; c += step) {
    Vec<float, kWidth> far;
    if constexpr (kForm != NormForm::kCopy) far = load_vec<kWidth>(args.weight + c);
    store_vec(out + c, normed.template of<Out>(load_wide<kWidth>(residual + c), far, args.bias + c));
  }
}

template <typename In, typename Out, typename Row>
void launch_rows(const LaunchContext& context, const Tensor& out, const Tensor& residual, const Tensor& x,
                 float scale, const NormParams& params) {
  const auto args = norm_args<In, Out, Row>(out, residual, x, scale, params);
  dispatch_width<4>({out, residual, x, params.weight, params.bias}, [&]<int kWidth>() {
    // Few vectors a thread where the row is short: more rows share a multiprocessor.
    const int held = kWidth == 1 || args.columns > 8192 ? 4 : args.columns > 1024 ? 2 : 1;
    const unsigned wanted = ceil_div(ceil_div(args.columns, kWidth), held);
    const unsigned threads = std::min<unsigned>(ceil_div(wanted, 32) * 32, kMaxNormThreads);
    dispatch<1, 2, 4>(held, [&]<int kHeld>() {
      dispatch_form(params, [&]<NormForm kForm>() {
        launch(context, "norm", norm_kernel<kWidth, kHeld, kForm, In, Out, Row>, out.dim(0), threads, 0,
               args);
      });
    });
  });
}

}  // namespace

void norm(const LaunchContext& context, const Tensor& out, const Tensor& x, const NormParams& params) {
  if (out.numel() == 0) return;
  dispatch_float(out.dtype(), [&]<typename Out>() {
    x.dtype() == DType::kF32 ? launch_rows<float, Out, float>(context, out, x, Tensor(), 0, params)
                             : launch_rows<Out, Out, Out>(context, out, x, Tensor(), 0, params);
  });
}

void add_norm(const LaunchContext& context, const Tensor& out, const Tensor& residual, const Tensor& x,
              float scale, const NormParams& params) {
  if (out.numel() == 0) return;
  dispatch_float(x.dtype(), [&]<typename In>() {
    dispatch_float(out.dtype(), [&]<typename Out>() {
      launch_rows<In, Out, float>(context, out, residual, x, scale, params);
    });
  });
}

}  // namespace quire::cuda
