// Paged decode attention: out = softmax(q · kᵀ * scale) · v for the sequences of one query token.
//
// Layout: cache [block][kv head][K | V][token][dim], 16-bit. Bytes that must move: every key and value of
// every sequence once, 4 * head_dim a token and KV head; the arithmetic (4 * heads * head_dim FLOP a token)
// hides under that. So the kernel is made to keep reads in flight. Blocks of threads stay for the whole
// launch and take equal shares (decode_plan.cuh); a warp streams its tiles of 16 tokens through a ring of its
// own, across the ends of sequences, and meets the other warps only there. Under load a read takes several
// µs, so what is needed at the start of an item is read one item ahead. An item that is divided is summed
// from its pieces, in order of position, by the block of threads that finishes last. Tensor cores take 16
// tokens by 8 query heads: Sᵀ = K · Qᵀ, then Oᵀ = Vᵀ · Pᵀ, so that all query heads of a KV head share one
// pass (up to 16; more make several items of one KV head).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <climits>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/decode_plan.cuh"
#include "backends/cuda/kernels/mma.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarpSize = 32;
constexpr int kRingBytes = 128 * 1024;  // of an SM

struct DecodeArgs {
  void* out;
  const void* q;
  const void* keys;
  const int* tables;
  // In elements:
  std::int64_t values_offset;  // from a key to its value
  std::int64_t block_stride;
  std::int64_t head_stride;
  std::int64_t out_stride;
  std::int64_t q_stride;
  std::int64_t table_stride;
  int block_shift;  // log2 of the block size
  int group;
  int items_per_kv_head;
  int heads_per_item;
  int items_per_row;
  float scale;  // of scores in base 2
  DecodePlan plan;
};

// The part of an item that lies in one share.
struct Piece {
  int row_index;
  DecodeRow row;
  int item_in_row;
  int kv_head;
  int first_head;  // query heads [first_head, first_head + num_heads)
  int num_heads;
  int tiles;  // of the whole item
  int begin;  // tiles [begin, end) are this piece
  int end;

  __device__ bool whole() const { return begin == 0 && end == tiles; }
  // Warps take the tiles by their number in the sequence, so that the blocks of one item serve the next.
  __device__ int first_tile(int warp, int warps) const {
    return begin + (warp + warps - begin % warps) % warps;
  }
};

__device__ inline DecodeRow load_row(const DecodeRow* row) {
  const int4 words = *reinterpret_cast<const int4*>(row);
  return {words.x, words.y, words.z, words.w};
}

// The pieces of a share in the order in which they are taken: the last one first, which the next share may
// also have, then the rest from the first on, so that divided items are merged while others stream.
class Pieces {
 public:
  __device__ Pieces(const DecodeArgs& args, int share) : args_(args) {
    const DecodeShare* planned = args.plan.shares + share;
    const int4 words = *reinterpret_cast<const int4*>(planned);
    first_item_ = words.x;
    first_tile_ = words.y;
    last_item_ = words.z;
    last_end_ = words.w;
    last_row_ = load_row(&planned->last_row);
  }

  __device__ int count() const { return first_item_ < 0 ? 0 : last_item_ - first_item_ + 1; }
  __device__ Piece first() const {
    return describe(last_item_, {.row_index = last_item_ / args_.items_per_row, .row = last_row_});
  }
  // Piece `index`, at least 1; `previous` saves reading what it shares with it.
  __device__ Piece at(int index, const Piece& previous) const {
    return describe(first_item_ + index - 1, previous);
  }

 private:
  __device__ Piece describe(int item, const Piece& previous) const {
    Piece piece;
    piece.row_index = item / args_.items_per_row;
    piece.row =
        piece.row_index == previous.row_index ? previous.row : load_row(args_.plan.rows + piece.row_index);
    piece.item_in_row = item % args_.items_per_row;
    piece.kv_head = piece.item_in_row / args_.items_per_kv_head;
    const int first = piece.item_in_row % args_.items_per_kv_head * args_.heads_per_item;
    piece.first_head = piece.kv_head * args_.group + first;
    piece.num_heads = min(args_.heads_per_item, args_.group - first);
    piece.tiles = ceil_div(piece.row.seq_len, kTileTokens);
    piece.begin = item == first_item_ ? first_tile_ : 0;
    piece.end = item == last_item_ ? last_end_ : piece.tiles;
    return piece;
  }

  const DecodeArgs& args_;
  int first_item_, first_tile_, last_item_, last_end_;
  DecodeRow last_row_;
};

// Sizes of one instance. A stage of a warp's ring holds 16 keys, then 16 values.
template <int kDim>
struct Ring {
  static constexpr int kWarps = kDim > 128 ? 2 : 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kTileElements = kTileTokens * kDim;
  static constexpr int kStageElements = 2 * kTileElements;
  static constexpr int kStages = kRingBytes / kBlocksPerSm / (kWarps * kStageElements * 2);
  static constexpr std::size_t kBytes = std::size_t{kWarps} * kStages * kStageElements * 2;
  static constexpr int kRowChunks = kDim / 8;  // of 16 bytes

  // Element offset of a chunk. Chunks are exchanged within a row so that one chunk of 8 consecutive rows,
  // which a matrix load reads, covers all banks.
  __device__ static int chunk_offset(int row, int chunk) {
    constexpr int kPeriod = kRowChunks % 8 == 0 ? 8 : kRowChunks % 4 == 0 ? 4 : 2;
    return row * kDim + (chunk ^ (row / (8 / kPeriod) % kPeriod)) * 8;
  }
};

// Starts the copies of one warp's tiles, piece after piece, ahead of the arithmetic.
template <typename T, int kDim>
class Loader {
 public:
  using Sizes = Ring<kDim>;

  __device__ Loader(const DecodeArgs& args, const Pieces& pieces, const Piece& first, int warp, int lane)
      : args_(args), pieces_(pieces), warp_(warp), lane_(lane), piece_(first), next_(first) {}

  // The next tile goes to `stage`. One group of copies, empty when nothing is left.
  __device__ void load(T* stage) {
    while (tile_ >= piece_.end && index_ + 1 < pieces_.count()) open();
    if (tile_ < piece_.end) copy_tile(stage);
    commit_copies();
  }

 private:
  __device__ void open() {
    if (next_.row_index != piece_.row_index) window_ = -1;
    piece_ = next_;
    ++index_;
    tile_ = piece_.first_tile(warp_, Sizes::kWarps);
    keys_ = static_cast<const T*>(args_.keys) + piece_.kv_head * args_.head_stride;
    if (index_ + 1 < pieces_.count()) next_ = pieces_.at(index_ + 1, piece_);
  }

  // The block of the first 8 tokens and of the last 8 of this warp's tiles of the window, a tile a lane.
  __device__ void fetch_blocks() {
    const int* table = args_.tables + piece_.row.table_row * args_.table_stride;
    const int token = ((window_ * kWarpSize + lane_) * Sizes::kWarps + warp_) * kTileTokens;
    if (token < piece_.row.seq_len) {
      upper_block_ = table[token >> args_.block_shift];
      lower_block_ = table[min(token + 8, piece_.row.seq_len - 1) >> args_.block_shift];
    }
  }

  __device__ const T* key_at(int block, int token) const {
    const int offset = token & ((1 << args_.block_shift) - 1);
    return keys_ + block * args_.block_stride + offset * kDim;
  }

  __device__ void copy_tile(T* stage) {
    const int owner = tile_ / Sizes::kWarps;  // modulo the warp's size: the lane that knows the blocks
    if (owner / kWarpSize != window_) {
      window_ = owner / kWarpSize;
      fetch_blocks();
    }
    const int token = tile_ * kTileTokens;
    const T* upper = key_at(__shfl_sync(~0U, upper_block_, owner), token);
    const T* lower = key_at(__shfl_sync(~0U, lower_block_, owner), token + 8) - 8 * kDim;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {  // a tile has 2 * kDim chunks of 16 bytes
      const int chunk = i * kWarpSize + lane_;
      const int row = chunk / Sizes::kRowChunks;
      const T* key = (row < 8 ? upper : lower) + chunk * 8;
      T* to = stage + Sizes::chunk_offset(row, chunk % Sizes::kRowChunks);
      // What lies behind the sequence may be anything, also NaN; its values must be zero.
      const bool inside = token + row < piece_.row.seq_len;
      copy_async_16(to, key, inside);
      copy_async_16(to + Sizes::kTileElements, key + args_.values_offset, inside);
    }
    tile_ += Sizes::kWarps;
  }

  const DecodeArgs& args_;
  const Pieces& pieces_;
  const int warp_;
  const int lane_;
  Piece piece_;
  Piece next_;
  const T* keys_ = nullptr;  // of the KV head
  int index_ = -1;           // of piece_
  int tile_ = INT_MAX;
  int window_ = -1;  // of 32 tiles of this warp, whose blocks are known
  int upper_block_ = 0;
  int lower_block_ = 0;
};

// As load_matrices, each matrix transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row))
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
  using Sizes = Ring<kDim>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kRowStride =
      kHeadTiles == 1 ? kDim + 4 : kDim;  // of stored sums; 4: fewer bank conflicts
  static_assert(kHeadTiles * 8 * kRowStride * sizeof(float) <= Sizes::kStageElements * sizeof(T));

  __device__ explicit WarpAttention(int lane) : lane_(lane) {}

  // Reads the queries of the piece that begins next.
  __device__ void load_queries(const DecodeArgs& args, const Piece& piece) {
    const T* row = static_cast<const T*>(args.q) + piece.row.query_row * args.q_stride;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const int head = n * 8 + lane_ / 4;
      const auto* words =
          reinterpret_cast<const std::uint32_t*>(row + (piece.first_head + head) * kDim + lane_ % 4 * 2);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        next_queries_[n][k][0] = head < piece.num_heads ? words[k * 8] : 0;
        next_queries_[n][k][1] = head < piece.num_heads ? words[k * 8 + 4] : 0;
      }
    }
  }

  __device__ void begin() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kSteps; ++m) {
        queries_[n][m][0] = next_queries_[n][m][0];
        queries_[n][m][1] = next_queries_[n][m][1];
#pragma unroll
        for (float& sum : sums_[n][m]) sum = 0;
      }
      top_[n][0] = top_[n][1] = -INFINITY;
      total_[n][0] = total_[n][1] = 0;
    }
  }

  // `valid` of the 16 tokens of `stage` are inside the sequence, at least one.
  __device__ void add_tile(const T* stage, int valid, float scale) {
    float even[kHeadTiles][4] = {}, odd[kHeadTiles][4] = {};  // scores in two chains, which hide latency
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      std::uint32_t keys[4];
      load_matrices(keys, stage + Sizes::chunk_offset(lane_ % 16, 2 * k + lane_ / 16));
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
        multiply_add<T>(k % 2 == 0 ? even[n] : odd[n], keys, queries_[n][k][0], queries_[n][k][1]);
      }
    }
    std::uint32_t weights[kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        even[n][i] = lane_ / 4 + i / 2 * 8 < valid ? (even[n][i] + odd[n][i]) * scale : -INFINITY;
      }
      weigh(n, even[n], weights[n]);
    }
    const T* values = stage + Sizes::kTileElements;
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
      std::uint32_t matrices[4];
      load_matrices_transposed(
          matrices, values + Sizes::chunk_offset(lane_ % 8 + lane_ / 16 * 8, 2 * m + lane_ / 8 % 2));
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
        const int head = n * 8 + lane_ % 4 * 2 + i;
        if (head >= num_heads) continue;
        if (lane_ < 4) weights[head] = {top_[n][i], total_[n][i]};
#pragma unroll
        for (int m = 0; m < kSteps; ++m) {
          sums[head * kRowStride + m * 16 + lane_ / 4] = sums_[n][m][i];
          sums[head * kRowStride + m * 16 + lane_ / 4 + 8] = sums_[n][m][i + 2];
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
      shrink[i] = exp2f(top_[n][i] - largest);
      top_[n][i] = largest;
      scores[i] = exp2f(scores[i] - largest);
      scores[i + 2] = exp2f(scores[i + 2] - largest);
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

  const int lane_;
  std::uint32_t queries_[kHeadTiles][kSteps][2];
  std::uint32_t next_queries_[kHeadTiles][kSteps][2];
  float sums_[kHeadTiles][kSteps][4];
  float top_[kHeadTiles][2];    // largest score so far
  float total_[kHeadTiles][2];  // of the weights of this lane's tokens
};

// Four dimensions of one head, added up from parts that are each relative to their own maximum.
class HeadSum {
 public:
  // weights(i) is {maximum, total} of part i, and values(i) its sums; kAtOnce parts are read at once. A part
  // of maximum -inf is empty and its sums may be anything; the first kAtOnce are not all empty.
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
      scale(exp2f(top_ - largest));
      top_ = largest;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (weight[i].x == -INFINITY) continue;
        const float factor = exp2f(weight[i].x - largest);
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

  template <typename T>
  __device__ void write(T* out) {
    scale(1.0F / total_);
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

// What the warps of a block of threads tell each other at the end of a piece.
template <int kWarps>
struct Meeting {
  float2 weights[kWarps][16];  // a head; maximum -inf: the warp had no tile of the piece
  const float* sums[kWarps];
  int arrived;
};

// Calls f(head, dim) for every fourth dimension of the piece's heads, spread over the block of threads.
template <int kDim, typename F>
__device__ void for_each_output(const Piece& piece, F&& f) {
  for (int i = static_cast<int>(threadIdx.x); i < piece.num_heads * (kDim / 4); i += Ring<kDim>::kThreads) {
    f(i / (kDim / 4), i % (kDim / 4) * 4);
  }
}

template <typename T, int kDim>
__device__ T* output_of(const DecodeArgs& args, const Piece& piece, int head, int dim) {
  return static_cast<T*>(args.out) + piece.row.query_row * args.out_stride +
         (piece.first_head + head) * kDim + dim;
}

// Where a share keeps one head of its piece of a divided item: it has up to one that begins in it, and one
// that does not.
__device__ inline int slot_of(const DecodeArgs& args, int share, bool begins, int head) {
  return (2 * share + (begins ? 1 : 0)) * args.heads_per_item + head;
}

// The warps' sums to the output or, of a divided item, to the workspace.
template <typename T, int kDim, int kRowStride, int kWarps>
__device__ void combine_warps(const DecodeArgs& args, const Piece& piece, const Meeting<kWarps>& meeting) {
  for_each_output<kDim>(piece, [&](int head, int dim) {
    HeadSum sum;
    sum.add<kWarps>(
        kWarps, [&](int warp) { return meeting.weights[warp][head]; },
        [&](int warp) {
          return *reinterpret_cast<const float4*>(meeting.sums[warp] + head * kRowStride + dim);
        });
    if (piece.whole()) {
      sum.write(output_of<T, kDim>(args, piece, head, dim));
    } else {
      const int slot = slot_of(args, static_cast<int>(blockIdx.x), piece.begin == 0, head);
      *reinterpret_cast<float4*>(args.plan.sums + slot * kDim + dim) = sum.sums();
      if (dim == 0) args.plan.weights[slot] = sum.weight();
    }
  });
}

// Adds one to a counter and returns what it was. What the block of threads wrote before its last barrier is
// visible to who counts later.
__device__ inline int count_arrival(int* counter) {
  int before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Counts this piece of a divided item as ready; who counts the last one adds them up.
template <typename T, int kDim, int kWarps>
__device__ void merge_pieces(const DecodeArgs& args, const Piece& piece, int share_tiles,
                             Meeting<kWarps>& meeting) {
  const int item_begin = piece.row.first_tile + piece.item_in_row * piece.tiles;
  const int first = item_begin / share_tiles;
  const int count = (item_begin + piece.tiles - 1) / share_tiles - first + 1;
  if (threadIdx.x == 0) meeting.arrived = count_arrival(args.plan.arrived + first);
  __syncthreads();
  if (meeting.arrived != count - 1) return;
  if (threadIdx.x == 0) args.plan.arrived[first] = 0;  // for the next layer
  for_each_output<kDim>(piece, [&](int head, int dim) {
    HeadSum sum;
    sum.add<8>(
        count,
        [&](int part) { return __ldcg(args.plan.weights + slot_of(args, first + part, part == 0, head)); },
        [&](int part) {
          const float* sums = args.plan.sums + slot_of(args, first + part, part == 0, head) * kDim + dim;
          return __ldcg(reinterpret_cast<const float4*>(sums));
        });
    sum.write(output_of<T, kDim>(args, piece, head, dim));
  });
}

template <typename T, int kDim, int kHeadTiles>
__global__ void __launch_bounds__(Ring<kDim>::kThreads, kBlocksPerSm)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  using Sizes = Ring<kDim>;
  using Attention = WarpAttention<T, kDim, kHeadTiles>;
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ Meeting<Sizes::kWarps> meeting;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  T* const stages = reinterpret_cast<T*>(ring) + warp * Sizes::kStages * Sizes::kStageElements;

  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const int share_tiles = *args.plan.share_tiles;
  const Pieces pieces(args, static_cast<int>(blockIdx.x));
  if (pieces.count() == 0) return;

  Piece next = pieces.first();
  Loader<T, kDim> loader(args, pieces, next, warp, lane);
  for (int i = 0; i < Sizes::kStages; ++i) loader.load(stages + i * Sizes::kStageElements);
  Attention attention(lane);
  attention.load_queries(args, next);
  T* stage = stages;  // the oldest
  for (int index = 0; index < pieces.count(); ++index) {
    const Piece piece = next;
    if (index + 1 < pieces.count()) next = pieces.at(index + 1, piece);
    attention.begin();
    T* done = nullptr;  // stage that was read last
    for (int tile = piece.first_tile(warp, Sizes::kWarps); tile < piece.end; tile += Sizes::kWarps) {
      wait_for_copies<Sizes::kStages - 1>();
      __syncwarp();
      attention.add_tile(stage, piece.row.seq_len - tile * kTileTokens, args.scale);
      __syncwarp();
      if (done == nullptr) attention.load_queries(args, next);
      done = stage;
      stage += Sizes::kStageElements;
      if (stage == stages + Sizes::kStages * Sizes::kStageElements) stage = stages;
      // The last stage has room for the sums, and is not loaded again before they are read.
      if (tile + Sizes::kWarps < piece.end) loader.load(done);
    }
    if (done != nullptr) {
      attention.store(reinterpret_cast<float*>(done), meeting.weights[warp], piece.num_heads);
    } else {
      attention.load_queries(args, next);
      if (lane < 16) meeting.weights[warp][lane] = {-INFINITY, 0};
    }
    if (lane == 0) meeting.sums[warp] = reinterpret_cast<const float*>(done != nullptr ? done : stages);
    __syncthreads();
    combine_warps<T, kDim, Attention::kRowStride>(args, piece, meeting);
    __syncthreads();
    if (done != nullptr) loader.load(done);
    if (!piece.whole()) merge_pieces<T, kDim>(args, piece, share_tiles, meeting);
  }
}

template <typename T, int kDim, int kHeadTiles>
void launch_decode(const LaunchContext& context, const DecodeArgs& args) {
  constexpr auto kernel = decode_kernel<T, kDim, kHeadTiles>;
  static const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                         static_cast<int>(Ring<kDim>::kBytes));
  check(status, "decode attention: shared memory");
  launch(context, "decode attention", kernel, dim3(static_cast<unsigned>(num_shares(context.num_sms))),
         dim3(Ring<kDim>::kThreads), Ring<kDim>::kBytes, args);
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
      .block_stride = keys.stride(0),
      .head_stride = keys.stride(1),
      .out_stride = call.out.stride(0),
      .q_stride = call.q.stride(0),
      .table_stride = batch.block_tables.stride(0),
      .block_shift = std::countr_zero(static_cast<unsigned>(shape.block_size)),
      .group = split.group,
      .items_per_kv_head = split.items_per_kv_head,
      .heads_per_item = split.heads_per_item,
      .items_per_row = split.items_per_row,
      .scale = call.scale * 1.44269504F,  // log2(e)
      .plan = lay_out_plan(reinterpret_cast<std::uintptr_t>(call.workspace.data()), shape, context.num_sms,
                           bytes)};
  check(bytes <= call.workspace.bytes() ? cudaSuccess : cudaErrorInvalidValue, "decode attention: workspace");
  keys.dtype() == DType::kBF16 ? launch_decode<__nv_bfloat16>(context, args, split.head_tiles, shape.head_dim)
                               : launch_decode<__half>(context, args, split.head_tiles, shape.head_dim);
}

}  // namespace quire::cuda
