// Log-probabilities of rows of logits: of one given token with its rank, and of the most likely tokens. One
// block takes a row. It reads it once for the largest logit, the sum of exponentials, the rank, and each
// thread's own best token; the num_top threads with the best of these are sure to hold what is wanted, and
// their tokens alone are read again. Where too many of these are as likely as that (many equal logits, or
// sorted ones), the most likely ones are found one by one, a look at the row each.
// Bytes: 4 * vocab a row. 256 rows x 151936: 156 MB, 36 us at 4.3 TB/s.
// Measured on an H200, bench/cuda/logits_bench, for 256 / 32 / 1 rows: 55 / 28 / 24 us with the 5 most
// likely, 58 / 30 / 25 us with 20, 43 / 21 / 17 us with none (65 %, and without the most likely 85 %, of the
// bandwidth at 256 rows; few rows leave most multiprocessors idle).
#include <cfloat>

#include "backends/cuda/kernels/sampling.h"
#include "backends/cuda/kernels/sampling_race.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kCandidates = 1024;
static_assert(kMaxTopLogprobs <= kThreads && kMaxNamedLogprobs <= kThreads);

struct LogprobArgs {
  const float* logits;
  std::int64_t row_stride;
  int vocab, num_top;
  const int* rows;
  const int* tokens;
  const int* named;
  int* ids;
  float* logprobs;
  int* ranks;
};

// A token's place in the order of likelihood: larger is more likely, of equal ones the lower id.
__device__ unsigned long long order_key(float logit, int id) {
  return static_cast<unsigned long long>(ordered(logit)) << 32 | ~static_cast<unsigned>(id);
}
__device__ int id_of(unsigned long long key) { return static_cast<int>(~static_cast<unsigned>(key)); }
__device__ float logit_of(unsigned long long key) { return from_ordered(static_cast<unsigned>(key >> 32)); }

// The sum of exponentials, relative to the largest logit, and how many logits are above the given token's.
struct Totals {
  float top = -FLT_MAX;
  float sum = 0;
  unsigned above = 0;

  __device__ void add(const float4& v, float given) {
    const float highest = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    if (highest > top) {
      sum *= __expf(top - highest);
      top = highest;
    }
    sum += __expf(v.x - top) + __expf(v.y - top) + __expf(v.z - top) + __expf(v.w - top);
    above += (v.x > given) + (v.y > given) + (v.z > given) + (v.w > given);
  }
  __device__ bool neutral() const { return sum == 0 && above == 0; }
  __device__ static Totals combine(const Totals& a, const Totals& b) {
    Totals result;
    result.top = fmaxf(a.top, b.top);
    result.sum = a.sum * __expf(a.top - result.top) + b.sum * __expf(b.top - result.top);
    result.above = a.above + b.above;
    return result;
  }
};

// The best key of a block.
struct BestKey {
  unsigned long long key = 0;

  __device__ bool neutral() const { return key == 0; }
  __device__ static BestKey combine(const BestKey& a, const BestKey& b) { return {max(a.key, b.key)}; }
};

// One row, and what the block knows of it.
template <bool kAligned>
class Row {
 public:
  __device__ Row(const LogprobArgs& args)
      : vocab_(args.vocab),
        index_(args.rows != nullptr ? args.rows[blockIdx.x] : static_cast<int>(blockIdx.x)),
        logits_(args.logits + index_ * args.row_stride) {}

  __device__ int index() const { return index_; }
  __device__ float at(int id) const { return logits_[id]; }

  // Calls f(four logits, id of the first) for the thread's groups; past the vocabulary lies -inf. Reads run
  // ahead by a batch.
  template <typename F>
  __device__ void for_groups(F&& f) const {
    constexpr int kBatch = 8;
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < groups(); first += kBatch * kThreads) {
      float4 batch[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) batch[b] = load(first + b * kThreads);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) f(batch[b], 4 * (first + b * kThreads));
    }
  }

  // Calls f(key) for the thread's tokens.
  template <typename F>
  __device__ void for_keys(F&& f) const {
    for_groups([&](const float4& v, int id) { offer(v, id, f); });
  }

  // Calls f(key) for the tokens that for_groups gives to `count` threads, shared among all of them.
  template <typename F>
  __device__ void for_keys_of(const int* threads, int count, F&& f) const {
    const int each = (groups() + kThreads - 1) / kThreads;
    for (int i = static_cast<int>(threadIdx.x); i < count * each; i += kThreads) {
      const int group = threads[i / each] + i % each * kThreads;
      if (group < groups()) offer(load(group), 4 * group, f);
    }
  }

 private:
  __device__ int groups() const { return (vocab_ + 3) / 4; }
  template <typename F>
  __device__ void offer(const float4& v, int id, F&& f) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (id + i < vocab_) f(order_key(element(v, i), id + i));
  }
  __device__ float4 load(int group) const {
    const int id = 4 * group;
    if (kAligned && id + 4 <= vocab_) return *reinterpret_cast<const float4*>(logits_ + id);
    const auto past_end = [&](int i) { return i < vocab_ ? logits_[i] : -INFINITY; };
    return {past_end(id), past_end(id + 1), past_end(id + 2), past_end(id + 3)};
  }

  int vocab_, index_;
  const float* logits_;
};

// Of distinct keys in shared memory, how many are above `key`.
__device__ int count_above(const unsigned long long* keys, int count, unsigned long long key) {
  int above = 0;
  for (int i = 0; i < count; ++i) above += keys[i] > key ? 1 : 0;
  return above;
}

// Calls write(place, key) for the num_top most likely tokens; best_of_thread: of the thread's tokens, 0 where
// all are impossible.
template <bool kAligned, typename Write>
__device__ void select_top(const Row<kAligned>& row, unsigned long long best_of_thread, int num_top,
                           Write&& write) {
  __shared__ unsigned long long keys[kCandidates];
  __shared__ unsigned long long least;
  __shared__ int holders[kThreads];
  __shared__ int count, num_holders;
  keys[threadIdx.x] = best_of_thread;
  if (threadIdx.x == 0) {
    least = 0;  // where fewer threads have a token, all tokens are candidates
    count = num_holders = 0;
  }
  __syncthreads();
  // As many threads have a token at least as likely as this one, so that none below is wanted.
  if (best_of_thread != 0 && count_above(keys, kThreads, best_of_thread) == num_top - 1)
    least = best_of_thread;
  __syncthreads();
  if (best_of_thread >= least) holders[atomicAdd(&num_holders, 1)] = static_cast<int>(threadIdx.x);
  __syncthreads();
  row.for_keys_of(holders, num_holders, [&](unsigned long long key) {
    if (key < least) return;
    const int place = atomicAdd(&count, 1);
    if (place < kCandidates) keys[place] = key;
  });
  __syncthreads();
  if (count <= kCandidates) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const int place = count_above(keys, count, keys[i]);
      if (place < num_top) write(place, keys[i]);
    }
    return;
  }
  unsigned long long last = ~0ULL;
  for (int place = 0; place < num_top; ++place) {
    BestKey best;
    row.for_keys([&](unsigned long long key) {
      if (key < last) best.key = max(best.key, key);
    });
    best = RowGroup::reduce_block(best);
    if (threadIdx.x == 0) {
      write(place, best.key);
      least = best.key;
    }
    __syncthreads();
    last = least;
    __syncthreads();
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) log_probs_kernel(const __grid_constant__ LogprobArgs args) {
  __shared__ float shared_top, shared_log_sum;
  admit_next_kernel();
  wait_for_kernels();
  const Row<kAligned> row(args);
  const int token = args.tokens[row.index()];
  const bool has_token = token >= 0;  // else it could not be sampled
  const float given = has_token ? row.at(token) : INFINITY;
  Totals totals;
  float highest = -INFINITY;
  int best_token = -1;
  row.for_groups([&](const float4& v, int id) {
    totals.add(v, given);
    take_higher(v, id, highest, best_token);
  });
  totals = RowGroup::reduce_block(totals);
  const std::int64_t first = std::int64_t{blockIdx.x} * (1 + args.num_top);
  if (threadIdx.x == 0) {
    shared_top = totals.top;
    shared_log_sum = logf(totals.sum);
    args.ids[first] = token;
    args.logprobs[first] = has_token ? given - shared_top - shared_log_sum : NAN;
    args.ranks[blockIdx.x] = has_token ? 1 + static_cast<int>(totals.above) : 0;
  }
  if (args.num_top == 0) return;
  __syncthreads();
  const int* const named =
      args.named == nullptr ? nullptr : args.named + std::int64_t{blockIdx.x} * kMaxNamedLogprobs;
  if (named != nullptr && named[0] >= 0) {
    const int place = static_cast<int>(threadIdx.x);
    if (place >= kMaxNamedLogprobs || named[place] < 0) return;
    args.ids[first + 1 + place] = named[place];
    args.logprobs[first + 1 + place] = row.at(named[place]) - shared_top - shared_log_sum;
    return;
  }
  select_top(row, best_token < 0 ? 0 : order_key(highest, best_token), args.num_top,
             [&](int place, unsigned long long key) {
               args.ids[first + 1 + place] = id_of(key);
               args.logprobs[first + 1 + place] = logit_of(key) - shared_top - shared_log_sum;
             });
}

}  // namespace

void log_probs(const LaunchContext& context, const LogprobRows& out, const Tensor& logits,
               const LogprobBatch& batch) {
  if (batch.num_rows == 0) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(logits.data()) % 16 == 0 && logits.stride(0) % 4 == 0;
  const LogprobArgs args{.logits = logits.data_as<const float>(),
                         .row_stride = logits.stride(0),
                         .vocab = static_cast<int>(logits.dim(1)),
                         .num_top = batch.num_top,
                         .rows = batch.rows.data_as<const int>(),
                         .tokens = batch.tokens.data_as<const int>(),
                         .named = batch.named.data_as<const int>(),
                         .ids = out.ids.data_as<int>(),
                         .logprobs = out.logprobs.data_as<float>(),
                         .ranks = out.ranks.data_as<int>()};
  launch(context, "log_probs", aligned ? log_probs_kernel<true> : log_probs_kernel<false>, batch.num_rows,
         kThreads, 0, args);
}

}  // namespace quire::cuda
