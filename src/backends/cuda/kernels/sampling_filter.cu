// The token of rows that sampling.cu leaves: those with masked tokens, top-k, top-p or min-p. A cluster of
// blocks reads a row once into its shared memory (workspace, where that is too small) and searches there for
// the logit at which top-k or top-p cut, by counts or probability mass above several pivots at a time: no
// sort, and sums in a fixed order. Then the tokens that are left race as in sampling.cu.
// Bytes: 4 * vocab a row that is sampled here (256 x 151936: 156 MB); none for the others.
#include <algorithm>
#include <cfloat>
#include <climits>

#include "backends/cuda/kernels/sampling.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kGroupsPerWord = 8;  // of four tokens, a bit each

// What a block holds of a row. Thread t owns the groups t, t + kThreads, …
struct Part {
  float4* values;  // [groups]
  unsigned* left;  // [words][kThreads]: the tokens that a search has not decided yet, a bit each
  int first_id, groups;

  // Calls f(logits, first id) for the thread's groups.
  template <typename F>
  __device__ void for_groups(F&& f) const {
#pragma unroll 1
    for (int g = static_cast<int>(threadIdx.x); g < groups; g += kThreads) f(values[g], first_id + 4 * g);
  }

  // Calls f(logit, id) for all of the thread's tokens; where it returns true, they are left.
  template <typename F>
  __device__ void mark_left(F&& f) const {
    unsigned* word = left + threadIdx.x;
    unsigned marks = 0;
    int shift = 0;
    for_groups([&](const float4& logits, int id) {
      const unsigned four = (f(logits.x, id) ? 1U : 0U) | (f(logits.y, id + 1) ? 2U : 0U) |
                            (f(logits.z, id + 2) ? 4U : 0U) | (f(logits.w, id + 3) ? 8U : 0U);
      marks |= four << shift;
      *word = marks;
      shift += 4;
      if (shift < 32) return;
      shift = 0;
      marks = 0;
      word += kThreads;
    });
  }

  // Calls f(logit, id) for the thread's tokens that are left; where it returns false, they no longer are.
  template <typename F>
  __device__ void for_left(F&& f) const {
    unsigned* word = left + threadIdx.x;
#pragma unroll 1
    for (int g = static_cast<int>(threadIdx.x); g < groups;
         g += kGroupsPerWord * kThreads, word += kThreads) {
      unsigned kept = *word;
#pragma unroll 1
      for (unsigned bits = kept; bits != 0; bits &= bits - 1) {
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        const int index = 4 * (g + bit / 4 * kThreads) + bit % 4;
        if (!f(reinterpret_cast<const float*>(values)[index], first_id + index)) kept &= ~(1U << bit);
      }
      *word = kept;
    }
  }
};

enum class Measure {
  kCount,  // tokens in order of their logits, each counts 1
  kMass,   // tokens in order of their logits, by their probability
  kTies,   // tokens of one logit, in order of their ids, each counts 1
};

// What the searches of one row share.
struct Limits {
  float top, inverse_temperature;
  float least_scaled;  // min-p
  float cut;           // tokens below are out; of those at it, ids above last_id too
  int last_id;

  __device__ bool likely(float logit) const {
    return __fmul_rn(logit, inverse_temperature) >= least_scaled && logit >= cut;
  }
  __device__ bool keeps(float logit, int id) const { return likely(logit) && (logit > cut || id <= last_id); }
  // Relative to the most likely token.
  __device__ float probability(float logit) const { return __expf((logit - top) * inverse_temperature); }
};

constexpr int kPivots = 8;

// Over the undecided tokens: the measure above each pivot, and the range of their values.
struct Sums {
  float above[kPivots] = {};
  float highest = -INFINITY;
  float minus_lowest = -INFINITY;

  __device__ void add(float value, float weight, const float (&pivots)[kPivots]) {
#pragma unroll
    for (int i = 0; i < kPivots; ++i) {
      if (value > pivots[i]) above[i] += weight;
    }
    highest = fmaxf(highest, value);
    minus_lowest = fmaxf(minus_lowest, -value);
  }
  __device__ bool neutral() const { return highest == -INFINITY; }
  __device__ static Sums combine(const Sums& a, const Sums& b) {
    Sums sums;
#pragma unroll
    for (int i = 0; i < kPivots; ++i) sums.above[i] = a.above[i] + b.above[i];
    sums.highest = fmaxf(a.highest, b.highest);
    sums.minus_lowest = fmaxf(a.minus_lowest, b.minus_lowest);
    return sums;
  }
};

// A search for the value at which the measure of what lies above reaches `wanted`. It lies in (low, high].
struct Search {
  float top, unit;  // the highest value that may be, and how far below it the first pivot is to lie
  float wanted;
  float low = -INFINITY, high;
  float above = 0;   // the measure above high: less than wanted
  float inside = 0;  // the measure of what lies in between
  float pivots[kPivots];
  bool first = true, done = false;

  __device__ Search(float highest, float first_unit, float amount)
      : top(highest), unit(first_unit), wanted(amount), high(highest) {
    place_pivots();
  }
  __device__ bool found() const { return above + inside >= wanted; }

  // Pivot 0 is `low`. While that is not known to be finite, the others step away from the top in powers of
  // two; then they divide what is left evenly.
  __device__ void place_pivots() {
    pivots[0] = low;
    const float reach = high < top ? 2 * (top - high) : unit;
#pragma unroll
    for (int i = 1; i < kPivots; ++i) {
      const float share = static_cast<float>(i) / kPivots;
      pivots[i] = low == -INFINITY ? fmaxf(top - reach * static_cast<float>(1 << (kPivots - 1 - i)), -FLT_MAX)
                                   : low * (1 - share) + high * share;
    }
  }

  __device__ void narrow(const Sums& sums) {
    float new_above = above;
    float above_low = above + sums.above[0];
    high = fminf(high, sums.highest);
#pragma unroll
    for (int i = kPivots - 1; i > 0; --i) {  // the measure grows
      const float measured = above + sums.above[i];
      if (measured < wanted && pivots[i] <= high) {
        high = pivots[i];
        new_above = measured;
      } else if (measured >= wanted && pivots[i] > low) {
        low = pivots[i];
        above_low = measured;
      }
    }
    above = new_above;
    inside = above_low - above;
  }
};

// One look at the undecided tokens; those outside (low, high] are decided. `all`: at all tokens.
template <Measure kMeasure>
__device__ Sums measure(const Part& part, const Limits& limits, const Search& search, bool all) {
  Sums sums;
  const auto look = [&](float logit, int id) {
    const float value = kMeasure == Measure::kTies ? -static_cast<float>(id) : logit;
    const bool eligible = kMeasure == Measure::kTies ? logit == limits.cut : limits.likely(logit);
    if (!eligible || value <= search.low) return false;
    // What lies above is wanted again after a count, by the search for top-p among the top k.
    if (value > search.high) return kMeasure == Measure::kCount;
    sums.add(value, kMeasure == Measure::kMass ? limits.probability(logit) : 1.0F, search.pivots);
    return true;
  };
  all ? part.mark_left(look) : part.for_left(look);
  return sums;
}

// What the sums say: the search as it goes on, or is done, with everything that is wanted at `high` or above.
template <Measure kMeasure>
__device__ Search advance(Search search, const Sums& sums, const Limits& limits) {
  search.inside = sums.above[0];
  if (kMeasure == Measure::kMass && search.first)
    search.wanted = fmaxf(search.wanted * search.inside, FLT_MIN);
  search.first = false;
  if (kMeasure != Measure::kMass && !search.found()) {  // there are not so many
    search.done = true;
  } else if (sums.highest <= -sums.minus_lowest) {  // one value is left, or none
    search.high = sums.neutral() ? search.high : sums.highest;
    search.done = true;
  } else {
    search.narrow(sums);
    // What lies above low is just what is wanted, or a single token.
    search.done = kMeasure == Measure::kMass
                      ? search.low > -INFINITY && search.inside < 1.5F * limits.probability(search.low)
                      : search.above + search.inside == search.wanted;
    if (search.done) search.high = nextafterf(search.low, INFINITY);
    search.place_pivots();
  }
  return search;
}

// `all`: over all tokens of the row, not those that an earlier search has left.
template <Measure kMeasure>
__device__ Search run(RowGroup& blocks, const Part& part, const Limits& limits, Search search, bool all) {
  for (int look = 0; !search.done; ++look) {
    // After two looks at everything few are left.
    const Sums sums = measure<kMeasure>(part, limits, search, all && look < 2);
    search = blocks.reduce(sums, [&](const Sums& total) { return advance<kMeasure>(search, total, limits); });
  }
  return search;
}

// The k most likely tokens, and those as likely as the last of them.
__device__ void cut_top_k(RowGroup& blocks, const Part& part, Limits& limits, int k, float unit) {
  const Search search =
      run<Measure::kCount>(blocks, part, limits, Search(limits.top, unit, static_cast<float>(k)), true);
  if (search.found()) limits.cut = search.high;
}

// The fewest most likely tokens whose probabilities, among those left, sum to top_p; of equal ones the first.
__device__ void cut_top_p(RowGroup& blocks, const Part& part, Limits& limits, float top_p, float unit,
                          bool all) {
  const Search search = run<Measure::kMass>(blocks, part, limits, Search(limits.top, unit, top_p), all);
  limits.cut = search.high;
  const float each = limits.probability(limits.cut);
  const float wanted = fmaxf(ceilf((search.wanted - search.above) / each), 1.0F);
  if (wanted + 0.5F > search.inside / each) return;  // all that are equal
  constexpr float kUnit = 1024;
  const Search ties = run<Measure::kTies>(blocks, part, limits, Search(0.0F, kUnit, wanted), false);
  limits.last_id = static_cast<int>(-ties.high);
}

__device__ Limits find_limits(RowGroup& blocks, const Part& part, const SampledRow& params, float top) {
  Limits limits{.top = top,
                .inverse_temperature = 1.0F / params.temperature,
                .least_scaled = -INFINITY,
                .cut = -INFINITY,
                .last_id = INT_MAX};
  if (params.min_p > 0.0F)
    limits.least_scaled = __fadd_rn(__fmul_rn(top, limits.inverse_temperature), logf(params.min_p));
  // The first pivots: from half a nat to 32 below the top, and apart at all.
  const float unit = fmaxf(params.temperature * 0.5F, fabsf(top) * 0x1p-18F);
  if (params.top_k > 0) cut_top_k(blocks, part, limits, params.top_k, unit);
  if (params.top_p < 1.0F) cut_top_p(blocks, part, limits, params.top_p, unit, params.top_k <= 0);
  return limits;
}

// Reads the block's part of a row; what may not be sampled is -inf.
template <bool kAligned>
__device__ Part load_part(const SampleArgs& args, const SampledRow& params, const float* row, int rank,
                          float4* values, unsigned* left) {
  const int begin = min(rank * args.slice, args.groups);
  const Part part{
      .values = values, .left = left, .first_id = 4 * begin, .groups = min(args.slice, args.groups - begin)};
#pragma unroll 4
  for (int g = static_cast<int>(threadIdx.x); g < part.groups; g += kThreads)
    copy_group<kAligned>(values + g, row, begin + g, args.vocab);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  if (params.masked_begin >= params.masked_end) return part;
  __syncthreads();
  for (int i = params.masked_begin + static_cast<int>(threadIdx.x); i < params.masked_end; i += kThreads) {
    const int index = args.masked_ids[i] - part.first_id;
    if (index >= 0 && index < 4 * part.groups) reinterpret_cast<float*>(values)[index] = -INFINITY;
  }
  __syncthreads();
  return part;
}

// The largest logit and its first token.
__device__ Best find_top(RowGroup& blocks, const Part& part) {
  Best best;
  float top = -INFINITY;
  float highest = -INFINITY;
  int token = part.first_id;
  part.for_groups([&](const float4& logits, int id) {
    top = max_nan(top, max_nan(logits));
    take_higher(logits, id, highest, token);
  });
  best.offer(highest, token);
  best.top = ordered(top);
  return blocks.reduce(best);
}

template <bool kAligned>
__device__ void sample_row(RowGroup& blocks, const SampleArgs& args, int r, float4* values, unsigned* left) {
  __shared__ unsigned shared_best;
  const SampledRow params(args, r);
  if (threadIdx.x == 0) shared_best = ordered(-INFINITY);
  const Part part =
      load_part<kAligned>(args, params, args.logits + r * args.row_stride, blocks.rank(), values, left);
  Best best = find_top(blocks, part);
  if (params.draws() && best.token() != kInvalidLogits) {
    const Limits limits = find_limits(blocks, part, params, from_ordered(best.top));
    Race race(params, &shared_best);
    Best raced;
    raced.top = best.top;
    part.for_groups([&](const float4& logits, int id) {
      const float4 kept = {limits.keeps(logits.x, id) ? logits.x : -INFINITY,
                           limits.keeps(logits.y, id + 1) ? logits.y : -INFINITY,
                           limits.keeps(logits.z, id + 2) ? logits.z : -INFINITY,
                           limits.keeps(logits.w, id + 3) ? logits.w : -INFINITY};
      if (max_nan(kept) == -INFINITY) return;
      race.refresh();
      race.visit(id / 4, kept, raced);
    });
    best = blocks.reduce(raced);
  }
  if (blocks.rank() == 0 && threadIdx.x == 0) write_token(args, r, params.slot, best.token());
}

// Clusters take turns at the rows that are theirs. `scratch`: the blocks' parts, where shared memory is too
// small for them.
template <bool kAligned>
__global__ void QUIRE_ROW_CLUSTER __launch_bounds__(kThreads, 2)
    sample_filtered_kernel(const __grid_constant__ SampleArgs args, int words, float4* scratch) {
  extern __shared__ uint4 shared[];
  __shared__ unsigned wanted[kThreads / 32];
  RowGroup blocks;
  cudaTriggerProgrammaticLaunchCompletion();
  auto* left = reinterpret_cast<unsigned*>(shared);
  float4* values = scratch != nullptr ? scratch + std::int64_t{blockIdx.x} * args.slice
                                      : reinterpret_cast<float4*>(left + words * kThreads);
  const int clusters = static_cast<int>(gridDim.x) / blocks.size();
  const int cluster = static_cast<int>(blockIdx.x) / blocks.size();
  blocks.ready();
  cudaGridDependencySynchronize();
  int turn = 0;
  for (int base = 0; base < args.num_rows; base += kThreads) {
    const int candidate = base + static_cast<int>(threadIdx.x);
    const bool mine = candidate < args.num_rows && !SampledRow(args, candidate).plain();
    const unsigned votes = __ballot_sync(~0U, mine);
    if (threadIdx.x % 32 == 0) wanted[threadIdx.x / 32] = votes;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w) {
      for (unsigned bits = wanted[w]; bits != 0; bits &= bits - 1) {
        if (turn++ % clusters != cluster) continue;
        sample_row<kAligned>(blocks, args, base + 32 * w + __ffs(static_cast<int>(bits)) - 1, values, left);
      }
    }
    __syncthreads();
  }
}

// How a launch for `rows` rows of a vocabulary is laid out.
struct Plan {
  int words;                 // of marks, for each thread
  bool fits;                 // a block's part in its shared memory
  std::size_t shared_bytes;  // of a block
  int blocks;

  Plan(int rows, std::int64_t vocab_size, int num_sms) {
    const auto limit = static_cast<std::size_t>(max_shared_bytes());
    const std::size_t groups = static_cast<std::size_t>(slice_of(vocab_size));
    constexpr std::size_t kPerWord = kThreads * kGroupsPerWord;
    words = static_cast<int>((groups + kPerWord - 1) / kPerWord);
    const std::size_t marks = static_cast<std::size_t>(words) * kThreads * sizeof(unsigned);
    const std::size_t part = groups * sizeof(float4);
    fits = row_group_size() > 1 && marks + part <= limit;
    shared_bytes = fits ? marks + part : marks;
    const bool two = 2 * (shared_bytes) <= limit;
    blocks = std::min(rows, std::max((two ? 2 : 1) * num_sms / row_group_size(), 1)) * row_group_size();
  }

  // Of the dynamic kind that a block can have.
  static int max_shared_bytes() {
    static const int bytes = [] {
      constexpr int kOthers = 8192;  // the kernel's own variables, and what the driver takes
      int device = 0;
      int all = 0;
      check(cudaGetDevice(&device), "the current device");
      check(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
      return all - kOthers;
    }();
    return bytes;
  }

  std::size_t scratch_bytes(std::int64_t vocab_size) const {
    return fits ? 0 : static_cast<std::size_t>(blocks * slice_of(vocab_size)) * sizeof(float4);
  }
};

template <bool kAligned>
void launch_filtered(const LaunchContext& context, const SampleArgs& args, float4* scratch) {
  const Plan plan(args.num_rows, args.vocab, context.num_sms);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(sample_filtered_kernel<kAligned>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Plan::max_shared_bytes());
  check(allowed, "shared memory for sampling");
  launch(context, "sample_filtered", sample_filtered_kernel<kAligned>,
         dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads), plan.shared_bytes, args, plan.words,
         plan.fits ? nullptr : scratch);
}

}  // namespace

std::size_t filtered_workspace_bytes(int max_rows, std::int64_t vocab_size, int num_sms) {
  return Plan(max_rows, vocab_size, num_sms).scratch_bytes(vocab_size);
}

void sample_filtered(const LaunchContext& context, const SampleArgs& args, bool aligned,
                     const Tensor& workspace) {
  auto* scratch = workspace.data_as<float4>();
  aligned ? launch_filtered<true>(context, args, scratch) : launch_filtered<false>(context, args, scratch);
}

}  // namespace quire::cuda
