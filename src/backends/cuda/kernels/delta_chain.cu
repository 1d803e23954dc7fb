// Spans of the gated delta rule, chunk by chunk: see delta_chunks.cuh.
#include <algorithm>

#include "backends/cuda/kernels/delta_chunks.cuh"

namespace quire::cuda {
namespace {

constexpr int kWideColumns = 64;

// kColumns: of values, of a block; a warp has 16 of them.
template <int kColumns>
struct ChainStage {
  ChunkKeys keys;
  __half values[kChunk * kColumns];  // the bits of a T
  ChunkFactors factors;
};
template <int kColumns>
struct ChainShared {
  ChainStage<kColumns> stages[2];
  __half solution[kChunk * kChunk], scores[kChunk * kChunk];
};

__device__ void copy_all_async(void* to, const void* from, int bytes) {
  for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += static_cast<int>(blockDim.x) * 16)
    copy_async_16(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, true);
}

// What a block goes along with: a value head's columns of one span.
template <typename T>
struct ChainPlace {
  const ChunkArgs<T>& args;
  LongSpan span;
  ChunkRows all;  // of the span
  int head, column;

  __device__ const ChunkRule& rule(int chunk) const {
    return args.rules[std::int64_t{chunk - args.begin} * args.num_value_heads + head];
  }
  template <int kColumns>
  __device__ void load_stage(ChainStage<kColumns>& stage, int chunk) const {
    const int key_head = head / (args.num_value_heads / args.num_key_heads);
    copy_all_async(&stage.keys, &args.keys[std::int64_t{chunk - args.begin} * args.num_key_heads + key_head],
                   sizeof(ChunkKeys));
    copy_all_async(&stage.factors, &rule(chunk).factors, sizeof(ChunkFactors));
    const ChunkRows rows = rows_of(span, all, chunk);
    const T* values = args.qkv.data + 2 * args.num_key_heads * kKeyDim + head * args.value_dim + column;
    for (int i = static_cast<int>(threadIdx.x); i < kChunk * kColumns / 8; i += 2 * kColumns) {
      const int row = i / (kColumns / 8), at = i % (kColumns / 8) * 8;
      const bool there = row < rows.count;
      copy_async_16(stage.values + place<kColumns>(row, at),
                    values + (rows.first + (there ? row : 0)) * args.qkv.stride + at, there);
    }
  }
  // Of this warp's state, transposed, the lane's places: calls f(n, i, element of the slot).
  template <typename F>
  __device__ void for_state(F&& f) const {
    const auto warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kKeyDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * n + lane % 4 * 2 + i % 2;
        f(n, i,
          std::int64_t{head * kKeyDim + key} * args.value_dim + column + 16 * warp + lane / 4 + i / 2 * 8);
      }
    }
  }
};

// As a left operand, the sums of two neighbouring products.
__device__ void pack_operand(std::uint32_t (&to)[4], const float (&left)[4], const float (&right)[4],
                             float factor = 1) {
  to[0] = pack(left[0] * factor, left[1] * factor, __half());
  to[1] = pack(left[2] * factor, left[3] * factor, __half());
  to[2] = pack(right[0] * factor, right[1] * factor, __half());
  to[3] = pack(right[2] * factor, right[3] * factor, __half());
}

__device__ void pack_tokens(std::uint32_t (&to)[4][4], const float (&sums)[8][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pack_operand(to[i], sums[2 * i], sums[2 * i + 1]);
}

// sums [16, tokens] += left [16, 16 * kSteps] · tileᵀ, with tile [tokens, 16 * kSteps]; kTriangle: which is
// zero above the diagonal.
template <bool kTriangle, int kSteps>
__device__ void multiply_tile(float (&sums)[8][4], const std::uint32_t (&left)[kSteps][4],
                              const __half* tile) {
  const std::uint32_t corner = right_corner<16 * kSteps>(tile);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int block = kTriangle ? step : 0; block < kChunk / 16; ++block) {
      std::uint32_t right[4];
      load_matrices(right, corner_at<16 * kSteps>(corner, 16 * block, 16 * step));
      multiply_add<__half>(sums[2 * block], left[step], right[0], right[1]);
      multiply_add<__half>(sums[2 * block + 1], left[step], right[2], right[3]);
    }
  }
}

// state [16, keys] += left [16, tokens] · keys [tokens, keys].
__device__ void add_to_state(float (&state)[16][4], const std::uint32_t (&left)[4][4], const __half* keys) {
  const std::uint32_t corner = left_corner<kKeyDim>(keys);
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
#pragma unroll
    for (int block = 0; block < kKeyDim / 16; ++block) {
      std::uint32_t right[4];
      load_matrices_transposed(right, corner_at<kKeyDim>(corner, 16 * step, 16 * block));
      multiply_add<__half>(state[2 * block], left[step], right[0], right[1]);
      multiply_add<__half>(state[2 * block + 1], left[step], right[2], right[3]);
    }
  }
}

// The sum of value(n, i) of this lane, without their signs.
template <int kBlocks, typename F>
__device__ float size_of(F&& value) {
  float sums[4] = {};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += fabsf(value(n, i));
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A warp's columns of a chunk's values, transposed: two neighbours of a T in each.
template <int kColumns>
__device__ void load_values(std::uint32_t (&values)[4][4], const ChainStage<kColumns>& stage) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t corner = corner_at<kColumns>(right_corner<kColumns>(stage.values), 0, 16 * warp);
#pragma unroll
  for (int block = 0; block < kChunk / 16; ++block)
    load_matrices_transposed(values[block], corner_at<kColumns>(corner, 16 * block, 0));
}
template <typename T>
__device__ float value_of(const std::uint32_t (&values)[4][4], int n, int i) {
  return widen(T{static_cast<std::uint16_t>(values[n / 2][n % 2 * 2 + i / 2] >> (i % 2 * 16) & 0xFFFFU)});
}

// What a warp carries from chunk to chunk: its state times inverse_unit is S.
struct ChainWarp {
  float state[16][4] = {};
  float inverse_unit = 1;
};

// Of sizes of the warp's lanes the power of two that takes the largest into [1, 2), inverted. Limits keep
// the quotient of two units finite.
__device__ float inverse_unit_of(float size) {
  const std::uint32_t exponent = __reduce_max_sync(~0U, __float_as_uint(size)) >> 23;
  return __uint_as_float(min(max(exponent, 67U), 187U) << 23);
}
__device__ float inverse_of_power(float power) {
  return __uint_as_float((254U << 23) - __float_as_uint(power));
}

// f(sums of a token pair, factors of the two).
template <typename F>
__device__ void for_tokens(const float (&factors)[kChunk], F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const auto pair = load_vec<2>(factors + 8 * n + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, pair.values[i % 2]);
  }
}

// One chunk: `results`, out [16, tokens], in units of what is left in the warp. wait: for solution and
// scores; release: of them.
template <typename T, int kColumns, typename Wait, typename Release>
__device__ void take_chunk(ChainWarp& warp, const ChainShared<kColumns>& shared,
                           const ChainStage<kColumns>& stage, float (&results)[8][4], Wait&& wait,
                           Release&& release) {
  std::uint32_t values[4][4], left[8][4], of_tokens[4][4];
  load_values(values, stage);
  const auto value = [&](int n, int i) { return value_of<T>(values, n, i); };
  const float size = size_of<16>([&](int n, int i) { return warp.state[n][i]; }) * warp.inverse_unit;
  const float inverse = inverse_unit_of(fmaxf(size_of<8>(value), size));
  const float unit = inverse_of_power(inverse), change = unit * warp.inverse_unit;
  warp.inverse_unit = inverse;
#pragma unroll
  for (int i = 0; i < 8; ++i) pack_operand(left[i], warp.state[2 * i], warp.state[2 * i + 1], change);
  float sums[8][4] = {};
  multiply_tile<false>(sums, left, stage.keys.keys);
  for_tokens(stage.factors.seen,
             [&](int n, int i, float factor) { sums[n][i] = fmaf(-factor, sums[n][i], unit * value(n, i)); });
  pack_tokens(of_tokens, sums);
  multiply_tile<false>(results, left, stage.keys.queries);
  wait();
  float deltas[8][4] = {};
  multiply_tile<true>(deltas, of_tokens, shared.solution);
  pack_tokens(of_tokens, deltas);
  for_tokens(stage.factors.read, [&](int n, int i, float factor) { results[n][i] *= factor; });
  multiply_tile<true>(results, of_tokens, shared.scores);
  release();
  for_tokens(stage.factors.kept, [&](int n, int i, float factor) { deltas[n][i] *= factor; });
  pack_tokens(of_tokens, deltas);
  const float decay = stage.factors.decay * change;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) warp.state[n][i] *= decay;
  }
  add_to_state(warp.state, of_tokens, stage.keys.keys);
}

template <typename T>
__device__ void store_results(const ChainPlace<T>& place, int chunk, const float (&results)[8][4],
                              float factor) {
  const auto warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const ChunkRows rows = rows_of(place.span, place.all, chunk);
  const std::int64_t stride = place.args.out.stride;
  int row = lane % 4 * 2;
  float* out = place.args.out[rows.first + row] + place.head * place.args.value_dim + place.column +
               16 * warp + lane / 4;
#pragma unroll
  for (int n = 0; n < 8; ++n, row += 8, out += 8 * stride) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (row + i % 2 < rows.count) out[i % 2 * stride + i / 2 * 8] = results[n][i] * factor;
  }
}

// A block some columns of a value head of a span, along its chunks of the group.
template <typename T, int kColumns>
__global__ void __launch_bounds__(2 * kColumns, 2) chain_chunks_kernel(const ChunkArgs<T> args) {
  extern __shared__ __align__(1024) unsigned char chunk_memory[];
  auto& shared = *reinterpret_cast<ChainShared<kColumns>*>(chunk_memory);
  admit_next_kernel();
  wait_for_kernels();
  const int number = span_of(args, args.begin) + static_cast<int>(blockIdx.y);
  if (number >= args.num_spans || args.spans[number].first_chunk >= args.end) return;
  const LongSpan span = args.spans[number];
  const int to = args.to[span.sequence];
  if (to < 0) return;
  const int slices = args.value_dim / kColumns, block = static_cast<int>(blockIdx.x);
  const ChainPlace<T> place = {args, span, rows_of(args, span), block / slices, block % slices * kColumns};
  const int first = max(span.first_chunk, args.begin);
  const int end = number + 1 < args.num_spans ? min(args.spans[number + 1].first_chunk, args.end) : args.end;
  const auto load_tiles = [&](int chunk) {
    copy_all_async(shared.solution, place.rule(chunk).solution, 2 * sizeof(shared.solution));
  };
  place.load_stage(shared.stages[0], first);
  commit_copies();
  load_tiles(first);
  commit_copies();
  ChainWarp warp;
  const int from = first == span.first_chunk ? args.from[span.sequence] : to;
  if (from >= 0)
    place.for_state([&](int n, int i, std::int64_t at) { warp.state[n][i] = args.state[from][at]; });
  for (int chunk = first; chunk < end; ++chunk) {
    const ChainStage<kColumns>& stage = shared.stages[(chunk - first) % 2];
    wait_for_copies<1>();
    __syncthreads();
    if (chunk + 1 < end) place.load_stage(shared.stages[(chunk + 1 - first) % 2], chunk + 1);
    commit_copies();
    float results[8][4] = {};
    take_chunk<T>(
        warp, shared, stage, results,
        [] {
          wait_for_copies<1>();
          __syncthreads();
        },
        [&] {
          __syncthreads();
          if (chunk + 1 < end) load_tiles(chunk + 1);
          commit_copies();
        });
    store_results(place, chunk, results, warp.inverse_unit);
  }
  place.for_state(
      [&](int n, int i, std::int64_t at) { args.state[to][at] = warp.state[n][i] * warp.inverse_unit; });
}

template <int kColumns, typename T>
void chain_chunks(const LaunchContext& context, const ChunkArgs<T>& args, int num_spans) {
  using Shared = ChainShared<kColumns>;
  allow_shared_bytes<chain_chunks_kernel<T, kColumns>>(sizeof(Shared));
  launch(context, "delta_chain", chain_chunks_kernel<T, kColumns>,
         dim3(args.num_value_heads * args.value_dim / kColumns, num_spans), 2 * kColumns, sizeof(Shared),
         args);
}

}  // namespace

template <typename T>
void chunked_delta_rule(const LaunchContext& context, const DeltaArgs<T>& rule, const Tensor& workspace,
                        const StateBatch& batch) {
  auto* keys = reinterpret_cast<ChunkKeys*>(workspace.data());
  auto* rules = reinterpret_cast<ChunkRule*>(keys + std::int64_t{kGroup} * rule.num_key_heads);
  const auto num_spans = static_cast<int>(batch.long_spans.dim(0));
  for (int begin = 0; begin < batch.num_chunks; begin += kGroup) {
    const int end = std::min(begin + kGroup, batch.num_chunks), spans = std::min(end - begin, num_spans);
    const ChunkArgs<T> args = {
        rule, batch.long_spans.data_as<const LongSpan>(), keys, rules, num_spans, begin, end};
    prepare_chunks(context, args);
    // Small blocks where they have a multiprocessor each.
    const bool few = spans * rule.num_value_heads * rule.value_dim <= context.num_sms * kWideColumns / 2;
    few ? chain_chunks<kWideColumns / 2>(context, args, spans)
        : chain_chunks<kWideColumns>(context, args, spans);
  }
}
template void chunked_delta_rule(const LaunchContext&, const DeltaArgs<BFloat16>&, const Tensor&,
                                 const StateBatch&);
template void chunked_delta_rule(const LaunchContext&, const DeltaArgs<Float16>&, const Tensor&,
                                 const StateBatch&);

std::size_t delta_rule_workspace_bytes(const LaunchContext& context, const DeltaRuleShape& shape,
                                       DType dtype) {
  if (dtype == DType::kF32 || shape.key_dim != kKeyDim || shape.value_dim % kWideColumns != 0 ||
      context.shared_bytes < static_cast<int>(sizeof(ChainShared<kWideColumns>)))
    return 0;
  return kGroup * (static_cast<std::size_t>(shape.num_key_heads) * sizeof(ChunkKeys) +
                   static_cast<std::size_t>(shape.num_value_heads) * sizeof(ChunkRule));
}

}  // namespace quire::cuda
