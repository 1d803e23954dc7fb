// One token for each row of logits: greedy, or the winner of a Gumbel-max race among the tokens that filters
// leave. Rows without any are one long stream of logits, cut evenly among the blocks; then clusters of blocks
// take the other rows, one at a time.
// Bytes: every logit, [rows, vocab] f32 of any stride, is read once: 4 * vocab a row (256 x 151936: 156 MB,
// 36 us at 4.3 TB/s). The random numbers are the other limit: 22.5 cycles of a multiprocessor for the 128
// that a warp draws at a time, 28 us for those 256 rows. Measured on an H200, bench/cuda/sampling_bench,
// vocabulary 151936, microseconds for 256 / 32 / 1 rows:
//   greedy 56 / 14 / 4.3, temperature 68 / 22 / 6.0 (65 % and 53 % of the bandwidth at 256 rows);
//   min-p 153 / 24 / 8.5, top-k 50 303 / 54 / 21, top-p 0.95 295 / 50 / 19, both 351 / 63 / 26 where a few
//   tokens hold the mass; top-p 0.95 of plain noise, where 10^5 tokens stay, 676 / 120 / 52.
#include <algorithm>

#include "backends/cuda/kernels/sampling.h"
#include "backends/cuda/kernels/sampling_filter.cuh"
#include "backends/cuda/kernels/sampling_race.cuh"

namespace quire::cuda {
namespace {

constexpr int kStages = 3;    // of which two are on their way while one is used
constexpr int kPerStage = 2;  // groups of a thread; two share what a round of the loop costs
constexpr int kStreamBytes = kStages * kPerStage * kSampleThreads * static_cast<int>(sizeof(float4));

// The thread's groups of a part of a row: every kSampleThreads-th. The next ones are on their way to the
// thread's own places in shared memory, [kStages][kPerStage][kSampleThreads].
template <bool kAligned>
class Stream {
 public:
  __device__ explicit Stream(float4* places) : places_(places + threadIdx.x) {}

  // Starts the first copies of the groups [begin, end) of a row; those started before have all been used.
  __device__ void start(const SampleArgs& args, int row, int begin, int end) {
    row_ = args.logits + row * args.row_stride;
    vocab_ = args.vocab;
    first_ = begin + static_cast<int>(threadIdx.x);
    end_ = end;
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

// The thread's part in the token of a row without filters.
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

constexpr int kMaxRows = 1024;  // of one launch

// Which rows are plain, a bit each, found out by the block.
class PlainRows {
 public:
  __device__ PlainRows(const SampleArgs& args, unsigned (&words)[kMaxRows / 32]) : words_(words) {
#pragma unroll 1
    for (int base = 0; base < args.num_rows; base += kSampleThreads) {
      const int row = base + static_cast<int>(threadIdx.x);
      const unsigned votes = __ballot_sync(~0U, row < args.num_rows && SampledRow(args, row).plain());
      if (threadIdx.x % 32 == 0 && row < args.num_rows) words_[row / 32] = votes;
    }
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < args.num_rows; row += 32) count_ += __popc(words_[row / 32]);
  }

  __device__ int count() const { return count_; }
  __device__ bool has(int row) const { return (words_[row / 32] >> row % 32 & 1U) != 0; }
  // The row that has `before` plain rows before it.
  __device__ int nth(int before) const {
    int word = 0;
    while (before >= __popc(words_[word])) before -= __popc(words_[word++]);
    unsigned bits = words_[word];
    for (; before > 0; --before) bits &= bits - 1;
    return 32 * word + __ffs(static_cast<int>(bits)) - 1;
  }

 private:
  unsigned* words_;
  int count_ = 0;
};

// What the blocks that share a plain row have found. All zero between launches.
struct RowState {
  unsigned long long score_and_id;
  unsigned top;
  unsigned arrived;
};

constexpr std::size_t kStateBytes = kMaxRows * sizeof(RowState);

__device__ void write_token(const SampleArgs& args, int row, int seat, int token) {
  args.tokens[row] = token;
  args.last_tokens[seat] = token;
}

// By one thread of each of `blocks` blocks; the last of them decides.
__device__ void decide(const SampleArgs& args, RowState& state, int row, int seat, int blocks, Best best) {
  if (blocks > 1) {
    atomicMax(&state.score_and_id, static_cast<unsigned long long>(best.score) << 32 | best.id);
    atomicMax(&state.top, best.top);
    __threadfence();
    if (atomicAdd(&state.arrived, 1U) + 1 != static_cast<unsigned>(blocks)) return;
    __threadfence();
    const unsigned long long key = atomicExch(&state.score_and_id, 0ULL);
    best.score = static_cast<unsigned>(key >> 32);
    best.id = static_cast<unsigned>(key);
    best.top = atomicExch(&state.top, 0U);
    atomicExch(&state.arrived, 0U);
  }
  write_token(args, row, seat, best.token());
}

// The plain rows' groups, one after the other, in equal shares: a block's share touches few rows.
template <bool kAligned>
__device__ void sample_plain_rows(const SampleArgs& args, const PlainRows& rows, RowState* states,
                                  int least_share, float4* places, unsigned* shared_best) {
  const int total = rows.count() * args.groups;
  const int blocks = static_cast<int>(gridDim.x);
  const int share = max((total + blocks - 1) / blocks, least_share);
  int at = static_cast<int>(blockIdx.x) * share;
  const int end = min(at + share, total);
  if (at >= end) return;

  Stream<kAligned> stream(places);
  const auto start = [&](int row) {
    const int begin = at % args.groups;
    stream.start(args, row, begin, min(begin + end - at, args.groups));
  };
  int row = rows.nth(at / args.groups);
  start(row);
  SampledRow params(args, row);
  while (true) {
    if (threadIdx.x == 0) *shared_best = ordered(-INFINITY);
    __syncthreads();
    Best best = sample_plain(stream, params, shared_best);
    // The next row is on its way while this one is decided.
    const int done = row;
    const int seat = params.seat;
    const int first = at / args.groups * args.groups;
    at = first + args.groups;
    if (at < end) {
      row = rows.nth(at / args.groups);
      start(row);
      params = SampledRow(args, row);
    }
    best = RowGroup::reduce_block(best);
    if (threadIdx.x == 0) {
      const int sharing = (first + args.groups - 1) / share - first / share + 1;
      decide(args, states[done], done, seat, sharing, best);
    }
    if (at >= end) return;
  }
}

// Shared memory: the places of a Stream; then, for rows with filters, the block's marks
// [words][kSampleThreads] and its part of the row, which lies in `scratch` where it does not fit.
template <bool kAligned>
__global__ void QUIRE_ROW_CLUSTER __launch_bounds__(kSampleThreads, 2)
    sample_kernel(const __grid_constant__ SampleArgs args, RowState* states, int least_share, int words,
                  float4* scratch) {
  extern __shared__ float4 shared[];
  __shared__ unsigned shared_best;
  __shared__ unsigned plain_words[kMaxRows / 32];
  RowGroup blocks;
  admit_next_kernel();
  wait_for_kernels();
  const PlainRows plain(args, plain_words);
  if (plain.count() > 0) sample_plain_rows<kAligned>(args, plain, states, least_share, shared, &shared_best);
  if (plain.count() == args.num_rows) return;

  auto* left = reinterpret_cast<unsigned*>(shared);
  float4* values = scratch != nullptr ? scratch + std::int64_t{blockIdx.x} * args.slice
                                      : reinterpret_cast<float4*>(left + words * kSampleThreads);
  const int clusters = static_cast<int>(gridDim.x) / blocks.size();
  const int cluster = static_cast<int>(blockIdx.x) / blocks.size();
  blocks.ready();
  __pipeline_wait_prior(0);
  int turn = 0;
  for (int row = 0; row < args.num_rows; ++row) {
    if (plain.has(row) || turn++ % clusters != cluster) continue;
    const SampledRow params(args, row);
    __syncthreads();
    if (threadIdx.x == 0) shared_best = ordered(-INFINITY);
    const Best best = blocks.reduce(sample_filtered<kAligned>(
        blocks, args, params, args.logits + row * args.row_stride, values, left, &shared_best));
    if (blocks.rank() == 0 && threadIdx.x == 0) write_token(args, row, params.seat, best.token());
  }
}

std::int64_t groups_of(std::int64_t vocab_size) { return (vocab_size + 3) / 4; }

// Groups that each block of a cluster takes.
int slice_of(std::int64_t vocab_size) { return ceil_div(groups_of(vocab_size), row_group_size()); }

// How a launch for `rows` rows of a vocabulary is laid out.
struct Plan {
  int words;         // of marks, for each thread
  bool fits;         // a block's part of a row in its shared memory
  int shared_bytes;  // of a block
  int least_share;   // groups of a block, of rows without filters
  int blocks;
  std::size_t scratch_bytes;

  Plan(const LaunchContext& context, int rows, std::int64_t vocab_size) {
    constexpr int kPerWord = kSampleThreads * kGroupsPerWord;
    const int slice = slice_of(vocab_size);
    words = ceil_div(slice, kPerWord);
    const int marks = words * kSampleThreads * static_cast<int>(sizeof(unsigned));
    const int part = slice * static_cast<int>(sizeof(float4));
    const int most_bytes = context.shared_bytes - kOwnBytes;
    allow_shared_bytes<sample_kernel<true>>(most_bytes);
    allow_shared_bytes<sample_kernel<false>>(most_bytes);
    fits = marks + part <= most_bytes && row_group_size() > 1;
    shared_bytes = std::max(fits ? marks + part : marks, kStreamBytes);
    // Two groups a thread at the least, or a row.
    const std::int64_t groups = groups_of(vocab_size);
    least_share = static_cast<int>(std::min<std::int64_t>(2 * kSampleThreads, groups));
    const int clusters = ceil_div(ceil_div(rows * groups, least_share), row_group_size());
    blocks = std::clamp(std::max(clusters, rows), 1, clusters_at_once(context)) * row_group_size();
    scratch_bytes = fits ? 0 : static_cast<std::size_t>(blocks) * static_cast<std::size_t>(part);
  }

 private:
  static constexpr int kOwnBytes = 8192;  // for the kernel's own variables

  int clusters_at_once(const LaunchContext& context) const {
    if (row_group_size() == 1) return 2 * context.num_sms;
    static thread_local int known_bytes = -1;
    static thread_local int clusters = 0;
    if (shared_bytes != known_bytes) {
      clusters = max_active_clusters(sample_kernel<true>, kRowBlocks, kSampleThreads, shared_bytes);
      known_bytes = shared_bytes;
    }
    return clusters;
  }
};

// Rows [first, first + count) of a batch.
SampleArgs args_of(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
                   const SamplingBatch& batch, int first, int count) {
  const std::int64_t vocab_size = logits.dim(1);
  return {.logits = logits.data_as<const float>() + first * logits.stride(0),
          .row_stride = logits.stride(0),
          .num_rows = count,
          .vocab = static_cast<int>(vocab_size),
          .groups = static_cast<int>(groups_of(vocab_size)),
          .slice = slice_of(vocab_size),
          .temperature = batch.temperature.data_as<const float>() + first,
          .top_p = batch.top_p.data_as<const float>() + first,
          .min_p = batch.min_p.data_as<const float>() + first,
          .top_k = batch.top_k.data_as<const int>() + first,
          .seeds = batch.seeds.data_as<const std::int64_t>() + first,
          .positions = batch.positions.data_as<const int>() + first,
          .seats = batch.seats.data_as<const int>() + first,
          .tokens = tokens.data_as<int>() + first,
          .last_tokens = last_tokens.data_as<int>()};
}

}  // namespace

// Workspace: the states of kMaxRows rows, then what is scratch.
std::size_t sampling_workspace_bytes(const LaunchContext& context, int max_rows, std::int64_t vocab_size) {
  return kStateBytes + Plan(context, std::min(max_rows, kMaxRows), vocab_size).scratch_bytes;
}

void sample(const LaunchContext& context, const Tensor& tokens, const Tensor& last_tokens,
            const Tensor& logits, const SamplingBatch& batch) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(logits.data()) % 16 == 0 && logits.stride(0) % 4 == 0;
  const auto kernel = aligned ? sample_kernel<true> : sample_kernel<false>;
  auto* bytes = batch.workspace.data_as<std::byte>();
  for (int first = 0; first < batch.num_rows; first += kMaxRows) {
    const int count = std::min(batch.num_rows - first, kMaxRows);
    const Plan plan(context, count, logits.dim(1));
    launch(context, "sample", kernel, plan.blocks, kSampleThreads, plan.shared_bytes,
           args_of(tokens, last_tokens, logits, batch, first, count), reinterpret_cast<RowState*>(bytes),
           plan.least_share, plan.words,
           plan.fits ? nullptr : reinterpret_cast<float4*>(bytes + kStateBytes));
  }
}

}  // namespace quire::cuda
