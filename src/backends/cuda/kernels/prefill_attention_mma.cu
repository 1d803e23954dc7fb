// Prefill attention for every GPU with bf16 tensor cores: out[token, head] = softmax(scores of q · kᵀ) · v
// over the paged cache, causal.
//
// A block of threads takes one tile of kTileRows (token, head) rows, each warp some of them, and goes over
// the keys once, from the first that one of its tokens sees on, with the running softmax of FlashAttention-2
// (Dao, 2023): values are loaded while scores are computed, the next keys while values are summed.
//
// Layout: keys and values of one (block, head) contiguous, q and out rows strided. In shared memory, rows of
// kRowBytes; 16-byte chunk c of a row lies at c ^ (row % 8), so that eight rows' chunks fall into all banks.
//
// Flops: 4 * head_dim a (row, key). Bytes: keys and values once a tile, from L2. On an H200 (whose own kernel
// is another), with 16 query and 8 KV heads of 128, bf16 and blocks of 16: 249, 279 to 303 and 331 TFLOP/s on
// 16 x 1k, 4 x 4k and 1 x 16k tokens, where PyTorch's FlashAttention-2 reached 228, 307 and 321 in the same
// run.
#include "backends/cuda/kernels/prefill_rows.cuh"

namespace quire::cuda {
namespace {

template <int kHeadDim>
struct Shape {
  static constexpr int kDim = kHeadDim;
  static constexpr int kRowBytes = kDim <= 64 ? 128 : kDim <= 128 ? 256 : 512;
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;  // in one step; with 256 dimensions, 96 KiB are at hand
  static constexpr int kParts = kDim <= 128 ? 2 : 1;   // times 16 rows a warp
  static constexpr int kThreads = kTileRows / (16 * kParts) * 32;
  static constexpr int kBytes = (kTileRows + 2 * kKeys) * kRowBytes;
};

// Where a 16-byte chunk lies in rows of kRowBytes. An even number of chunks further on is an exclusive or of
// its bytes away.
template <typename S>
__device__ std::uint32_t offset_of(int row, int chunk) {
  return row * S::kRowBytes + (chunk ^ (row & 7)) * 16;
}

template <typename T, typename S>
__device__ void load_queries(const PrefillParams& p, const PrefillTile& tile, int head_tile,
                             std::uint8_t* to) {
  constexpr int kChunks = S::kDim / 8;
#pragma unroll
  for (int j = 0; j < kTileRows * kChunks / S::kThreads; ++j) {
    const int row = (threadIdx.x + j * S::kThreads) / kChunks;
    const int chunk = (threadIdx.x + j * S::kThreads) % kChunks;
    const int token = row / p.packed_heads;
    const int head = head_tile * p.packed_heads + row % p.packed_heads;
    const T* from = static_cast<const T*>(p.q) + (tile.row + min(token, tile.tokens - 1)) * p.q_stride +
                    static_cast<std::int64_t>(head) * S::kDim + chunk * 8;
    copy_async_16(to + offset_of<S>(row, chunk), from, token < tile.tokens);
  }
}

// kKeys keys (or values) from first_key on, of those of a KV head; zeros for those that no token of the tile
// sees, where another sequence's may lie. E: numbers, or a byte: codes, with their scales. Codes come through
// registers, and are there on return.
template <typename T, typename S, typename E>
__device__ void load_keys(const PrefillParams& p, const PrefillTile& tile, const E* rows, const float* scales,
                          const int* table, int first_key, std::uint8_t* to) {
  const int begin = first_key_of(p, tile);
  const int end = tile.position + tile.tokens;
  constexpr int kPiece = 16 / sizeof(E);
  constexpr int kPieces = S::kDim / kPiece;
  constexpr int kCount = S::kKeys * kPieces;
#pragma unroll
  for (int j = 0; j < (kCount + S::kThreads - 1) / S::kThreads; ++j) {
    const unsigned i = threadIdx.x + j * S::kThreads;
    if (kCount % S::kThreads != 0 && i >= kCount) break;
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const int key = min(max(first_key + row, begin), end - 1);
    const bool is_seen = first_key + row == key;
    const std::int64_t block = table[key >> p.block_shift];
    const int offset = key & ((1 << p.block_shift) - 1);
    const E* from = rows + block * p.block_stride + offset * S::kDim + piece * kPiece;
    if constexpr (sizeof(E) == 1) {
      uint4 wide[2] = {};
      if (is_seen) {
        const uint4 codes = *reinterpret_cast<const uint4*>(from);
        const float scale = scales[block * p.scale_block_stride + offset];
        const auto scaled = [&](std::uint32_t pair) {  // in float32, rounded once
          const float2 values = __half22float2(reinterpret_cast<const __half2&>(pair));
          return pack(scale * values.x, scale * values.y, T());
        };
        p.code == CacheCode::kE4m3 ? widen_row<CacheCode::kE4m3>(codes, scaled, wide)
                                   : widen_row<CacheCode::kE5m2>(codes, scaled, wide);
      }
      *reinterpret_cast<uint4*>(to + offset_of<S>(row, 2 * piece)) = wide[0];
      *reinterpret_cast<uint4*>(to + offset_of<S>(row, 2 * piece + 1)) = wide[1];
    } else {
      copy_async_16(to + offset_of<S>(row, piece), from, is_seen);
    }
  }
  commit_copies();
}

// A warp's kParts times 16 rows, from first_row of the tile on.
template <typename T, typename S>
struct WarpRows {
  float sums[S::kParts][S::kDim / 8][4] = {};
  float scores[S::kParts][S::kKeys / 8][4];
  SoftmaxRows softmax[S::kParts];

  __device__ void score(const std::uint8_t* queries, const std::uint8_t* keys, int first_row) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t query = offset_of<S>(first_row + lane % 16, lane / 16);
    const std::uint32_t key = offset_of<S>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < S::kParts; ++m) {
#pragma unroll
      for (auto& block : scores[m]) block[0] = block[1] = block[2] = block[3] = 0;
    }
#pragma unroll
    for (int k = 0; k < S::kDim / 16; ++k) {
      std::uint32_t a[S::kParts][4];
#pragma unroll
      for (int m = 0; m < S::kParts; ++m)
        load_matrices(a[m], queries + (query ^ (k * 32)) + m * 16 * S::kRowBytes);
#pragma unroll
      for (int n = 0; n < S::kKeys / 16; ++n) {
        std::uint32_t b[4];
        load_matrices(b, keys + (key ^ (k * 32)) + n * 16 * S::kRowBytes);
#pragma unroll
        for (int m = 0; m < S::kParts; ++m) {
          multiply_add<T>(scores[m][2 * n], a[m], b[0], b[1]);
          multiply_add<T>(scores[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ void weigh(const PrefillParams& p, const PrefillTile& tile, int first_row, int first_key) {
#pragma unroll
    for (int m = 0; m < S::kParts; ++m) {
      if (p.scores.inner != 0) cap_scores(scores[m], p.scores.inner, p.far_from_cap);
      if (first_key + S::kKeys - 1 > tile.position ||
          first_key < tile.position + tile.tokens - p.scores.window) {
        const int row = first_row + 16 * m + threadIdx.x % 32 / 4;
        mask_scores(scores[m], first_key, {last_key(p, tile, row), last_key(p, tile, row + 8)},
                    p.scores.window);
      }
      float shrink[2];
      softmax[m].weigh(scores[m], p.scores.outer, shrink);
      multiply_rows(sums[m], shrink);
    }
  }

  __device__ void add_values(const std::uint8_t* values) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t value = offset_of<S>(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
      std::uint32_t a[S::kParts][4];
#pragma unroll
      for (int m = 0; m < S::kParts; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&block)[4] = scores[m][2 * k + i / 2];
          a[m][i] = pack(block[i % 2 * 2], block[i % 2 * 2 + 1], T());
        }
      }
#pragma unroll
      for (int n = 0; n < S::kDim / 16; ++n) {
        std::uint32_t b[4];
        load_matrices_transposed(b, values + (value ^ (n * 32)) + k * 16 * S::kRowBytes);
#pragma unroll
        for (int m = 0; m < S::kParts; ++m) {
          multiply_add<T>(sums[m][2 * n], a[m], b[0], b[1]);
          multiply_add<T>(sums[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

template <typename T, typename S, typename E>
__global__ __launch_bounds__(S::kThreads) void prefill_mma_kernel(const PrefillParams p) {
  extern __shared__ __align__(512) std::uint8_t shared[];
  admit_next_kernel();
  wait_for_kernels();
  const int index = blockIdx.x / p.head_tiles;
  if (index >= p.plan->num_tiles) return;
  const PrefillTile tile = reinterpret_cast<const PrefillTile*>(p.plan + 1)[index];
  const int head_tile = blockIdx.x % p.head_tiles;
  const int kv_head = head_tile * p.packed_heads / p.group;
  const int* table = p.block_tables + tile.table_row * p.table_stride;
  const E* key_rows = static_cast<const E*>(p.keys) + kv_head * p.head_stride;
  const E* value_rows = static_cast<const E*>(p.values) + kv_head * p.head_stride;
  const float* key_scales = p.key_scales + kv_head * p.scale_head_stride;
  const float* value_scales = p.value_scales + kv_head * p.scale_head_stride;
  const int end = tile.position + tile.tokens;
  const int first_row = threadIdx.x / 32 * 16 * S::kParts;

  std::uint8_t* queries = shared;
  std::uint8_t* keys = queries + kTileRows * S::kRowBytes;
  std::uint8_t* values = keys + S::kKeys * S::kRowBytes;
  load_queries<T, S>(p, tile, head_tile, queries);
  int first_key = first_key_of(p, tile) / S::kKeys * S::kKeys;
  load_keys<T, S>(p, tile, key_rows, key_scales, table, first_key, keys);
  WarpRows<T, S> rows;
  for (; first_key < end; first_key += S::kKeys) {
    wait_for_copies<0>();
    __syncthreads();
    load_keys<T, S>(p, tile, value_rows, value_scales, table, first_key, values);
    rows.score(queries, keys, first_row);
    rows.weigh(p, tile, first_row, first_key);
    wait_for_copies<0>();
    __syncthreads();
    if (first_key + S::kKeys < end)
      load_keys<T, S>(p, tile, key_rows, key_scales, table, first_key + S::kKeys, keys);
    rows.add_values(values);
  }
#pragma unroll
  for (int m = 0; m < S::kParts; ++m) {
    write_rows<T, S::kDim>(p, tile, head_tile, first_row + 16 * m + threadIdx.x % 32 / 4, rows.sums[m],
                           rows.softmax[m]);
  }
}

}  // namespace

void prefill_attention_mma(const LaunchContext& context, const PrefillParams& params,
                           const AttentionBatch& batch, const AttentionShape& shape, DType dtype) {
  const auto run = [&]<typename T, typename S, typename E>() {
    constexpr auto kernel = prefill_mma_kernel<T, S, E>;
    allow_shared_bytes<kernel>(S::kBytes);
    launch(context, "prefill_attention", kernel, max_prefill_work(batch, params), S::kThreads, S::kBytes,
           params);
  };
  dispatch_operand(dtype, [&]<typename T>() {
    const bool has_kernel = dispatch_head_dim(shape.head_dim, [&]<int kDim>() {
      params.code == CacheCode::kNone ? run.template operator()<T, Shape<kDim>, T>()
                                      : run.template operator()<T, Shape<kDim>, std::uint8_t>();
    });
    require(has_kernel, "prefill_attention has no kernel for this head size");
  });
}

}  // namespace quire::cuda
