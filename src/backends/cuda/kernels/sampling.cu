// One token for each row of logits: greedy, or by temperature as the winner of a Gumbel-max race. A cluster
// of blocks reads a row once, [rows, vocab] f32 of any stride: 4 * vocab bytes a row (256 x 151936: 156 MB).
// Rows with filters or masked tokens are left to sampling_filter.cu, in the second launch.
#include "backends/cuda/kernels/sampling.cuh"
#include "backends/cuda/kernels/sampling.h"

namespace quire::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kStages = 4;  // groups of a thread that are on their way

// The thread's groups of a row: every blockDim.x-th from `first`, before `end`. The next ones are on their
// way to the thread's own places in shared memory, [kStages][blockDim.x].
template <bool kAligned>
class Stream {
 public:
  __device__ Stream(const SampleArgs& args, const float* row, int first, int end)
      : row_(row), vocab_(args.vocab), first_(first), next_(first), end_(end), places_(shared_places()) {
    for (int i = 0; i < kStages - 1; ++i) start_next(i);
  }

  // The first of them, or nothing but -inf. Only before run().
  __device__ float4 first() const {
    __pipeline_wait_prior(kStages - 2);
    return first_ < end_ ? *places_ : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  }

  // Calls f(group, logits) for each.
  template <typename F>
  __device__ void run(F&& f) {
    int stage = 0;
#pragma unroll 1  // f is long, and must stay in the instruction cache
    for (int group = first_; group < end_; group += step()) {
      start_next((stage + kStages - 1) % kStages);
      __pipeline_wait_prior(kStages - 1);
      f(group, places_[stage * step()]);
      stage = (stage + 1) % kStages;
    }
  }

 private:
  __device__ static float4* shared_places() {
    extern __shared__ float4 places[];
    return places + threadIdx.x;
  }
  __device__ static int step() { return static_cast<int>(blockDim.x); }
  __device__ void start_next(int stage) {
    if (next_ < end_) copy_group<kAligned>(places_ + stage * step(), row_, next_, vocab_);
    __pipeline_commit();
    next_ += step();
  }

  const float* row_;
  int vocab_, first_, next_, end_;
  float4* places_;
};

template <bool kAligned>
__global__ void QUIRE_ROW_CLUSTER __launch_bounds__(kMaxThreads)
    sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ unsigned shared_best;
  RowGroup blocks;
  cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x == 0) shared_best = ordered(-INFINITY);
  const int r = static_cast<int>(blockIdx.x) / blocks.size();
  const int begin = blocks.rank() * args.slice;
  const int first = begin + static_cast<int>(threadIdx.x);
  cudaGridDependencySynchronize();

  Stream<kAligned> stream(args, args.logits + r * args.row_stride, first,
                          min(begin + args.slice, args.groups));
  const SampledRow params(args, r);
  blocks.ready();
  if (!params.plain()) return;

  Best best;
  float top = -INFINITY;
  if (params.draws()) {
    Race race(params, &shared_best);
    __syncthreads();
    race.seed(first, stream.first());
    __syncthreads();
    stream.run([&](int group, const float4& logits) {
      top = max_nan(top, max_nan(logits));
      race.refresh();
      race.visit(group, logits, best);
    });
  } else {
    float highest = -INFINITY;
    int token = 0;
    stream.run([&](int group, const float4& logits) {
      top = max_nan(top, max_nan(logits));
      take_higher(logits, 4 * group, highest, token);
    });
    best.offer(highest, token);
  }
  best.top = ordered(top);
  best = blocks.reduce(best);
  if (blocks.rank() == 0 && threadIdx.x == 0) write_token(args, r, params.slot, best.token());
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
                        .groups = static_cast<int>((logits.dim(1) + 3) / 4),
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
  const auto kernel = aligned ? sample_kernel<true> : sample_kernel<false>;
  constexpr int kMostShared = kStages * kMaxThreads * static_cast<int>(sizeof(float4));
  static const cudaError_t allowed[] = {
      cudaFuncSetAttribute(sample_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
      cudaFuncSetAttribute(sample_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared)};
  for (const cudaError_t status : allowed) check(status, "shared memory for sampling");
  const std::size_t shared_bytes = static_cast<std::size_t>(kStages * threads) * sizeof(float4);
  launch(context, "sample", kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
         shared_bytes, args);
  sample_filtered(context, args, aligned, workspace);
}

}  // namespace quire::cuda
