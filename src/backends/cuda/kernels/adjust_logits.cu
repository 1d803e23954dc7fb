// What changes logits before sampling: biases, masks, penalties. A block takes a slice of one changed row.
// Bytes: of a row with penalties its token states, 2 * vocab, and the logits of the few tokens that have one;
// with a bitmask the logits of what it does not allow, at most 4 * vocab; of another row next to nothing.
// 256 rows x 151936 with penalties: 78 MB, 18 us at 4.3 TB/s; with bitmasks: 156 MB, 36 us.
// Measured on an H200, bench/cuda/logits_bench, with 800 such tokens a row, for 256 / 32 / 1 rows: 93 / 14 /
// 7.9 us (19 % of the bandwidth at 256 rows: a block waits for one read after the other).
#include "backends/cuda/kernels/sampling.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSlice = 8192;  // tokens of a block
constexpr int kWide = 8;      // token states that are read at once

struct Mask {
  int id, after;
};

struct AdjustArgs {
  float* logits;
  std::int64_t row_stride;
  const int* last_tokens;
  const int* rows;
  const int* seats;
  const int* state_uses;
  const float* repetition;
  const float* frequency;
  const float* presence;
  const int* bias_starts;
  const int* bias_ids;
  const float* bias_values;
  const int* mask_starts;
  const Mask* masks;
  const int* bitmask_rows;  // null: no row has one
  const unsigned* bitmasks;
  int bitmask_words;  // of a row
  std::uint16_t* states;
  std::int64_t state_stride;
  int vocab;
};

struct Penalties {
  float repetition, frequency, presence;

  __device__ float apply(float logit, unsigned state) const {
    if ((state & token_state::kForbidden) != 0) return -INFINITY;
    const unsigned count = state & token_state::kMaxCount;
    if (count > 0 || (state & token_state::kInPrompt) != 0)
      logit = logit > 0 ? logit / repetition : logit * repetition;
    logit -= frequency * static_cast<float>(count);
    return count > 0 ? logit - presence : logit;
  }
};

// The states of tokens [begin, end) of a row, by the thread that each group of kWide belongs to: it counts
// the last token, if that is its own, and nobody else looks at that state.
__device__ void apply_states(const Penalties& penalties, float* logits, std::uint16_t* states, int last_token,
                             int begin, int end) {
  for (int first = begin + kWide * static_cast<int>(threadIdx.x); first < end; first += kWide * kThreads) {
    uint4 words = *reinterpret_cast<const uint4*>(states + first);
    auto* group = reinterpret_cast<std::uint16_t*>(&words);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      if (first + i != last_token || (group[i] & token_state::kMaxCount) == token_state::kMaxCount) continue;
      states[last_token] = ++group[i];
    }
    if ((words.x | words.y | words.z | words.w) == 0) continue;
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if (group[i] != 0 && first + i < end) logits[first + i] = penalties.apply(logits[first + i], group[i]);
  }
}

__global__ void __launch_bounds__(kThreads) adjust_kernel(const __grid_constant__ AdjustArgs args) {
  admit_next_kernel();
  wait_for_kernels();
  const unsigned i = blockIdx.y;
  const int begin = static_cast<int>(blockIdx.x) * kSlice;
  const int end = min(begin + kSlice, args.vocab);
  const auto inside = [&](int id) { return id >= begin && id < end; };
  const int seat = args.seats[i];
  const int last_token = args.last_tokens[seat];
  float* logits = args.logits + args.rows[i] * args.row_stride;

  for (int b = args.bias_starts[i] + static_cast<int>(threadIdx.x); b < args.bias_starts[i + 1];
       b += kThreads) {
    if (inside(args.bias_ids[b])) logits[args.bias_ids[b]] += args.bias_values[b];
  }
  __syncthreads();
  for (int m = args.mask_starts[i] + static_cast<int>(threadIdx.x); m < args.mask_starts[i + 1];
       m += kThreads) {
    const Mask mask = args.masks[m];
    if (inside(mask.id) && (mask.after < 0 || mask.after == last_token)) logits[mask.id] = -INFINITY;
  }
  const int bitmask = args.bitmask_rows == nullptr ? -1 : args.bitmask_rows[i];
  if (bitmask >= 0) {  // a warp reads one word
    const unsigned* words = args.bitmasks + static_cast<std::int64_t>(bitmask) * args.bitmask_words;
    for (int id = begin + static_cast<int>(threadIdx.x); id < end; id += kThreads)
      if ((words[id / 32] >> id % 32 & 1) == 0) logits[id] = -INFINITY;
  }
  const auto use = static_cast<StateUse>(args.state_uses[i]);
  if (use == StateUse::kNone) return;
  __syncthreads();
  const Penalties penalties{args.repetition[i], args.frequency[i], args.presence[i]};
  apply_states(penalties, logits, args.states + seat * args.state_stride,
               use == StateUse::kCountLastAndRead ? last_token : -1, begin, end);
}

__global__ void set_states_kernel(std::uint16_t* states, const int2* entries, int count) {
  admit_next_kernel();
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  wait_for_kernels();
  states[entries[i].x] = static_cast<std::uint16_t>(entries[i].y);
}

}  // namespace

void set_token_states(const LaunchContext& context, const Tensor& seat_states, const Tensor& entries) {
  const auto count = static_cast<int>(entries.dim(0));
  if (count == 0) return;
  launch(context, "set_token_states", set_states_kernel, ceil_div(count, kThreads), kThreads, 0,
         seat_states.data_as<std::uint16_t>(), entries.data_as<const int2>(), count);
}

void adjust_logits(const LaunchContext& context, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment) {
  if (adjustment.num_rows == 0) return;
  const AdjustArgs args{.logits = logits.data_as<float>(),
                        .row_stride = logits.stride(0),
                        .last_tokens = last_tokens.data_as<const int>(),
                        .rows = adjustment.rows.data_as<const int>(),
                        .seats = adjustment.seats.data_as<const int>(),
                        .state_uses = adjustment.state_uses.data_as<const int>(),
                        .repetition = adjustment.repetition.data_as<const float>(),
                        .frequency = adjustment.frequency.data_as<const float>(),
                        .presence = adjustment.presence.data_as<const float>(),
                        .bias_starts = adjustment.bias_starts.data_as<const int>(),
                        .bias_ids = adjustment.bias_ids.data_as<const int>(),
                        .bias_values = adjustment.bias_values.data_as<const float>(),
                        .mask_starts = adjustment.mask_starts.data_as<const int>(),
                        .masks = adjustment.masks.data_as<const Mask>(),
                        .bitmask_rows = adjustment.bitmask_rows.data_as<const int>(),
                        .bitmasks = adjustment.bitmasks.data_as<const unsigned>(),
                        .bitmask_words = static_cast<int>((logits.dim(1) + 31) / 32),
                        .states = adjustment.token_states.data_as<std::uint16_t>(),
                        .state_stride = adjustment.token_states.stride(0),
                        .vocab = static_cast<int>(logits.dim(1))};
  const dim3 grid(ceil_div(logits.dim(1), kSlice), adjustment.num_rows);
  launch(context, "adjust_logits", adjust_kernel, grid, kThreads, 0, args);
}

}  // namespace quire::cuda
