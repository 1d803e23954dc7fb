#pragma once

#include <type_traits>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/prefill_rows.cuh"
#include "backends/cuda/kernels/product_tile.cuh"

// Shared memory of prefill attention for Hopper, and the warps that fill its stages of keys and values: by
// copies of boxes, or from codes.
namespace quire::cuda::prefill {

constexpr int kRowBytes = 128;  // of shared memory: 64 dimensions
constexpr int kStages = 2;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kWarpgroup = 128;
constexpr int kProducerWarps = 2;  // each for keys and for values

template <int kHeadDim, bool kOfCodes>
struct Shape {
  static constexpr int kDim = kHeadDim;
  static constexpr bool kCodes = kOfCodes;                 // what the cache holds
  static constexpr int kChunks = (kDim + 63) / 64;         // of 64 dimensions; the last may end in zeros
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;     // of one stage
  static constexpr int kQueryTiles = kDim <= 128 ? 2 : 1;  // of the tile in hand and of the next
  static constexpr int kQueryChunk = kTileRows * kRowBytes;
  static constexpr int kKeyChunk = kKeys * kRowBytes;
};

struct Work {
  PrefillTile tile;  // no tokens: there is no more work
  int index;         // of the piece: [tiles, head tiles, pieces]

  __device__ int head_tile(const PrefillParams& p) const { return index / p.pieces % p.head_tiles; }
};

// Codes on their way: each lane's own, 16 at a time. A warp has half a stage's rows, in steps in which kLanes
// neighbours share a row, and kParts times as many codes make one; they are copied some steps at a time.
template <typename S>
struct StagedCodes {
  static constexpr int kRows = S::kKeys / kProducerWarps;
  static constexpr int kPieces = S::kDim / 16;  // of a row
  static constexpr int kLanes = kPieces % 4 == 0 ? 4 : 1;
  static constexpr int kParts = kPieces / kLanes;
  static constexpr int kStepRows = 32 / kLanes;
  static constexpr int kGroupSteps = kParts < 4 ? 8 / kParts : 1;
  static constexpr int kGroups = kRows / (kStepRows * kGroupSteps);

  uint4 codes[2 * kProducerWarps][kGroups * kGroupSteps][kParts][32];
  float scales[2 * kProducerWarps][kStages][kRows];
};
struct NoCodes {};

template <typename S>
struct Shared {
  std::uint8_t queries[S::kQueryTiles][S::kChunks][S::kQueryChunk];
  std::uint8_t keys[kStages][S::kChunks][S::kKeyChunk];
  std::uint8_t values[kStages][S::kChunks][S::kKeyChunk];
  std::conditional_t<S::kCodes, StagedCodes<S>, NoCodes> staged;
  std::uint64_t queries_full[S::kQueryTiles], queries_free[S::kQueryTiles];
  std::uint64_t keys_full[kStages], keys_free[kStages];
  std::uint64_t values_full[kStages], values_free[kStages];
  Work work[S::kQueryTiles];  // of `queries`
  Work fetched[2];            // what is fetched, and what will be
};

struct Maps {
  CUtensorMap queries;  // [tokens, heads, dim]
  CUtensorMap keys;     // [blocks, KV heads, tokens of a block, dim]; of codes, none
  CUtensorMap values;
};

// The keys [begin, end) that a tile's tokens see, or a piece of them in whole stages, and where they are.
struct KeyRange {
  const int* table;
  int kv_head, begin, end;

  __device__ KeyRange(const PrefillParams& p, const Work& work, int stage_keys)
      : table(p.block_tables + work.tile.table_row * p.table_stride),
        kv_head(work.head_tile(p) * p.packed_heads / p.group),
        begin(first_key_of(p, work.tile)),
        end(work.tile.position + work.tile.tokens) {
    if (p.pieces == 1) return;
    const int first = begin / stage_keys, stages = (end - 1) / stage_keys + 1 - first;
    const int piece = work.index % p.pieces;
    begin = max(begin, (first + stages * piece / p.pieces) * stage_keys);
    end = min(end, (first + stages * (piece + 1) / p.pieces) * stage_keys);
  }
  __device__ bool empty() const { return begin >= end; }
};

// One of the four warps that fill stages: two with keys, two with values, since each can start few copies at
// a time. A lane copies one box: a block's tokens (kKeys of them at most) by 64 dimensions.
template <typename S>
struct BoxStages {
  // In place of a block. Boxes of block -1 lie outside of the cache, and are read as zeros.
  static constexpr int kZeros = -1;
  static constexpr int kNothing = -2;

  const PrefillParams& p;
  const Maps& maps;
  Shared<S>& shared;
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x % kWarpgroup / 32;
  bool of_keys = warp < kProducerWarps;
  int box = lane * kProducerWarps + warp % kProducerWarps;
  int chunk = box % S::kChunks;
  int box_shift = min(p.block_shift, 31 - __clz(S::kKeys));
  int first_token = box / S::kChunks << box_shift;  // of the lane's box in its stage
  RingStage ring;

  // What the lane copies to the stage of first_key: a block; kZeros where no token sees the box; kNothing.
  __device__ int block_of(const KeyRange& keys, int first_key) const {
    const int key = first_key + first_token;
    if (first_token >= S::kKeys || first_key < 0 || key >= keys.end) return kNothing;
    return key + (1 << box_shift) > keys.begin ? keys.table[key >> p.block_shift] : kZeros;
  }

  __device__ void fill(int kv_head, int block, int first_key) {
    const int s = ring.place;
    std::uint64_t* full = of_keys ? &shared.keys_full[s] : &shared.values_full[s];
    hopper::wait(of_keys ? &shared.keys_free[s] : &shared.values_free[s], ring.parity ^ 1);
    const unsigned boxes = __popc(__ballot_sync(0xFFFFFFFFU, block != kNothing));
    if (lane == 0) hopper::arrive_expecting(full, boxes * (kRowBytes << box_shift));
    __syncwarp();
    if (block != kNothing) {
      std::uint8_t* to = of_keys ? shared.keys[s][chunk] : shared.values[s][chunk];
      hopper::copy_box(to + first_token * kRowBytes, of_keys ? maps.keys : maps.values, chunk * 64,
                       (first_key + first_token) & ((1 << p.block_shift) - 1), kv_head, block, full);
    }
    ring.next(kStages);
  }

  // A tile's stages from the last keys on; calls `meanwhile` once the first is under way.
  template <typename F>
  __device__ void fill_all(const KeyRange& keys, F&& meanwhile) {
    int first_key = (keys.end - 1) / S::kKeys * S::kKeys;
    fill(keys.kv_head, block_of(keys, first_key), first_key);
    meanwhile();
    int block = block_of(keys, first_key - S::kKeys);
    while ((first_key -= S::kKeys) > keys.begin - S::kKeys) {
      const int block_after = block_of(keys, first_key - S::kKeys);
      fill(keys.kv_head, block, first_key);
      block = block_after;
    }
  }
};

// A row's scale in float16, which multiplies pairs. A scale of more than 128 (of E5M2 1) becomes that, which
// shrinks a row of values beyond 57,344; a row becomes zeros where all its values are below 1.3e-5 (6.7e-6).
// A checkpoint's scale is rounded to float16.
template <CacheCode kCode>
class RowScale {
 public:
  __device__ explicit RowScale(float scale) {
    constexpr float kMost = 57344 / largest_of(kCode) * kShift;
    const float shifted = scale * kShift;
    factor_ = __float2half2_rn(shifted > kMost ? kMost : shifted);  // NaN remains
  }
  __device__ std::uint32_t operator()(std::uint32_t pair) const {
    auto values = reinterpret_cast<const __half2&>(pair);
    if (kShift != 1) values = __hmul2(values, __float2half2_rn(1 / kShift));
    values = __hmul2(values, factor_);
    return reinterpret_cast<const std::uint32_t&>(values);
  }

 private:
  // E5M2 reaches as far as float16, so that its scales are small: they grow first, and its codes shrink.
  static constexpr float kShift = kCode == CacheCode::kE5m2 ? 256 : 1;
  __half2 factor_;
};

// The same of a cache of codes. A lane copies codes to places of its own, and the next stage's behind them
// as it widens this one's, times the row's scale, to float16: which has all values of codes, and is what
// hardware widens them to. Rows that no token sees become zeros.
template <typename S>
struct CodeStages {
  using Staged = StagedCodes<S>;

  const PrefillParams& p;
  Shared<S>& shared;
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x % kWarpgroup / 32;
  bool of_keys = warp < kProducerWarps;
  int first_row = warp % kProducerWarps * Staged::kRows;  // of the warp's in a stage
  RingStage ring;

  // The block of the warp's rows [8 * lane, 8 * lane + 8) in the stage of first_key, where one is seen.
  __device__ int block_of(const KeyRange& keys, int first_key) const {
    const int key = first_key + first_row + 8 * lane;
    const bool is_seen = 8 * lane < Staged::kRows && key + 8 > keys.begin && key < keys.end;
    return is_seen ? keys.table[key >> p.block_shift] : 0;
  }

  // Starts copies of the scales of the stage of first_key, whose blocks the lanes hold; where the codes of
  // those rows are.
  __device__ const std::uint8_t* start_scales(const KeyRange& keys, int first_key, std::int64_t block,
                                              int place) const {
    const int offset = (first_key + first_row + 8 * lane) & ((1 << p.block_shift) - 1);
    const float* scales = (of_keys ? p.key_scales : p.value_scales) + block * p.scale_block_stride +
                          keys.kv_head * p.scale_head_stride + offset;
    for (int i = 0; i < 8 && 8 * lane < Staged::kRows; i += 4)
      copy_async_16(&shared.staged.scales[warp][place][8 * lane + i], scales + i, true);
    return static_cast<const std::uint8_t*>(of_keys ? p.keys : p.values) + block * p.block_stride +
           keys.kv_head * p.head_stride + offset * S::kDim;
  }

  // Starts copies of a group's codes of the same stage.
  __device__ void start_codes(const KeyRange& keys, int first_key, const std::uint8_t* rows,
                              int group) const {
#pragma unroll
    for (int i = 0; i < Staged::kGroupSteps; ++i) {
      const int step = group * Staged::kGroupSteps + i;
      const int row = step * Staged::kStepRows + lane / Staged::kLanes;
      const int key = first_key + first_row + row;
      const auto eight = __shfl_sync(0xFFFFFFFFU, reinterpret_cast<unsigned long long>(rows), row / 8);
      const auto* from = reinterpret_cast<const uint4*>(eight + row % 8 * S::kDim) + lane % Staged::kLanes;
#pragma unroll
      for (int part = 0; part < Staged::kParts; ++part) {
        copy_async_16(&shared.staged.codes[warp][step][part][lane], from + part * Staged::kLanes,
                      key >= keys.begin && key < keys.end);
      }
    }
  }

  // Widens a group's codes of the stage of first_key, which begins at `to`.
  template <CacheCode kCode>
  __device__ void widen(const KeyRange& keys, int first_key, int group, std::uint8_t* to) const {
    uint4 codes[Staged::kGroupSteps][Staged::kParts];
    float scales[Staged::kGroupSteps];
#pragma unroll
    for (int i = 0; i < Staged::kGroupSteps; ++i) {  // all before the first store, which they could alias
      const int step = group * Staged::kGroupSteps + i;
      const int row = step * Staged::kStepRows + lane / Staged::kLanes;
      const int key = first_key + first_row + row;
      const bool is_seen = key >= keys.begin && key < keys.end;
      scales[i] = is_seen ? shared.staged.scales[warp][ring.place][row] : 0.0F;  // as it may be a NaN
#pragma unroll
      for (int part = 0; part < Staged::kParts; ++part)
        codes[i][part] = shared.staged.codes[warp][step][part][lane];
    }
#pragma unroll
    for (int i = 0; i < Staged::kGroupSteps; ++i) {
      const int step = group * Staged::kGroupSteps + i;
      const int row = first_row + step * Staged::kStepRows + lane / Staged::kLanes;
      const RowScale<kCode> scale(scales[i]);
#pragma unroll
      for (int part = 0; part < Staged::kParts; ++part) {
        const int piece = part * Staged::kLanes + lane % Staged::kLanes;
        std::uint8_t* row_to = to + piece / 4 * S::kKeyChunk + row * kRowBytes;
        uint4 wide[2];
        widen_row<kCode>(codes[i][part], scale, wide);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint4*>(row_to + ((piece % 4 * 2 + half) ^ (row % 8)) * 16) = wide[half];
      }
    }
  }

  // Fills the stage of first_key; next_block: the blocks of the one after it.
  template <CacheCode kCode>
  __device__ void fill(const KeyRange& keys, int first_key, int next_block) {
    const bool is_last = first_key <= keys.begin;
    const int s = ring.place;
    hopper::wait(of_keys ? &shared.keys_free[s] : &shared.values_free[s], ring.parity ^ 1);
    const std::uint8_t* next =
        is_last ? nullptr : start_scales(keys, first_key - S::kKeys, next_block, s ^ 1);
#pragma unroll 1  // small code beside that of the warps that compute
    for (int group = 0; group < Staged::kGroups; ++group) {
      wait_for_copies<Staged::kGroups - 1>();
      if (group == 0) __syncwarp();  // other lanes copied the scales
      widen<kCode>(keys, first_key, group, of_keys ? shared.keys[s][0] : shared.values[s][0]);
      if (group == Staged::kGroups - 1) {  // before more copies start, for which the fence may wait
        hopper::publish_stores();
        __syncwarp();
        if (lane == 0) hopper::arrive(of_keys ? &shared.keys_full[s] : &shared.values_full[s]);
      }
      if (!is_last) start_codes(keys, first_key - S::kKeys, next, group);
      commit_copies();
    }
    ring.next(kStages);
  }

  // As of boxes.
  template <typename F>
  __device__ void fill_all(const KeyRange& keys, F&& meanwhile) {
    int first_key = (keys.end - 1) / S::kKeys * S::kKeys;
    const std::uint8_t* first = start_scales(keys, first_key, block_of(keys, first_key), ring.place);
#pragma unroll 1
    for (int group = 0; group < Staged::kGroups; ++group) {
      start_codes(keys, first_key, first, group);
      commit_copies();
    }
    meanwhile();
    int block = block_of(keys, first_key - S::kKeys);
    for (; first_key > keys.begin - S::kKeys; first_key -= S::kKeys) {
      const int block_after = block_of(keys, first_key - 2 * S::kKeys);
      p.code == CacheCode::kE4m3 ? fill<CacheCode::kE4m3>(keys, first_key, block)
                                 : fill<CacheCode::kE5m2>(keys, first_key, block);
      block = block_after;
    }
  }
};

}  // namespace quire::cuda::prefill
