#pragma once

#include <cfloat>
#include <climits>

#include "backends/cuda/kernels/sampling_race.cuh"

namespace quire::cuda {

// Rows with top-k, top-p or min-p. The blocks of a row hold it in shared memory and search
// there for the logit at which top-k or top-p cut, by counts or probability mass above several pivots at a
// time: no sort, and sums in a fixed order. Then the tokens that are left race.

constexpr int kSampleThreads = 512;  // of a block
constexpr int kGroupsPerWord = 8;    // of four tokens, a bit each

// What a block holds of a row. Thread t owns the groups t, t + kSampleThreads, …
struct Part {
  float4* values;  // [groups]
  unsigned* left;  // [words][kSampleThreads]: the tokens that a search has not decided yet, a bit each
  int first_id, groups;

  // Calls f(logits, first id) for the thread's groups.
  template <typename F>
  __device__ void for_groups(F&& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int base = static_cast<int>(threadIdx.x) - lane; base < groups; base += kSampleThreads) {
      if (base + lane < groups) f(values[base + lane], first_id + 4 * (base + lane));
      __syncwarp();  // f takes different ways
    }
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
      word += kSampleThreads;
    });
  }

  // Calls f(logit, id) for the thread's tokens that are left; where it returns false, they no longer are.
  template <typename F>
  __device__ void for_left(F&& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned* word = left + threadIdx.x;
    constexpr int kStep = kGroupsPerWord * kSampleThreads;
#pragma unroll 1
    for (int base = static_cast<int>(threadIdx.x) - lane; base < groups;
         base += kStep, word += kSampleThreads) {
      unsigned kept = base + lane < groups ? *word : 0;
      unsigned bits = kept;
#pragma unroll 1
      while (__any_sync(~0U, bits != 0)) {
        if (bits == 0) continue;
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        const int index = 4 * (base + lane + bit / 4 * kSampleThreads) + bit % 4;
        if (!f(reinterpret_cast<const float*>(values)[index], first_id + index)) kept &= ~(1U << bit);
        bits &= bits - 1;
      }
      if (base + lane < groups) *word = kept;
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
    for (int i = 0; i < kPivots; ++i)
      if (value > pivots[i]) above[i] += weight;
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
__device__ Search run_search(RowGroup& blocks, const Part& part, const Limits& limits, Search search,
                             bool all) {
  for (int look = 0; !search.done; ++look) {
    // After two looks at everything few are left.
    const Sums sums = measure<kMeasure>(part, limits, search, all && look < 2);
    search = blocks.reduce(sums, [&](const Sums& total) { return advance<kMeasure>(search, total, limits); });
  }
  return search;
}

// The k most likely tokens, and those as likely as the last of them.
__device__ inline void cut_top_k(RowGroup& blocks, const Part& part, Limits& limits, int k, float unit) {
  const Search search = run_search<Measure::kCount>(blocks, part, limits,
                                                    Search(limits.top, unit, static_cast<float>(k)), true);
  if (search.found()) limits.cut = search.high;
}

// The fewest most likely tokens whose probabilities, among those left, sum to top_p; of equal ones the first.
__device__ inline void cut_top_p(RowGroup& blocks, const Part& part, Limits& limits, float top_p, float unit,
                                 bool all) {
  const Search search =
      run_search<Measure::kMass>(blocks, part, limits, Search(limits.top, unit, top_p), all);
  limits.cut = search.high;
  const float each = limits.probability(limits.cut);
  const float wanted = fmaxf(ceilf((search.wanted - search.above) / each), 1.0F);
  if (wanted + 0.5F > search.inside / each) return;  // all that are equal
  constexpr float kUnit = 1024;
  const Search ties = run_search<Measure::kTies>(blocks, part, limits, Search(0.0F, kUnit, wanted), false);
  limits.last_id = static_cast<int>(-ties.high);
}

__device__ inline Limits find_limits(RowGroup& blocks, const Part& part, const SampledRow& params,
                                     float top) {
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

// Reads the block's part of a row.
template <bool kAligned>
__device__ Part load_part(const SampleArgs& args, const float* row, int rank, float4* values,
                          unsigned* left) {
  const int begin = min(rank * args.slice, args.groups);
  const Part part{
      .values = values, .left = left, .first_id = 4 * begin, .groups = min(args.slice, args.groups - begin)};
#pragma unroll 4
  for (int g = static_cast<int>(threadIdx.x); g < part.groups; g += kSampleThreads)
    copy_group<kAligned>(values + g, row, begin + g, args.vocab);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  return part;
}

// The largest logit and its first token.
__device__ inline Best find_top(RowGroup& blocks, const Part& part) {
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

// The thread's part in the row's token; to be combined.
template <bool kAligned>
__device__ Best sample_filtered(RowGroup& blocks, const SampleArgs& args, const SampledRow& params,
                                const float* row, float4* values, unsigned* left, unsigned* shared_best) {
  const Part part = load_part<kAligned>(args, row, blocks.rank(), values, left);
  const Best best = find_top(blocks, part);
  if (!params.draws() || best.token() == kInvalidLogits) return best;
  const Limits limits = find_limits(blocks, part, params, from_ordered(best.top));
  Race race(params, shared_best);
  Best raced;
  raced.top = best.top;
  part.for_groups([&](const float4& logits, int id) {
    const float4 kept[1] = {{limits.keeps(logits.x, id) ? logits.x : -INFINITY,
                             limits.keeps(logits.y, id + 1) ? logits.y : -INFINITY,
                             limits.keeps(logits.z, id + 2) ? logits.z : -INFINITY,
                             limits.keeps(logits.w, id + 3) ? logits.w : -INFINITY}};
    if (max_nan(kept[0]) == -INFINITY) return;
    race.refresh();
    race.visit<1, 0>(id / 4, kept, raced);
  });
  return raced;
}

}  // namespace quire::cuda
