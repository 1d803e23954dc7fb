// Paged decode attention: out = softmax(scores of q · kᵀ) · v for the sequences of one query token.
//
// Layout: cache [block][kv head][K | V][token][dim], 16-bit. Bytes that must move: every key and value of
// every sequence once, 4 * head_dim a token and KV head; the arithmetic (4 * heads * head_dim FLOP a token)
// hides under that. So the kernel is made to keep reads in flight. Its blocks of threads stay for the whole
// launch and take equal shares of the work (decode_plan.cuh). A warp streams its tiles of 16 tokens through a
// ring of its own, across the ends of sequences, and meets the others only there (decode_loader.cuh). Under
// load a read takes several µs, so what is needed where an item begins is read one item ahead. The pieces of
// an item that lies in several shares are summed, in order of position, by the block of threads that finishes
// last.
//
// Tensor cores take 16 tokens by 8 query heads: Sᵀ = K · Qᵀ, then Oᵀ = Vᵀ · Pᵀ. All query heads of a KV head
// share one pass over K and V; more than 16 make several items of it.
//
// Reached on an H200, where read_all read 4.62 TB/s in the same run: 93 % of that with 256 rows of 100 to
// 2048 tokens (16 heads, 8 KV heads, size 128), 91 % with rows of 100 to 1024, 91 % with 32 rows of 4096 (32
// heads, 8 KV heads); there one row of 1024 takes 5.9 µs. What is missing is 3 µs until the first tiles
// arrive, and the end: some of the card's SMs get a sixth more of the bandwidth than the others, and are done
// before them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/decode_loader.cuh"

namespace quire::cuda {
namespace {

// As load_matrices, each matrix transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&matrices)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}

// An 8 × 8 matrix of 16-bit values over a warp, lane i holding columns 2 (i % 4) and the next of row i / 4.
__device__ inline std::uint32_t transpose(std::uint32_t matrix) {
  std::uint32_t result = 0;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(matrix));
  return result;
}

template <typename T>
__device__ inline std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(both);
  } else {
    const __half2 both = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(both);
  }
}

// One warp's attention over its tiles of a piece. With g = lane / 4 and t = lane % 4 a lane holds the weights
// of tokens g and g + 8, and of the sums the dimensions 16 m + g and 16 m + g + 8; both of query heads 2t and
// 2t + 1 of each tile of 8 heads.
template <typename T, int kDim, int kHeadTiles>
class WarpAttention {
 public:
  using Sizes = Ring<kDim, kHeadTiles>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kRowStride = kDim + 4;  // of sums in shared memory; 4: fewer bank conflicts
  static_assert(Sizes::kHeads * kRowStride * sizeof(float) <= Sizes::kStageBytes);

  __device__ explicit WarpAttention(unsigned lane)
      : lane_(lane),
        key_row_(lane % 16 * Sizes::kRowBytes),
        value_row_(Sizes::kTileBytes + (lane % 8 + lane / 16 * 8) * Sizes::kRowBytes),
        key_chunk_((lane / 16 ^ Sizes::exchange(lane)) * 16),
        value_chunk_((lane / 8 % 2 ^ Sizes::exchange(lane)) * 16) {}

  // Begins a piece whose queries [8 * kHeadTiles, kDim] are at a shared address.
  __device__ void begin(std::uint32_t queries) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        const bool both = k + 1 < kSteps;
        std::uint32_t matrices[4];
        const unsigned chunk = both ? lane_ / 8 : lane_ / 8 % 2;
        load_matrices(matrices, queries + Sizes::chunk_offset(n * 8 + lane_ % 8, 2U * k ^ chunk));
        queries_[n][k][0] = matrices[0];
        queries_[n][k][1] = matrices[1];
        if (both) {
          queries_[n][k + 1][0] = matrices[2];
          queries_[n][k + 1][1] = matrices[3];
        }
      }
#pragma unroll
      for (int m = 0; m < kSteps; ++m) {
#pragma unroll
        for (float& sum : sums_[n][m]) sum = 0;
      }
      top_[n][0] = top_[n][1] = -INFINITY;
      total_[n][0] = total_[n][1] = 0;
    }
  }

  // Of the 16 tokens at a stage's shared address, `hidden` lie before the window, and so many, at least one,
  // are seen.
  __device__ void add_tile(std::uint32_t stage, unsigned hidden, unsigned seen, const ScoreScale& scale) {
    float even[kHeadTiles][4] = {}, odd[kHeadTiles][4] = {};  // scores in two chains, which hide latency
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      std::uint32_t keys[4];
      load_matrices(keys, stage + key_row_ + (key_chunk_ ^ k * 32U));
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
        multiply_add<T>(k % 2 == 0 ? even[n] : odd[n], keys, queries_[n][k][0], queries_[n][k][1]);
      }
    }
    std::uint32_t weights[kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) even[n][i] += odd[n][i];
      if (scale.inner != 0) {
#pragma unroll
        for (float& score : even[n]) score = tanh_approx(score * scale.inner);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        even[n][i] = lane_ / 4 + i / 2 * 8 - hidden < seen ? even[n][i] * scale.outer : -INFINITY;
      }
      weigh(n, even[n], weights[n]);
    }
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
      std::uint32_t matrices[4];
      load_matrices_transposed(matrices, stage + value_row_ + (value_chunk_ ^ m * 32U));
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n)
        multiply_add<T>(sums_[n][m], matrices, weights[n][0], weights[n][1]);
    }
  }

  // Leaves in shared memory sums [num_heads, kRowStride] and, a head, maximum and total.
  __device__ void store(float* sums, float2* weights, int num_heads) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int step = 4; step < kWarpSize; step *= 2) {
          total_[n][i] += __shfl_xor_sync(~0U, total_[n][i], step);
        }
        const unsigned head = n * 8 + lane_ % 4 * 2 + i;
        if (head >= static_cast<unsigned>(num_heads)) continue;
        if (lane_ < 4) weights[head] = {top_[n][i], total_[n][i]};
        float* row = sums + head * kRowStride + lane_ / 4;
#pragma unroll
        for (int m = 0; m < kSteps; ++m) {
          row[m * 16] = sums_[n][m][i];
          row[m * 16 + 8] = sums_[n][m][i + 2];
        }
      }
    }
  }

 private:
  // Scores to weights relative to the largest score so far, and the sums to that same scale.
  __device__ void weigh(int n, float (&scores)[4], std::uint32_t (&weights)[2]) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = fmaxf(scores[i], scores[i + 2]);
#pragma unroll
      for (int step = 4; step < kWarpSize; step *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
      }
      largest = fmaxf(largest, top_[n][i]);
      shrink[i] = exp2_approx(top_[n][i] - largest);
      top_[n][i] = largest;
      scores[i] = exp2_approx(scores[i] - largest);
      scores[i + 2] = exp2_approx(scores[i + 2] - largest);
      total_[n][i] = total_[n][i] * shrink[i] + scores[i] + scores[i + 2];
    }
    weights[0] = transpose(pack<T>(scores[0], scores[1]));
    weights[1] = transpose(pack<T>(scores[2], scores[3]));
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[n][m][i] *= shrink[i % 2];
    }
  }

  const unsigned lane_;
  const std::uint32_t key_row_, value_row_;      // bytes in a stage before the row that the lane addresses,
  const std::uint32_t key_chunk_, value_chunk_;  // and in the row before its first chunk
  std::uint32_t queries_[kHeadTiles][kSteps][2];
  float sums_[kHeadTiles][kSteps][4];
  float top_[kHeadTiles][2];    // largest score so far
  float total_[kHeadTiles][2];  // of the weights of this lane's tokens
};

// Four dimensions of one head, added up from parts that are each relative to their own maximum.
class HeadSum {
 public:
  // weights(i) is {maximum, total} of part i, and values(i) its sums; kAtOnce parts are read at once. A part
  // of maximum -inf is empty and its sums are 0; the first kAtOnce are not all empty.
  template <int kAtOnce, typename Weights, typename Values>
  __device__ void add(int count, Weights&& weights, Values&& values) {
    for (int base = 0; base < count; base += kAtOnce) {
      float2 weight[kAtOnce];
      float4 value[kAtOnce];
      float largest = top_;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        weight[i] = weights(min(base + i, count - 1));
        value[i] = values(min(base + i, count - 1));
        if (base + i >= count) weight[i].x = -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) largest = fmaxf(largest, weight[i].x);
      scale(exp2_approx(top_ - largest));
      top_ = largest;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float factor = exp2_approx(weight[i].x - largest);
        total_ += weight[i].y * factor;
        sums_.x += value[i].x * factor;
        sums_.y += value[i].y * factor;
        sums_.z += value[i].z * factor;
        sums_.w += value[i].w * factor;
      }
    }
  }

  __device__ float2 weight() const { return {top_, total_}; }
  __device__ float4 sums() const { return sums_; }

  // other: the weight of what has no value.
  template <typename T>
  __device__ void write(T* out, float other) {
    scale(__fdividef(1.0F, total_ + other));
    *reinterpret_cast<uint2*>(out) = {pack<T>(sums_.x, sums_.y), pack<T>(sums_.z, sums_.w)};
  }

 private:
  __device__ void scale(float factor) {
    total_ *= factor;
    sums_.x *= factor;
    sums_.y *= factor;
    sums_.z *= factor;
    sums_.w *= factor;
  }

  float top_ = -INFINITY;
  float total_ = 0;
  float4 sums_ = {0, 0, 0, 0};
};

// What the warps tell each other at the end of a piece.
template <int kWarps>
struct Meeting {
  float2 weights[kWarps][16];  // a head; maximum -inf: the warp had no tile of the piece
  int sums[kWarps];            // where its sums begin, in bytes of the ring; -1: it has none
  int arrived;
};

// Calls f(head, dim) for every fourth dimension of the piece's heads, spread over the threads.
template <int kDim, int kWarps, typename F>
__device__ void for_each_output(int num_heads, F&& f) {
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(num_heads) * (kDim / 4); i += kWarps * kWarpSize) {
    f(static_cast<int>(i / (kDim / 4)), static_cast<int>(i % (kDim / 4) * 4));
  }
}

// Of the whole item: its head's sink counts here, once.
template <typename T, int kDim>
__device__ void write_output(const DecodeArgs& args, const Piece& piece, int head, int dim, HeadSum& sum) {
  head += piece.first_head(args.split);
  T* row = static_cast<T*>(args.out) + elements(piece.row.query_row, args.out_stride);
  sum.write(row + head * kDim + dim, sink_weight(args.sinks, head, sum.weight().x));
}

// Where a share keeps one head of its piece of a divided item: it has up to one that begins in it, and one
// that does not.
__device__ inline int slot_of(const DecodeArgs& args, int share, bool begins, int head) {
  return (2 * share + (begins ? 1 : 0)) * args.split.heads_per_item + head;
}

// The warps' sums to the output or, of a divided item, to the workspace.
template <typename T, typename Attention, int kDim, int kWarps>
__device__ void combine_warps(const DecodeArgs& args, const Piece& piece, const unsigned char* ring,
                              const Meeting<kWarps>& meeting) {
  for_each_output<kDim, kWarps>(piece.num_heads(args.split), [&](int head, int dim) {
    HeadSum sum;
    sum.add<kWarps>(
        kWarps, [&](int warp) { return meeting.weights[warp][head]; },
        [&](int warp) {
          const int begin = meeting.sums[warp];
          if (begin < 0) return float4{};
          const auto* sums = reinterpret_cast<const float*>(ring + begin);
          return *reinterpret_cast<const float4*>(sums + head * Attention::kRowStride + dim);
        });
    if (piece.whole(args.window)) {
      write_output<T, kDim>(args, piece, head, dim, sum);
    } else {
      const int slot = slot_of(args, static_cast<int>(blockIdx.x), piece.at.tile == 0, head);
      *reinterpret_cast<float4*>(args.plan.sums + slot * kDim + dim) = sum.sums();
      if (dim == 0) args.plan.weights[slot] = sum.weight();
    }
  });
}

// Adds one to a counter and returns what it was. What the threads wrote before they last met is visible to
// who counts later.
__device__ inline int count_arrival(int* counter) {
  int before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Counts this piece of a divided item as ready; who counts the last one adds them up.
template <typename T, int kDim, int kWarps>
__device__ void merge_pieces(const DecodeArgs& args, const DecodeHeader& header, const Piece& piece,
                             Meeting<kWarps>& meeting) {
  const int item_in_row = piece.at.kv_head * args.split.parts + piece.at.part;
  const int tiles = piece.tiles(args.window);
  const int begin = piece.row.line_begin + item_in_row * header.line_length(tiles) + header.item_lead;
  const int first = begin / header.share_tiles;
  const int count = (begin + tiles - 1) / header.share_tiles - first + 1;
  if (threadIdx.x == 0) meeting.arrived = count_arrival(args.plan.arrived + first);
  __syncthreads();
  if (meeting.arrived != count - 1) return;
  if (threadIdx.x == 0) args.plan.arrived[first] = 0;  // for the next layer
  for_each_output<kDim, kWarps>(piece.num_heads(args.split), [&](int head, int dim) {
    HeadSum sum;
    sum.add<8>(
        count,
        [&](int part) { return __ldcg(args.plan.weights + slot_of(args, first + part, part == 0, head)); },
        [&](int part) {
          const float* sums = args.plan.sums + slot_of(args, first + part, part == 0, head) * kDim + dim;
          return __ldcg(reinterpret_cast<const float4*>(sums));
        });
    write_output<T, kDim>(args, piece, head, dim, sum);
  });
}

template <typename T, int kDim, int kHeadTiles>
__global__ void __launch_bounds__(Ring<kDim, kHeadTiles>::kThreads, kBlocksPerSm)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  using Sizes = Ring<kDim, kHeadTiles>;
  using Attention = WarpAttention<T, kDim, kHeadTiles>;
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ Meeting<Sizes::kWarps> meeting;
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const unsigned lane = threadIdx.x % kWarpSize;
  const int first_stage = warp * Sizes::kStages * Sizes::kStageBytes;
  const std::uint32_t shared_ring = shared_address(ring);

  admit_next_kernel();
  wait_for_kernels();
  const DecodeHeader header = load_16_bytes_now(args.plan.header);
  const Pieces pieces(args);
  if (pieces.count() == 0) return;

  Loader<T, kDim, kHeadTiles> loader(args, pieces, warp, lane);
  Attention attention(lane);
  Piece piece = pieces.first();
  int free_stages = Sizes::kStages;
  // Byte offsets in the ring: of the next stage to be loaded; of the oldest, which is the next to be read.
  int load_stage = first_stage, stage = first_stage;
  const auto advance = [&](int& offset) {
    offset += Sizes::kStageBytes;
    if (offset == first_stage + Sizes::kStages * Sizes::kStageBytes) offset = first_stage;
  };
  int tile = piece.first_tile_of<Sizes::kWarps>(warp), end = piece.end(args.window);
  int last_stage = -1;  // the stage of the piece that was read last
  bool ended = false;   // the piece
  for (int index = 0;;) {
    for (; free_stages > 0; --free_stages) {
      loader.load(shared_ring + load_stage);
      advance(load_stage);
    }
    if (ended) {
      if (!piece.whole(args.window)) merge_pieces<T, kDim>(args, header, piece, meeting);
      if (++index == pieces.count()) return;
      piece = pieces.next(index, piece);
      tile = piece.first_tile_of<Sizes::kWarps>(warp);
      end = piece.end(args.window);
      last_stage = -1;
    }
    if (tile < end) {
      wait_for_copies<Sizes::kStages - 1>();
      __syncwarp();
      if (last_stage < 0) attention.begin(shared_ring + stage + 2 * Sizes::kTileBytes);
      const int token = tile * kTileTokens + piece.first_token(args.window);
      const int hidden = max(first_key(piece.row.seq_len, args.window) - token, 0);
      attention.add_tile(shared_ring + stage, hidden, piece.row.seq_len - token - hidden, args.scale);
      __syncwarp();
      last_stage = stage;
      advance(stage);
      tile += Sizes::kWarps;
      ++free_stages;
    }
    ended = tile >= end;
    if (!ended) continue;
    if (last_stage >= 0) {  // this stage has room for the sums
      attention.store(reinterpret_cast<float*>(ring + last_stage), meeting.weights[warp],
                      piece.num_heads(args.split));
    } else if (lane < 16) {
      meeting.weights[warp][lane] = {-INFINITY, 0};
    }
    if (lane == 0) meeting.sums[warp] = last_stage;
    __syncthreads();
    combine_warps<T, Attention, kDim>(args, piece, ring, meeting);
    __syncthreads();
  }
}

template <typename T, int kDim, int kHeadTiles>
void launch_decode(const LaunchContext& context, const DecodeArgs& args) {
  using Sizes = Ring<kDim, kHeadTiles>;
  constexpr auto kernel = decode_kernel<T, kDim, kHeadTiles>;
  allow_shared_bytes<kernel>(static_cast<int>(Sizes::kBytes));
  launch(context, "decode attention", kernel, dim3(static_cast<unsigned>(num_shares_of(context.num_sms))),
         dim3(Sizes::kThreads), Sizes::kBytes, args);
}

template <typename T, int kDim>
void launch_decode(const LaunchContext& context, const DecodeArgs& args, int head_tiles) {
  head_tiles == 1 ? launch_decode<T, kDim, 1>(context, args) : launch_decode<T, kDim, 2>(context, args);
}

template <typename T>
void launch_decode(const LaunchContext& context, const DecodeArgs& args, int head_tiles, int head_dim) {
  switch (head_dim) {
    case 64:
      return launch_decode<T, 64>(context, args, head_tiles);
    case 80:
      return launch_decode<T, 80>(context, args, head_tiles);
    case 96:
      return launch_decode<T, 96>(context, args, head_tiles);
    case 128:
      return launch_decode<T, 128>(context, args, head_tiles);
    case 256:
      return launch_decode<T, 256>(context, args, head_tiles);
    default:
      check(cudaErrorInvalidValue, "decode attention: head size");
  }
}

}  // namespace

void decode_attention(const LaunchContext& context, const AttentionCall& call, const AttentionBatch& batch,
                      const AttentionShape& shape) {
  const HeadSplit split(shape);
  const Tensor& keys = call.cache.keys;
  const bool supported = keys.dtype() != DType::kF32 && keys.stride(2) == shape.head_dim &&
                         std::has_single_bit(static_cast<unsigned>(shape.block_size)) &&
                         shape.block_size >= 8;
  check(supported ? cudaSuccess : cudaErrorInvalidValue, "decode attention: cache");
  std::size_t bytes = 0;
  const DecodeArgs args{
      .out = call.out.data(),
      .q = call.q.data(),
      .keys = keys.data(),
      .tables = batch.block_tables.data_as<const int>(),
      .values_offset = call.cache.values.data_as<const std::uint16_t>() - keys.data_as<const std::uint16_t>(),
      .block_stride = static_cast<int>(keys.stride(0)),
      .head_stride = static_cast<int>(keys.stride(1)),
      .out_stride = static_cast<int>(call.out.stride(0)),
      .q_stride = static_cast<int>(call.q.stride(0)),
      .table_stride = static_cast<int>(batch.block_tables.stride(0)),
      .block_shift = std::countr_zero(static_cast<unsigned>(shape.block_size)),
      .window = window_of(shape),
      .kv_heads = shape.num_kv_heads,
      .split = split,
      .scale = ScoreScale(call.scores),
      .sinks = call.scores.sinks.data_as<const float>(),
      .plan = lay_out_plan(reinterpret_cast<std::uintptr_t>(call.workspace.data()), shape, context.num_sms,
                           bytes)};
  check(bytes <= call.workspace.bytes() ? cudaSuccess : cudaErrorInvalidValue, "decode attention: workspace");
  keys.dtype() == DType::kBF16 ? launch_decode<__nv_bfloat16>(context, args, split.head_tiles, shape.head_dim)
                               : launch_decode<__half>(context, args, split.head_tiles, shape.head_dim);
}

}  // namespace quire::cuda
