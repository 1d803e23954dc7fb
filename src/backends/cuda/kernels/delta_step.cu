// A step of one token a sequence through what Gated DeltaNet does between its products, in one launch: the
// convolution, the gated delta rule and the gated norm, bit for bit as causal_conv.cu and delta_rule.cu have
// them. A cluster of blocks takes a key head of a sequence with the value heads that share it, a block of it
// 32 columns of a value head's state. Each block convolves the queries and keys for itself; the heads'
// results meet in shared memory for the norm. All blocks have read the inputs that the convolution keeps when
// the first of them writes them in place.
//
// States, weights and kept inputs are no kernel's of the step: they are read before the product in front has
// ended. Bytes: each head's state read and written once, 128 KiB for 128 x 128; beside it each block reads 8
// KiB of the convolution, mostly from the L2 cache. One sequence is bound by latency: the token's inputs, two
// barriers of a block and one of a cluster, predicted at 2 us, where three launches take 6 to 8.
#include "backends/cuda/kernels/delta_step.cuh"
#include "backends/cuda/kernels/hopper.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 32 * kDeltaWarps;
constexpr int kMaxKeyDim = kThreads;  // a thread convolves a channel of a query, one of a key
constexpr int kMaxCluster = 8;        // blocks that any device with clusters takes

// Longer than 60 lines: what is read before which wait is one whole.
template <typename T>
__global__ void __launch_bounds__(kThreads, 5) delta_step_kernel(const StepArgs<T> args, int cluster) {
#if __CUDA_ARCH__ >= 900
  constexpr int kRows = kMaxKeyDim / kRowStep;  // of a thread
  __shared__ float queries[kMaxKeyDim], keys[kMaxKeyDim];
  __shared__ Vec<float, kWidth> values[kColumnLanes];
  __shared__ DeltaSums<kWidth> sums_of[kDeltaWarps][kColumnLanes];
  __shared__ float4 results[kMaxCluster * kColumnLanes];  // of the head's columns
  admit_next_kernel();
  const auto thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int group = args.num_value_heads / args.num_key_heads, blocks = cluster / group;  // of a head
  const int key_head = block / cluster, rank = block % cluster, part = rank % blocks;
  const DeltaPlace place = {key_head * group + rank / blocks, thread / kColumnLanes,
                            part * kBlockColumns + thread % kColumnLanes * kWidth};
  const int value = part * kBlockColumns + thread;  // of the head: what the first warp convolves, and norms
  const bool has_value = thread < kBlockColumns && value < args.value_dim;
  const int to = args.to[blockIdx.y], from = to < 0 ? -1 : args.from[blockIdx.y];

  Vec<float, kWidth> state[kRows] = {};
  const auto load = [&](int i, std::int64_t at) { state[i] = load_vec<kWidth>(args.state[from] + at); };
  if (from >= 0) for_state<kRows>(args, place, load);
  const int num_keys = args.num_key_heads * args.key_dim, query_at = key_head * args.key_dim + thread;
  const int value_at = place.head * args.value_dim + value;
  Channel<T> query(args, query_at, thread < args.key_dim, from);
  Channel<T> key(args, num_keys + query_at, thread < args.key_dim, from);
  Channel<T> own(args, 2 * num_keys + value_at, has_value, from);
  const DeltaHead head(args.a_log[place.head], args.dt_bias[place.head], args.key_dim);
  const float weight = has_value ? args.norm_weight[value] : 0;
  query.sum_history();
  key.sum_history();
  own.sum_history();
  wait_for_kernels();
  if (to < 0) return;

  const T* x = args.x[blockIdx.y];
  query.read(x);
  key.read(x);
  own.read(x);
  const T* behind = x + args.channels;
  const float gate = has_value ? widen(behind[value_at]) : 0;
  DeltaToken<kRows, kWidth> token;
  const T* rates = behind + args.num_value_heads * args.value_dim + place.head;
  token.a = widen(rates[args.num_value_heads]);
  token.b = widen(*rates);
  queries[thread] = query.value();
  keys[thread] = key.value();
  if (thread < kBlockColumns) values[thread / kWidth].values[thread % kWidth] = own.value();
  __syncthreads();
  hopper::arrive_at_cluster();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    token.q[i] = queries[place.row + i * kRowStep];
    token.k[i] = keys[place.row + i * kRowStep];
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) token.v[j] = values[thread % kColumnLanes].values[j];
  const DeltaSums<kWidth> sums = sum_rows(state, token, sums_of);
  const Vec<float, kWidth> result = take_turn(state, token, sums, head);

  hopper::wait_for_cluster();  // all blocks have started, and have read what is kept
  if (thread < 32) {
    const int first = rank - part;
    for (int other = first; place.row == 0 && other < first + blocks; ++other)
      hopper::store_to_block(results + part * kColumnLanes + thread, static_cast<unsigned>(other),
                             result.values);
    __syncwarp();
    hopper::arrive_at_cluster();
  } else {
    hopper::arrive_relaxed_at_cluster();  // this warp has stored nothing for other blocks
  }
  for_state<kRows>(args, place, [&](int i, std::int64_t at) { store_vec(args.state[to] + at, state[i]); });
  float* kept = args.kept[to];
  if (rank == 0) query.keep(kept);
  if (rank == cluster - 1) key.keep(kept);
  own.keep(kept);
  hopper::wait_for_cluster();
  if (thread >= 32) return;
  const auto* all = reinterpret_cast<const float*>(results);
  const float inverse = inverse_rms(all, args.value_dim, args.eps);
  if (has_value) args.out[blockIdx.y][value_at] = gated_normed<T>(all[value], inverse, weight, gate);
#endif
}

// Blocks of a cluster: those of the value heads of a key head.
std::int64_t cluster_of(const DeltaNet& net) {
  return net.state.dim(1) / net.rule.num_key_heads * ceil_div(net.state.dim(3), kBlockColumns);
}

}  // namespace

bool delta_step_supports(const LaunchContext& context, const DeltaNet& net, const StateBatch& batch) {
  return overlaps_kernels() && batch.max_query_len == 1 && batch.num_tokens == batch.num_sequences &&
         net.conv.weight.dim(0) == kTokens && !net.conv.bias.defined() &&
         net.conv.activation == Activation::kSilu && splits_into(net.state, kWidth) &&
         (streams_delta_step(context, net, batch) ||
          (net.state.dim(2) <= kMaxKeyDim && cluster_of(net) <= kMaxCluster));
}

void delta_step(const LaunchContext& context, const Tensor& out, const Tensor& x, const DeltaNet& net,
                const StateBatch& batch) {
  if (batch.num_sequences == 0) return;
  dispatch_float(x.dtype(), [&]<typename T>() {
    const StepArgs<T> args{{net.rule, net.state, batch},
                           out,
                           x,
                           net.conv.weight,
                           net.conv_state,
                           net.norm.weight.data_as<const float>(),
                           net.norm.eps,
                           batch.num_sequences,
                           static_cast<int>(net.conv_state.dim(2))};
    if (streams_delta_step(context, net, batch)) return stream_delta_step(context, args);
    const auto cluster = static_cast<unsigned>(cluster_of(net));
    launch_clusters(context, "delta_step", delta_step_kernel<T>,
                    dim3(args.num_key_heads * cluster, batch.num_sequences), cluster, kThreads, 0, args,
                    cluster);
  });
}

}  // namespace quire::cuda
