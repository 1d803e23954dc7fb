#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernels/cache_codes.cuh"
#include "backends/cuda/kernels/decode_plan.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/scores.cuh"
#include "backends/cuda/kernels/vec.cuh"

// The reading half of paged decode attention: which tiles a warp takes, and their way into shared memory.
namespace quire::cuda {

constexpr unsigned kWarpSize = 32;

struct DecodeArgs {
  void* out;
  const void* q;
  const void* keys;
  const int* tables;
  std::int64_t values_offset;  // elements from a key to its value
  int key_scales;              // of codes: bytes from a head's keys in a block to their scales
  int value_scales;            // the same, to those of its values
  // In elements:
  int block_stride;
  int head_stride;
  int out_stride;
  int q_stride;
  int table_stride;
  int block_shift;  // log2 of the block size
  int kv_heads;
  HeadSplit split;
  ScoreArgs scores;
  DecodePlan plan;
};

// Elements before an index: one multiplication, where both as 64-bit values would take three.
__device__ inline std::int64_t elements(int index, int stride) { return std::int64_t{index} * stride; }

// 16 bytes, read here and now: the compiler would put it off until their first use.
template <typename T>
__device__ inline T load_16_bytes_now(const T* from) {
  static_assert(sizeof(T) == 16);
  int4 words;
  asm volatile("ld.relaxed.gpu.global.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return reinterpret_cast<const T&>(words);
}

// The part of an item that lies in one share.
struct Piece {
  DecodePosition at;  // its tile: where the piece begins
  int limit;          // tile at which it ends, where the item does not end before
  DecodeRow row;      // may still be on its way: what depends on it is worked out when asked for

  __device__ int tiles(int window) const { return item_tiles(row.seq_len, window); }  // of the whole item
  __device__ bool whole(int window) const { return at.tile == 0 && limit >= tiles(window); }
  __device__ int end(int window) const { return min(limit, tiles(window)); }
  __device__ int first_token(int window) const { return first_tile(row.seq_len, window) * kTileTokens; }
  __device__ int first_head(const HeadSplit& split) const {
    return at.kv_head * split.group + at.part * split.heads_per_item;
  }
  __device__ int num_heads(const HeadSplit& split) const {
    return min(split.heads_per_item, split.group - at.part * split.heads_per_item);
  }
  // Warps take tiles by their number in the item, so that the blocks read for one item serve the next.
  template <int kWarps>
  __device__ int first_tile_of(int warp) const {
    return at.tile + ((warp - at.tile) & (kWarps - 1));
  }
};

// The pieces of a share in the order in which they are taken: the last one first, which the next share may
// also have, then the rest from the first on, so that divided items are merged while others stream.
class Pieces {
 public:
  __device__ explicit Pieces(const DecodeArgs& args) : args_(args) {
    const DecodeShare* share = args.plan.shares + blockIdx.x;
    first_ = load_16_bytes_now(&share->first);
    last_ = load_16_bytes_now(&share->last);
    last_row_ = load_16_bytes_now(&share->last_row);
    count_ = load_16_bytes_now(reinterpret_cast<const int4*>(&share->num_pieces)).x;
  }

  __device__ int count() const { return count_; }
  __device__ Piece first() const {
    Piece piece{last_, last_.tile, last_row_};
    piece.at.tile = count_ == 1 ? first_.tile : 0;
    return piece;
  }
  // Piece `index`, at least 1, behind piece `before`. Reads of memory what the two do not share.
  __device__ Piece next(int index, const Piece& before) const {
    Piece piece = before;
    if (index == 1) {
      piece.at = first_;
    } else {
      piece.at.tile = 0;
      if (++piece.at.part == args_.split.parts) {
        piece.at.part = 0;
        if (++piece.at.kv_head == args_.kv_heads) {
          piece.at.kv_head = 0;
          ++piece.at.row;
        }
      }
    }
    if (piece.at.row != before.at.row) piece.row = args_.plan.rows[piece.at.row];
    piece.limit = INT_MAX;
    return piece;
  }

 private:
  const DecodeArgs& args_;
  DecodePosition first_;
  DecodePosition last_;
  DecodeRow last_row_;
  int count_;
};

// Rows of 16-byte chunks in shared memory. Chunks are exchanged within a row, by exclusive or, so that one
// chunk of 8 consecutive rows, which a matrix load reads, covers all banks.
template <unsigned kBytes>
struct Rows {
  static constexpr unsigned kChunks = kBytes / 16;

  __device__ static unsigned exchange(unsigned row) {
    constexpr unsigned kPeriod = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : kChunks % 2 == 0 ? 2 : 1;
    return row / (8 / kPeriod) % kPeriod;
  }
  // Bytes before a chunk.
  __device__ static unsigned offset(unsigned row, unsigned chunk) {
    return row * kBytes + (chunk ^ exchange(row)) * 16;
  }
};

// Sizes of one instance; E: elements of the cache. A stage of a warp's ring holds 16 keys, 16 values, with
// the first tile of a piece its queries, and the scales of codes.
template <typename E, int kDim, int kHeadTiles>
struct Ring {
  using TileRows = Rows<sizeof(E) * kDim>;
  using QueryRows = Rows<2 * kDim>;
  static constexpr int kWarps = kDim > 128 ? 2 : 4;  // what each needs of shared memory grows with kDim
  static constexpr unsigned kThreads = kWarps * kWarpSize;
  static constexpr unsigned kHeads = 8 * kHeadTiles;
  static constexpr unsigned kRowBytes = sizeof(E) * kDim;
  static constexpr unsigned kTileBytes = kTileTokens * kRowBytes;
  static constexpr unsigned kQueries = 2 * kTileBytes;               // where they begin
  static constexpr unsigned kScales = kQueries + kHeads * 2 * kDim;  // likewise: 16 of keys, 16 of values
  static constexpr unsigned kSumStride = kDim + 4;                   // 4: fewer bank conflicts
  static constexpr unsigned kSumBytes = kHeads * kSumStride * sizeof(float);  // of a piece that has ended
  static constexpr unsigned kStageBytes =
      std::max<unsigned>(kScales + (kIsCode<E> ? 2 * kTileTokens * sizeof(float) : 0), kSumBytes);
  static constexpr int kBlocksOfSm =
      blocks_per_sm(kIsCode<E> ? CacheCode::kE4m3 : CacheCode::kNone, kHeadTiles);
  // 60 to 96 KB in a block of threads: more does not speed up the stream, but makes every read wait longer;
  // and some GPUs have but 99 KB.
  static constexpr unsigned kMaxBytes = (kBlocksOfSm == 3 ? 74 : 96) * 1024;
  static constexpr unsigned kStages = kMaxBytes / (kWarps * kStageBytes);
  static constexpr std::size_t kBytes = std::size_t{kWarps} * kStages * kStageBytes;
};

// Starts the copies of one warp's tiles, piece after piece, ahead of the arithmetic.
template <typename T, typename E, int kDim, int kHeadTiles>
class Loader {
 public:
  using Sizes = Ring<E, kDim, kHeadTiles>;
  using TileRows = typename Sizes::TileRows;
  using QueryRows = typename Sizes::QueryRows;

  __device__ Loader(const DecodeArgs& args, const Pieces& pieces, int warp, unsigned lane)
      : args_(args), pieces_(pieces), warp_(warp), lane_(lane), next_(pieces.first()) {
    open();
  }

  // The next tile goes to `stage`, a shared address. One group of copies, empty when nothing is left.
  __device__ void load(std::uint32_t stage) {
    while (tile_ >= piece_.end(args_.scores.window) && index_ + 1 < pieces_.count()) open();
    if (tile_ < piece_.end(args_.scores.window)) copy_tile(stage);
    commit_copies();
  }

 private:
  // Goes on to the next piece, and begins to read the one behind it.
  __device__ void open() {
    if (next_.at.row != piece_.at.row) known_ = ~0U;
    piece_ = next_;
    ++index_;
    begins_ = true;
    tile_ = piece_.first_tile_of<Sizes::kWarps>(warp_);
    keys_ = static_cast<const E*>(args_.keys) + elements(piece_.at.kv_head, args_.head_stride);
    if (index_ + 1 < pieces_.count()) next_ = pieces_.next(index_ + 1, piece_);
  }

  // The block of the first 8 tokens and of the last 8 of 32 of this warp's tiles, a tile a lane. Where the
  // first 8 are not seen, any block that is.
  __device__ void fetch_blocks() {
    const int* table = args_.tables + elements(piece_.row.table_row, args_.table_stride);
    const int tile = static_cast<int>(known_ * kWarpSize + lane_) * Sizes::kWarps + warp_;
    const int token = tile * kTileTokens + piece_.first_token(args_.scores.window);
    if (token < piece_.row.seq_len) {
      const int seen = max(token, first_key(piece_.row.seq_len, args_.scores.window));
      upper_block_ = table[seen >> args_.block_shift];
      lower_block_ = table[min(token + 8, piece_.row.seq_len - 1) >> args_.block_shift];
    }
  }

  __device__ const E* key_at(int block, int token) const {
    const int offset = token & ((1 << args_.block_shift) - 1);
    return keys_ + elements(block, args_.block_stride) + offset * kDim;
  }

  __device__ void copy_queries(std::uint32_t to) const {
    const auto num_heads = static_cast<unsigned>(piece_.num_heads(args_.split));
    const T* from = static_cast<const T*>(args_.q) + elements(piece_.row.query_row, args_.q_stride) +
                    piece_.first_head(args_.split) * kDim;
#pragma unroll
    for (unsigned i = 0; i * kWarpSize < Sizes::kHeads * QueryRows::kChunks; ++i) {
      const unsigned chunk = i * kWarpSize + lane_;
      const unsigned head = chunk / QueryRows::kChunks;
      if (head >= Sizes::kHeads) break;
      const bool inside = head < num_heads;
      copy_async_16(to + QueryRows::offset(head, chunk % QueryRows::kChunks),
                    inside ? from + chunk * 8 : from, inside);
    }
  }

  __device__ void copy_tile(std::uint32_t stage) {
    // Modulo the warp's size, the lane that knows the blocks.
    const unsigned owner = static_cast<unsigned>(tile_) / Sizes::kWarps;
    if (owner / kWarpSize != known_) {
      known_ = owner / kWarpSize;
      fetch_blocks();
    }
    if (begins_) copy_queries(stage + Sizes::kQueries);
    begins_ = false;
    const int token = tile_ * kTileTokens + piece_.first_token(args_.scores.window);
    const unsigned hidden = max(first_key(piece_.row.seq_len, args_.scores.window) - token, 0);
    const unsigned seen = piece_.row.seq_len - token - hidden;
    const int upper_block = __shfl_sync(~0U, upper_block_, owner);
    const int lower_block = __shfl_sync(~0U, lower_block_, owner);
    constexpr int kChunk = 16 / sizeof(E);
    const E* upper = key_at(upper_block, token) + lane_ * kChunk;
    const E* lower = key_at(lower_block, token + 8) - 8 * kDim + lane_ * kChunk;
    constexpr unsigned kChunks = kTileTokens * TileRows::kChunks;
#pragma unroll
    for (unsigned i = 0; i * kWarpSize < kChunks; ++i) {
      const unsigned chunk = i * kWarpSize + lane_;
      if (kChunks % kWarpSize != 0 && chunk >= kChunks) break;
      const unsigned row = chunk / TileRows::kChunks;
      const E* key = (row < 8 ? upper : lower) + i * kWarpSize * kChunk;
      const std::uint32_t to = stage + TileRows::offset(row, chunk % TileRows::kChunks);
      // What lies behind the sequence, or before the window, may be anything, also NaN; its values must be
      // zero.
      const bool inside = row - hidden < seen;
      copy_async_16(to, key, inside);
      copy_async_16(to + Sizes::kTileBytes, key + args_.values_offset, inside);
    }
    if (kIsCode<E> && lane_ < 8) {  // of four tokens each
      const int first = token + static_cast<int>(lane_ % 4) * 4;
      const E* head = keys_ + elements(lane_ % 4 < 2 ? upper_block : lower_block, args_.block_stride);
      const E* scales = head + (lane_ < 4 ? args_.key_scales : args_.value_scales) +
                        (first & ((1 << args_.block_shift) - 1)) * sizeof(float);
      copy_async_16(stage + Sizes::kScales + lane_ * 16, scales, true);
    }
    tile_ += Sizes::kWarps;
  }

  const DecodeArgs& args_;
  const Pieces& pieces_;
  const int warp_;
  const unsigned lane_;
  Piece piece_{};
  Piece next_;
  const E* keys_ = nullptr;  // of the KV head
  int index_ = -1;           // of piece_
  bool begins_ = true;       // nothing of piece_ is loaded
  int tile_ = 0;
  unsigned known_ = ~0U;  // of which 32 of this warp's tiles the blocks are known
  int upper_block_ = 0;
  int lower_block_ = 0;
};

}  // namespace quire::cuda
