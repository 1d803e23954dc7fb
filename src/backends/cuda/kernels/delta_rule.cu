// The gated delta rule token by token, and the norm behind it. A block of threads holds 32 columns of a value
// head's state in registers over the tokens of a span: a thread four of every 16th row (8, and one, where
// rows are no vectors). With S before a token, u = k^T S and w = q^T S are summed over rows in one order,
// with q . q, k . k and q . k; then delta = beta (v - g u), the output is g w + (q . k) delta, and S becomes
// g S + k delta^T. So each element is the same whatever the batch, and however tokens are spread over steps.
// Bytes: of each sequence and value head the state read and written once, 128 KiB for 128 x 128; of a token
// q, k and v of a head once for each block of columns. Decoding of many sequences is predicted at 80 % of the
// bandwidth: 16 KiB a block on their way, four blocks on an SM. A span is bound by the latency of a
// token's sums, predicted at half a microsecond a token: the blocks of all heads run side by side. Long spans
// are for chunked_delta_rule, where it may take them.
#include "backends/cuda/kernels/delta_rule.cuh"
#include "backends/cuda/kernels/elementwise.h"
#include "ops/ops.h"

namespace quire::cuda {
namespace {

template <int kRows, int kWidth, typename T>
__device__ DeltaToken<kRows, kWidth> load_token(const DeltaArgs<T>& args, const DeltaPlace& place,
                                                std::int64_t t) {
  DeltaToken<kRows, kWidth> token;
  const int keys = args.num_key_heads * args.key_dim;
  const T* qkv = args.qkv[t];
  const T* query = qkv + place.head / (args.num_value_heads / args.num_key_heads) * args.key_dim;
  const T* value = qkv + 2 * keys + place.head * args.value_dim;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = place.row + i * kRowStep;
    const bool there = row < args.key_dim;
    token.q[i] = there ? widen(query[row]) : 0;
    token.k[i] = there ? widen(query[keys + row]) : 0;
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    token.v[j] = place.column < args.value_dim ? widen(value[place.column + j]) : 0;
  const T* rates = args.rates[t] + place.head;
  token.a = widen(rates[args.num_value_heads]);
  token.b = widen(*rates);
  return token;
}

// kRows, kWidth: of a thread. Rows of a state are whole vectors of kWidth.
template <int kRows, int kWidth, typename T>
__global__ void __launch_bounds__(32 * kDeltaWarps, kRows > 8 ? 2 : 4)
    delta_rule_kernel(const DeltaArgs<T> args, int blocks) {
  __shared__ DeltaSums<kWidth> sums_of[2][kDeltaWarps][kColumnLanes];
  admit_next_kernel();
  const auto block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const DeltaPlace place = {block / blocks, thread / kColumnLanes,
                            (block % blocks * kColumnLanes + thread % kColumnLanes) * kWidth};
  wait_for_kernels();
  const int from = args.from[blockIdx.y], to = args.to[blockIdx.y];
  const int begin = args.starts[blockIdx.y], end = args.starts[blockIdx.y + 1];
  if (to < 0 || end - begin > args.longest) return;
  Vec<float, kWidth> state[kRows] = {};
  const auto load = [&](int i, std::int64_t at) { state[i] = load_vec<kWidth>(args.state[from] + at); };
  if (from >= 0) for_state<kRows>(args, place, load);
  const DeltaHead head(args.a_log[place.head], args.dt_bias[place.head], args.key_dim);
  DeltaToken<kRows, kWidth> token;
  if (begin < end) token = load_token<kRows, kWidth>(args, place, begin);
  for (int t = begin; t < end; ++t) {
    const DeltaSums<kWidth> sums = sum_rows(state, token, sums_of[t % 2]);
    DeltaToken<kRows, kWidth> next;
    if (t + 1 < end) next = load_token<kRows, kWidth>(args, place, t + 1);
    const Vec<float, kWidth> results = take_turn(state, token, sums, head);
    if (place.row == 0 && place.column < args.value_dim)
      store_vec(args.out[t] + place.head * args.value_dim + place.column, results);
    token = next;
  }
  for_state<kRows>(args, place, [&](int i, std::int64_t at) { store_vec(args.state[to] + at, state[i]); });
}

// A warp a head.
template <typename T>
__global__ void gated_norm_kernel(RowsOf<T> out, RowsOf<const float> x, RowsOf<const T> gate,
                                  const float* weight, int heads, int n, float eps) {
  admit_next_kernel();
  const int head = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (head >= heads) return;
  const std::int64_t row = blockIdx.x, first = std::int64_t{head} * n;
  const float* values = x[row] + first;
  wait_for_kernels();
  const float inverse = inverse_rms(values, n, eps);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32)
    out[row][first + i] = gated_normed<T>(values[i], inverse, weight[i], widen(gate[row][first + i]));
}

}  // namespace

void gated_delta_rule(const LaunchContext& context, const Tensor& out, const DeltaRuleInput& input,
                      const Tensor& state, const StateBatch& batch) {
  const std::int64_t heads = state.dim(1), width = state.dim(3);
  if (batch.num_sequences == 0 || heads * width == 0) return;
  const bool in_chunks = batch.num_chunks > 0 && input.workspace.defined() && splits_into(input.qkv, 8);
  dispatch_float(input.qkv.dtype(), [&]<typename T>() {
    const DeltaArgs<T> args{{input, state, batch},
                            out,
                            input.qkv,
                            input.rates,
                            batch.query_starts.data_as<const int>(),
                            in_chunks ? kLongSpan - 1 : batch.num_tokens};
    if constexpr (!std::is_same_v<T, float>)
      if (in_chunks) chunked_delta_rule(context, args, input.workspace, batch);
    dispatch_width<4>({out, state}, [&]<int kWidth>() {
      const unsigned blocks = ceil_div(width, kColumnLanes * kWidth);
      static_assert(kMaxDeltaKeyDim <= 16 * kRowStep);  // rows of a thread: the last has room for any key
      dispatch_up_to<4, 8, 16>(ceil_div(state.dim(2), kRowStep), [&]<int kRows>() {
        launch(context, "gated_delta_rule", delta_rule_kernel<kRows, kWidth, T>,
               dim3(blocks * heads, batch.num_sequences), 32 * kDeltaWarps, 0, args, blocks);
      });
    });
  });
}

void gated_norm(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& gate,
                const NormParams& params) {
  constexpr unsigned kHeadsOfBlock = 4;
  if (x.numel() == 0) return;
  const std::int64_t n = params.weight.dim(0), heads = x.dim(1) / n;
  dispatch_float(out.dtype(), [&]<typename T>() {
    launch(context, "gated_norm", gated_norm_kernel<T>, dim3(x.dim(0), ceil_div(heads, kHeadsOfBlock)),
           dim3(32, kHeadsOfBlock), 0, out, x, gate, params.weight.data_as<const float>(), heads, n,
           params.eps);
  });
}

}  // namespace quire::cuda
