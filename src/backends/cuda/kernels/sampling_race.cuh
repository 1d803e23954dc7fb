#pragma once

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernels/row_group.cuh"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/philox.h"

namespace quire::cuda {

constexpr int kInvalidLogits = -2;

// Logits and the parameters of every row, as the kernels see them. Four neighbouring tokens are a group,
// which shares one draw of random numbers; each block of a cluster takes `slice` of its row's groups.
struct SampleArgs {
  const float* logits;
  std::int64_t row_stride;
  int num_rows, vocab, groups, slice;
  const float* temperature;
  const float* top_p;
  const float* min_p;
  const int* top_k;
  const std::int64_t* seeds;
  const int* positions;
  const int* seats;
  int* tokens;
  int* last_tokens;
};

struct SampledRow {
  float temperature, top_p, min_p;
  int top_k;
  std::uint64_t seed;
  std::uint32_t position;
  int seat;

  __device__ SampledRow(const SampleArgs& args, int row)
      : temperature(args.temperature[row]),
        top_p(args.top_p[row]),
        min_p(args.min_p[row]),
        top_k(args.top_k[row]),
        seed(static_cast<std::uint64_t>(args.seeds[row])),
        position(static_cast<std::uint32_t>(args.positions[row])),
        seat(args.seats[row]) {}

  __device__ bool draws() const { return temperature > 0.0F; }
  // Whether one look at each logit is enough.
  __device__ bool plain() const {
    const bool filters = top_k > 0 || top_p < 1.0F || min_p > 0.0F;
    return !(draws() && filters);
  }
};

// As MultiplyWide, in the form that the compiler turns into one instruction.
struct MultiplyHighLow {
  __host__ __device__ constexpr WideProduct operator()(std::uint32_t a, std::uint32_t b) const {
#ifdef __CUDA_ARCH__
    return {a * b, __umulhi(a, b)};
#else
    return MultiplyWide{}(a, b);
#endif
  }
};

__device__ inline float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline float max_nan(const float4& v) { return max_nan(max_nan(v.x, v.y), max_nan(v.z, v.w)); }

// What a thread, and then the whole row, found: the best score with its token, and the largest logit.
struct Best {
  unsigned score = 0;  // ordered; 0: none
  unsigned id = 0;     // complemented, so that of equal scores the first token is above
  unsigned top = 0;    // ordered

  __device__ void offer(float value, int token) {
    const unsigned order = ordered(value);
    const unsigned complement = ~static_cast<unsigned>(token);
    if (order > score || (order == score && complement > id)) {
      score = order;
      id = complement;
    }
  }
  __device__ int token() const {
    const bool finite = top > ordered(-INFINITY) && top < ordered(INFINITY);
    return finite && score != 0 ? static_cast<int>(~id) : kInvalidLogits;
  }
  __device__ bool neutral() const { return score == 0 && top == 0; }
};

// Of equal groups of lanes, if fewer than a warp.
template <int kLanes>
__device__ Best combine_lanes(const Best& best) {
  Best result;
  result.score = __reduce_max_sync(~0U, best.score);
  result.id = __reduce_max_sync(~0U, best.score == result.score ? best.id : 0);
  result.top = __reduce_max_sync(~0U, best.top);
  return result;
}

__device__ inline float element(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// Keeps the highest logit seen and its first token, of a thread that sees tokens in order.
__device__ inline void take_higher(const float4& logits, int first_id, float& highest, int& token) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    token = element(logits, i) > highest ? first_id + i : token;
    highest = fmaxf(element(logits, i), highest);
  }
}

// Starts the copy of a group of `row` to `to`, of the thread's pipeline; what lies past the vocabulary is
// -inf. kAligned: rows start at multiples of 16 bytes.
template <bool kAligned>
__device__ void copy_group(float4* to, const float* row, int group, int vocab) {
  const float* from = row + 4 * std::int64_t{group};
  if (kAligned && group < vocab / 4) {
    __pipeline_memcpy_async(to, from, sizeof(float4));
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    float* element = reinterpret_cast<float*>(to) + i;
    if (4 * group + i < vocab) {
      __pipeline_memcpy_async(element, from + i, sizeof(float));
    } else {
      *element = -INFINITY;
    }
  }
}

// The race of all tokens of a row: score = logit / temperature - log(E), E exponential; the largest wins
// (Gumbel-max). Few tokens can win: from E >= u, the uniform number behind it, score <= logit / temperature -
// log(u), so a group whose largest logit and smallest u cannot reach a score that is known already is passed
// over without a logarithm. That never changes the winner.
class Race {
 public:
  // `shared_best`, of the block, starts as ordered(-inf).
  __device__ Race(const SampledRow& row, unsigned* shared_best)
      : seed_(row.seed),
        position_(row.position),
        inverse_temperature_(1.0F / row.temperature),
        slope_(inverse_temperature_ * kLog2E),
        shared_best_(shared_best) {}

  // Gives the block a first score to beat: of each thread, the token that looks best in one group. To be
  // called by whole warps and followed by a barrier.
  __device__ void seed(int group, const float4& logits) {
    const auto bits = random_bits(group);
    float best = -INFINITY;
    int chosen = -1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float bound = element(logits, i) * slope_ - __log2f(static_cast<float>(bits[i]) + 0.5F);
      if (bound > best) {
        best = bound;
        chosen = i;
      }
    }
    float value = 0;
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value = chosen == i ? element(logits, i) : value;
      word = chosen == i ? bits[i] : word;
    }
    const unsigned first = __reduce_max_sync(~0U, chosen < 0 ? 0 : ordered(score(value, word)));
    if (threadIdx.x % 32 == 0) atomicMax(shared_best_, first);
  }

  // Takes over what the block's other threads have found.
  __device__ void refresh() {
    const float best = from_ordered(*static_cast<volatile unsigned*>(shared_best_)) * kLog2E;
    // u in units of 2^-32; a margin for the rounding of the bound and of scores.
    limit_ = 32.02F - best + fabsf(best) * 0x1p-20F;
  }

  // The groups `group` and those kStride after one another.
  template <int kGroups, int kStride>
  __device__ void visit(int group, const float4 (&logits)[kGroups], Best& best) {
    std::array<std::uint32_t, 4> bits[kGroups];
    bool hopeful = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      bits[g] = random_bits(group + g * kStride);
      const std::uint32_t least = min(min(bits[g][0], bits[g][1]), min(bits[g][2], bits[g][3]));
      hopeful |= can_win(max_nan(logits[g]), least);
    }
    if (!hopeful) return;
    unsigned candidates = 0;
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i)
      candidates |= can_win(element(logits[i / 4], i % 4), bits[i / 4][i % 4]) ? 1U << i : 0;
#pragma unroll 1
    for (; candidates != 0; candidates &= candidates - 1) {
      const int chosen = __ffs(static_cast<int>(candidates)) - 1;
      float value = 0;
      std::uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        value = i == chosen ? element(logits[i / 4], i % 4) : value;
        word = i == chosen ? bits[i / 4][i % 4] : word;
      }
      const float reached = score(value, word);
      best.offer(reached, 4 * (group + chosen / 4 * kStride) + chosen % 4);
      atomicMax(shared_best_, ordered(reached));
    }
  }

 private:
  static constexpr float kLog2E = 1.44269504F;

  // Whether u <= exp(logit / temperature - the score to beat).
  __device__ bool can_win(float logit, std::uint32_t bits) const {
    return static_cast<float>(bits) <= exp2_approx(logit * slope_ + limit_);
  }
  __device__ std::array<std::uint32_t, 4> random_bits(int group) const {
    return philox4x32(seed_, {static_cast<std::uint32_t>(group), position_, 0, 0}, MultiplyHighLow{});
  }
  // As the reference has it, to the last operation.
  __device__ float score(float logit, std::uint32_t bits) const {
    const float uniform = fminf(__fmul_rn(__fadd_rn(static_cast<float>(bits), 0.5F), 0x1p-32F), kMostUniform);
    return __fsub_rn(__fmul_rn(logit, inverse_temperature_), logf(-log1pf(-uniform)));
  }

  std::uint64_t seed_;
  std::uint32_t position_;
  float inverse_temperature_, slope_;
  float limit_ = INFINITY;
  unsigned* shared_best_;
};

}  // namespace quire::cuda
