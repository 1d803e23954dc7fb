// Depthwise causal convolution over states of few tokens. A thread takes some channels of a span of one
// sequence and walks along its tokens, the inputs before them in registers; so each element is one sum in one
// order, whatever the batch. Bytes: x read once and out written once, and of each sequence its state read and
// written; decoding is bound by the launch.
#include <algorithm>

#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

namespace quire::cuda {
namespace {

constexpr int kSpan = 32;  // tokens; not fewer than a state has
constexpr int kMaxThreads = 128;

struct ConvArgs {
  RowsOf<const float> weight;
  const float* bias;  // or null
  RowsOf<float> state;
  const int* starts;
  const int* from;
  const int* to;
  int num_sequences, channels;
};

// Spans are numbered through: those of sequence s from starts[s] / kSpan + s on, which leaves some numbers
// without a span. Every thread of the block must call this.
__device__ int sequence_of(const ConvArgs& args, int span) {
  int before = 0;  // sequences that begin at this span or before it
  for (int first = 0; first < args.num_sequences; first += static_cast<int>(blockDim.x)) {
    const int s = first + static_cast<int>(threadIdx.x);
    before += __syncthreads_count(s < args.num_sequences && args.starts[s] / kSpan + s <= span);
  }
  return before - 1;
}

template <int kTokens, int kWidth, typename T, typename Terms>
__global__ void __launch_bounds__(kMaxThreads)
    causal_conv_kernel(const RowsOf<T> out, const RowsOf<const T> x, const ConvArgs args, Terms terms) {
  constexpr int kHistory = kTokens - 1;
  admit_next_kernel();
  wait_for_kernels();
  const auto span = static_cast<int>(blockIdx.x);
  const int s = sequence_of(args, span);
  const int channel = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kWidth;
  const int begin = args.starts[s], tokens = args.starts[s + 1] - begin, to = args.to[s];
  const int first = (span - (begin / kSpan + s)) * kSpan;
  if (channel >= args.channels || to < 0 || (first >= tokens && first > 0)) return;
  const int from = args.from[s];
  const T* inputs = x[begin] + channel;
  // Only the thread of the first span reads and writes a state.
  const auto input = [&](int t) {
    Vec<float, kWidth> values{};
    if (t >= 0) {
      const auto raw = load_vec<kWidth>(inputs + t * x.stride);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values.values[i] = widen(raw.values[i]);
    } else if (from >= 0) {
      values = load_vec<kWidth>(args.state[from] + std::int64_t{kHistory + t} * args.channels + channel);
    }
    return values;
  };
  Vec<float, kWidth> weight[kTokens], seen[kTokens], bias{};
  if (args.bias != nullptr) bias = load_vec<kWidth>(args.bias + channel);
#pragma unroll
  for (int k = 0; k < kTokens; ++k) weight[k] = load_vec<kWidth>(args.weight[k] + channel);
#pragma unroll
  for (int k = 0; k < kHistory; ++k) seen[k] = input(first - kHistory + k);
  Vec<float, kWidth> kept[kHistory];  // what the state becomes
#pragma unroll
  for (int k = 0; k < kHistory; ++k)
    if (first == 0) kept[k] = input(tokens - kHistory + k);
  T* results = out[begin] + channel;
  for (int t = first; t < min(first + kSpan, tokens); ++t) {
    seen[kHistory] = input(t);
    Vec<T, kWidth> result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float sum = bias.values[i];
#pragma unroll
      for (int k = 0; k < kTokens; ++k) sum = fmaf(weight[k].values[i], seen[k].values[i], sum);
      result.values[i] = narrow<T>(activated(sum, terms));
    }
    store_vec(results + t * out.stride, result);
#pragma unroll
    for (int k = 0; k < kHistory; ++k) seen[k] = seen[k + 1];
  }
  if (first > 0) return;
#pragma unroll
  for (int k = 0; k < kHistory; ++k)
    store_vec(args.state[to] + std::int64_t{k} * args.channels + channel, kept[k]);
}

}  // namespace

bool causal_conv_supports(const ConvParams& params) {
  return params.weight.dim(0) >= 2 && params.weight.dim(0) <= 4;
}

void causal_conv(const LaunchContext& context, const Tensor& out, const Tensor& x, const ConvParams& params,
                 const Tensor& state, const StateBatch& batch) {
  if (batch.num_sequences == 0 || x.dim(1) == 0) return;
  const ConvArgs args{.weight = params.weight,
                      .bias = params.bias.data_as<const float>(),
                      .state = state,
                      .starts = batch.query_starts.data_as<const int>(),
                      .from = batch.from.data_as<const int>(),
                      .to = batch.to.data_as<const int>(),
                      .num_sequences = batch.num_sequences,
                      .channels = static_cast<int>(x.dim(1))};
  const auto spans = static_cast<unsigned>(batch.num_tokens / kSpan + batch.num_sequences);
  dispatch_float(x.dtype(), [&]<typename T>() {
    dispatch_width<4>({out, x, params.weight, params.bias, state}, [&]<int kWidth>() {
      const unsigned vectors = ceil_div(x.dim(1), kWidth);
      const unsigned threads = std::min<unsigned>((vectors + 31) / 32 * 32, kMaxThreads);
      const auto run = [&]<int kTokens>() {
        dispatch_activation(params.activation, [&](auto terms) {
          launch(context, "causal_conv", causal_conv_kernel<kTokens, kWidth, T, decltype(terms)>,
                 dim3(spans, ceil_div(vectors, threads)), threads, 0, out, x, args, terms);
        });
      };
      require(dispatch<2, 3, 4>(params.weight.dim(0), run), "causal_conv: tokens of the weight");
    });
  });
}

}  // namespace quire::cuda
