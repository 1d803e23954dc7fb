// One token for each row of logits: greedy, or by temperature as the winner of a Gumbel-max race. A cluster
// of blocks reads a row once, [rows, vocab] f32 of any stride: 4 * vocab bytes a row (256 x 151936: 156 MB).
// Rows with filters or masked tokens are left to sampling_filter.cu, in the second launch.
#include "backends/cuda/kernels/sampling.cuh"
#include "backends/cuda/kernels/sampling.h"

namespace quire::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kAhead = 4;  // groups of a thread that are on their way

// The thread's next groups of a row: every blockDim.x-th from `first`, before `end`.
template <bool kAligned>
__device__ void load_ahead(const float* row, int first, int end, float4 (&next)[kAhead]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int group = first + i * static_cast<int>(blockDim.x);
    if (group < end) next[i] = load_group<kAligned>(row + 4 * std::int64_t{group});
  }
}

// Calls f(group, logits) for the thread's groups from `first` on, while later ones are loaded, and
// each_round() before every kAhead of them. `next` holds the first ones.
template <bool kAligned, typename Round, typename F>
__device__ void stream(const float* row, int first, int end, float4 (&next)[kAhead], Round&& each_round,
                       F&& f) {
  const int step = kAhead * static_cast<int>(blockDim.x);
  for (; first < end; first += step) {
    float4 now[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) now[i] = next[i];
    load_ahead<kAligned>(row, first + step, end, next);
    each_round();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int group = first + i * static_cast<int>(blockDim.x);
      if (group < end) f(group, now[i]);
    }
  }
}

template <bool kAligned>
__global__ void QUIRE_ROW_CLUSTER __launch_bounds__(kMaxThreads)
    sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ unsigned shared_best;
  RowGroup blocks;
  cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x == 0) shared_best = ordered(-INFINITY);
  const int r = static_cast<int>(blockIdx.x) / blocks.size();
  const float* row = args.logits + r * args.row_stride;
  const int begin = blocks.rank() * args.slice;
  const int end = min(begin + args.slice, args.full_groups);
  const int first = begin + static_cast<int>(threadIdx.x);
  const bool has_last_group =
      args.vocab % 4 != 0 && blocks.rank() == blocks.size() - 1 && threadIdx.x == blockDim.x - 1;
  cudaGridDependencySynchronize();

  const SampledRow params(args, r);
  Race race(args, r, params.temperature, &shared_best);
  float4 next[kAhead];
  next[0] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  load_ahead<kAligned>(row, first, end, next);
  blocks.ready();
  if (!params.plain()) return;

  Best best;
  float top = -INFINITY;
  if (params.draws()) {
    __syncthreads();
    race.seed(first, next[0]);
    __syncthreads();
    const auto visit = [&](int group, const float4& logits) {
      top = max_nan(top, max_nan(logits));
      race.visit(group, logits, best);
    };
    stream<kAligned>(
        row, first, end, next, [&] { race.refresh(); }, visit);
    if (has_last_group) visit(args.full_groups, load_last_group(args, row));
  } else {
    float highest = -INFINITY;
    int token = 0;
    const auto visit = [&](int group, const float4& logits) {
      top = max_nan(top, max_nan(logits));
      const float values[4] = {logits.x, logits.y, logits.z, logits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        token = values[i] > highest ? 4 * group + i : token;
        highest = fmaxf(values[i], highest);
      }
    };
    stream<kAligned>(
        row, first, end, next, [] {}, visit);
    if (has_last_group) visit(args.full_groups, load_last_group(args, row));
    best.offer(highest, token);
  }
  best.top = ordered(top);
  best = blocks.reduce(best);
  if (blocks.rank() == 0 && threadIdx.x == 0) write_token(args, r, best.token());
}

}  // namespace

std::size_t sampling_workspace_bytes(int max_rows, std::int64_t vocab_size, int num_sms) {
  return filtered_workspace_bytes(max_rows, vocab_size, num_sms);
}

void sample(const LaunchContext& context, const Tensor& tokens, const Tensor& last_tokens,
            const Tensor& logits, const SamplingBatch& batch, const Tensor& workspace) {
  if (batch.num_rows == 0) return;
  const SampleArgs args{.logits = logits.data_as<const float>(),
                        .row_stride = logits.stride(0),
                        .num_rows = batch.num_rows,
                        .vocab = static_cast<int>(logits.dim(1)),
                        .full_groups = static_cast<int>(logits.dim(1) / 4),
                        .slice = slice_of(logits.dim(1)),
                        .temperature = batch.temperature.data_as<const float>(),
                        .top_p = batch.top_p.data_as<const float>(),
                        .min_p = batch.min_p.data_as<const float>(),
                        .top_k = batch.top_k.data_as<const int>(),
                        .seeds = batch.seeds.data_as<const std::int64_t>(),
                        .positions = batch.positions.data_as<const int>(),
                        .slots = batch.slots.data_as<const int>(),
                        .masked_starts = batch.masked_starts.data_as<const int>(),
                        .masked_ids = batch.masked_ids.data_as<const int>(),
                        .tokens = tokens.data_as<int>(),
                        .last_tokens = last_tokens.data_as<int>()};
  const bool aligned = reinterpret_cast<std::uintptr_t>(logits.data()) % 16 == 0 && logits.stride(0) % 4 == 0;
  // The fewer blocks, the more each must have on its way. The result is the same for any number.
  const int blocks = batch.num_rows * row_group_size();
  const int threads = blocks <= context.num_sms ? kMaxThreads : blocks <= 2 * context.num_sms ? 512 : 256;
  launch(context, "sample", aligned ? sample_kernel<true> : sample_kernel<false>,
         dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), 0, args);
  sample_filtered(context, args, aligned, workspace);
}

}  // namespace quire::cuda
