// One token for each row of logits: greedy, or the winner of a Gumbel-max race among the tokens that masks
// and filters leave. A cluster of blocks takes a row at a time and reads it once, [rows, vocab] f32 of any
// stride: 4 * vocab bytes a row (256 x 151936: 156 MB).
#include <algorithm>

#include "backends/cuda/kernels/sampling.h"
#include "backends/cuda/kernels/sampling_filter.cuh"
#include "backends/cuda/kernels/sampling_race.cuh"

namespace quire::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kPerStage = 2;  // groups of a thread
constexpr int kStreamBytes = kStages * kPerStage * kSampleThreads * static_cast<int>(sizeof(float4));

// The thread's groups of a row: every kSampleThreads-th from `first`, before `end`. The next ones are on
// their way to the thread's own places in shared memory, [kStages][kPerStage][kSampleThreads].
template <bool kAligned>
class Stream {
 public:
  __device__ explicit Stream(float4* places) : places_(places + threadIdx.x) {}

  // Starts the first copies of a row; those of the row before have all been used.
  __device__ void start(const SampleArgs& args, const float* row, int rank) {
    row_ = row;
    vocab_ = args.vocab;
    first_ = rank * args.slice + static_cast<int>(threadIdx.x);
    end_ = min((rank + 1) * args.slice, args.groups);
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) start_stage(first_ + stage * kStep, stage);
  }

  __device__ int first_group() const { return first_; }
  // Its logits, or nothing but -inf where there is none. Only before run().
  __device__ float4 first() const {
    __pipeline_wait_prior(kStages - 2);
    return first_ < end_ ? *places_ : nothing();
  }

  // Calls f(group, logits) for kPerStage groups, kSampleThreads apart, at a time; some may be nothing.
  template <typename F>
  __device__ void run(F&& f) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int stage = 0;
#pragma unroll 1  // f is long, and must stay in the instruction cache
    for (int group = first_; group - lane < end_; group += kStep) {
      start_stage(group + (kStages - 1) * kStep, stage == 0 ? kStages - 1 : stage - 1);
      __pipeline_wait_prior(kStages - 1);
      float4 logits[kPerStage];
#pragma unroll
      for (int i = 0; i < kPerStage; ++i) {
        logits[i] =
            group + i * kSampleThreads < end_ ? places_[(stage * kPerStage + i) * kSampleThreads] : nothing();
      }
      f(group, logits);
      stage = stage == kStages - 1 ? 0 : stage + 1;
      __syncwarp();  // f takes different ways
    }
  }

 private:
  static constexpr int kStep = kPerStage * kSampleThreads;

  __device__ static float4 nothing() { return {-INFINITY, -INFINITY, -INFINITY, -INFINITY}; }
  __device__ void start_stage(int group, int stage) {
#pragma unroll
    for (int i = 0; i < kPerStage; ++i, group += kSampleThreads) {
      if (group < end_)
        copy_group<kAligned>(places_ + (stage * kPerStage + i) * kSampleThreads, row_, group, vocab_);
    }
    __pipeline_commit();
  }

  float4* places_;
  const float* row_ = nullptr;
  int vocab_ = 0, first_ = 0, end_ = 0;
};

// The thread's part in the token of a row without filters and masks.
template <bool kAligned>
__device__ Best sample_plain(Stream<kAligned>& stream, const SampledRow& params, unsigned* shared_best) {
  Best best;
  float top = -INFINITY;
  if (params.draws()) {
    Race race(params, shared_best);
    race.seed(stream.first_group(), stream.first());
    __syncthreads();
    stream.run([&](int group, const float4(&logits)[kPerStage]) {
      for (const float4& four : logits) top = max_nan(top, max_nan(four));
      race.refresh();
      race.visit<kPerStage, kSampleThreads>(group, logits, best);
    });
  } else {
    float highest = -INFINITY;
    int token = 0;
    stream.run([&](int group, const float4(&logits)[kPerStage]) {
      for (int i = 0; i < kPerStage; ++i) {
        top = max_nan(top, max_nan(logits[i]));
        take_higher(logits[i], 4 * (group + i * kSampleThreads), highest, token);
      }
    });
    best.offer(highest, token);
  }
  best.top = ordered(top);
  return best;
}

// Clusters take turns at the rows. Shared memory: the places of a Stream or, for rows with filters, the
// block's marks [words][kSampleThreads] and its part of the row, which lies in `scratch` where it does not
// fit.
template <bool kAligned>
__global__ void QUIRE_ROW_CLUSTER __launch_bounds__(kSampleThreads, 2)
    sample_kernel(const __grid_constant__ SampleArgs args, int words, float4* scratch) {
  extern __shared__ float4 shared[];
  __shared__ unsigned shared_best;
  RowGroup blocks;
  admit_next_kernel();
  auto* left = reinterpret_cast<unsigned*>(shared);
  float4* values = scratch != nullptr ? scratch + std::int64_t{blockIdx.x} * args.slice
                                      : reinterpret_cast<float4*>(left + words * kSampleThreads);
  const int clusters = static_cast<int>(gridDim.x) / blocks.size();
  int r = static_cast<int>(blockIdx.x) / blocks.size();
  const auto row = [&] { return args.logits + r * args.row_stride; };
  wait_for_kernels();

  Stream<kAligned> stream(shared);
  stream.start(args, row(), blocks.rank());
  SampledRow params(args, r);
  blocks.ready();
  while (true) {
    if (threadIdx.x == 0) shared_best = ordered(-INFINITY);
    Best best;
    if (params.plain()) {
      __syncthreads();
      best = sample_plain(stream, params, &shared_best);
    } else {
      __pipeline_wait_prior(0);
      __syncthreads();
      best = sample_filtered<kAligned>(blocks, args, params, row(), values, left, &shared_best);
      __syncthreads();
    }
    // The next row is on its way while this one is decided.
    const int sampled = r;
    const int slot = params.slot;
    r += clusters;
    if (r < args.num_rows) {
      stream.start(args, row(), blocks.rank());
      params = SampledRow(args, r);
    }
    best = blocks.reduce(best);
    if (blocks.rank() == 0 && threadIdx.x == 0) {
      args.tokens[sampled] = best.token();
      args.last_tokens[slot] = best.token();
    }
    if (r >= args.num_rows) return;
  }
}

// Groups that each block of a cluster takes.
int slice_of(std::int64_t vocab_size) {
  const std::int64_t groups = (vocab_size + 3) / 4;
  return static_cast<int>((groups + row_group_size() - 1) / row_group_size());
}

// How a launch for `rows` rows of a vocabulary is laid out.
struct Plan {
  int words;         // of marks, for each thread
  bool fits;         // a block's part of a row in its shared memory
  int shared_bytes;  // of a block
  int blocks;

  Plan(int rows, std::int64_t vocab_size, int num_sms) {
    constexpr int kPerWord = kSampleThreads * kGroupsPerWord;
    const int slice = slice_of(vocab_size);
    words = (slice + kPerWord - 1) / kPerWord;
    const int marks = words * kSampleThreads * static_cast<int>(sizeof(unsigned));
    const int part = slice * static_cast<int>(sizeof(float4));
    fits = row_group_size() > 1 && marks + part <= most_shared_bytes();
    shared_bytes = std::max(fits ? marks + part : marks, kStreamBytes);
    blocks = std::min(rows, clusters_at_once(shared_bytes, num_sms)) * row_group_size();
  }

  std::size_t scratch_bytes(std::int64_t vocab_size) const {
    return fits ? 0
                : static_cast<std::size_t>(blocks) * static_cast<std::size_t>(slice_of(vocab_size)) *
                      sizeof(float4);
  }

 private:
  // What a block can have beside the kernel's own variables.
  static int most_shared_bytes() {
    static const int bytes = [] {
      constexpr int kOwn = 8192;
      int device = 0;
      int all = 0;
      check(cudaGetDevice(&device), "the current device");
      check(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
      for (const auto kernel : {sample_kernel<true>, sample_kernel<false>}) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all - kOwn),
              "shared memory for sampling");
      }
      return all - kOwn;
    }();
    return bytes;
  }

  static int clusters_at_once(int shared_bytes, int num_sms) {
    if (row_group_size() == 1) return 2 * num_sms;
    static thread_local int known_bytes = -1;
    static thread_local int clusters = 0;
    if (shared_bytes != known_bytes) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {kRowBlocks, 1, 1};
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(kRowBlocks);
      config.blockDim = dim3(kSampleThreads);
      config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
      config.attrs = &attribute;
      config.numAttrs = 1;
      check(cudaOccupancyMaxActiveClusters(&clusters, sample_kernel<true>, &config), "clusters for sampling");
      clusters = std::max(clusters, 1);
      known_bytes = shared_bytes;
    }
    return clusters;
  }
};

}  // namespace

std::size_t sampling_workspace_bytes(int max_rows, std::int64_t vocab_size, int num_sms) {
  return Plan(max_rows, vocab_size, num_sms).scratch_bytes(vocab_size);
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
  const Plan plan(batch.num_rows, logits.dim(1), context.num_sms);
  launch(context, "sample", aligned ? sample_kernel<true> : sample_kernel<false>,
         dim3(static_cast<unsigned>(plan.blocks)), dim3(kSampleThreads),
         static_cast<std::size_t>(plan.shared_bytes), args, plan.words,
         plan.fits ? nullptr : workspace.data_as<float4>());
}

}  // namespace quire::cuda
