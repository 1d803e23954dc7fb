// Prefill attention for Hopper (sm_90a): out[token, head] = softmax(q · kᵀ * scale) · v over the paged cache,
// causal, for sequences of more than one query token. One block of threads an SM takes tiles of kTileRows
// (token, head) rows, longest first, until none is left. One warp fetches: queries, and keys and values block
// by block, by TMA into two stages of shared memory. Two warpgroups have 64 rows each and go over the keys
// from the last on (only there some are masked), overlapping as FlashAttention-3 does (Shah et al., 2024):
// the scores of the next keys are issued before the values of these, so that the softmax runs under matrix
// products, and the warpgroups take turns at issuing, so that one's softmax runs under the other's products.
// Layout: keys and values of one (block, head) contiguous, q and out rows strided; in shared memory, rows of
// 64 dimensions (128 bytes), swizzled. Flops: 4 * head_dim a (row, key). Bytes: keys and values once a tile,
// from L2.
#include <algorithm>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/prefill_rows.cuh"

namespace quire::cuda {
namespace {

constexpr int kRowBytes = 128;  // of shared memory: 64 dimensions
constexpr int kStages = 2;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kWarpgroup = 128;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kConsumerWarps = 4 * kConsumers;
// Of the 64K registers of an SM: 2 * 128 * 232 + 128 * 40.
constexpr int kConsumerRegisters = 232;
constexpr int kProducerRegisters = 40;

template <int kHeadDim>
struct Shape {
  static constexpr int kDim = kHeadDim;
  static constexpr int kChunks = (kDim + 63) / 64;         // of 64 dimensions; the last may end in zeros
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;     // of one stage
  static constexpr int kColumns = kDim == 80 ? 96 : kDim;  // of the sums
  static constexpr int kProductColumns = std::min(kColumns, 128);
  static constexpr int kQueryChunk = kTileRows * kRowBytes;
  static constexpr int kKeyChunk = kKeys * kRowBytes;
};

template <typename S>
struct Shared {
  std::uint8_t queries[S::kChunks][S::kQueryChunk];
  std::uint8_t keys[kStages][S::kChunks][S::kKeyChunk];
  std::uint8_t values[kStages][S::kChunks][S::kKeyChunk];
  std::uint64_t queries_full, queries_free;
  std::uint64_t keys_full[kStages], keys_free[kStages];
  std::uint64_t values_full[kStages], values_free[kStages];
  PrefillTile tile;  // of `queries`; no tokens: there is no more work
  int head_tile;
};

struct Maps {
  CUtensorMap queries;  // [tokens, heads, dim]
  CUtensorMap keys;     // [blocks, KV heads, tokens of a block, dim]
  CUtensorMap values;
};

// Which stage is next, and the parity of its phase.
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ void next() {
    stage ^= 1;
    parity ^= stage == 0;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The fetching warp. A lane copies one box: a block's tokens (kKeys of them at most) by 64 dimensions.
template <typename S>
struct Producer {
  const PrefillParams& p;
  const Maps& maps;
  Shared<S>& shared;
  int lane = threadIdx.x % 32;
  int chunk = lane % S::kChunks;
  int box_shift = min(p.block_shift, 31 - __clz(S::kKeys));
  int first_token = lane / S::kChunks << box_shift;  // of the lane's box in its stage
  Ring ring;

  __device__ int block_of(const int* table, int first_key, int num_keys) const {
    const int key = first_key + first_token;
    return first_token < S::kKeys && key < num_keys ? table[key >> p.block_shift] : -1;
  }

  __device__ void copy_stage(const CUtensorMap& map, std::uint8_t* to, std::uint64_t* full,
                             std::uint64_t* free, int kv_head, int block, int first_key) {
    hopper::wait(free, ring.parity ^ 1);
    const unsigned boxes = __popc(__ballot_sync(0xFFFFFFFFU, block >= 0));
    if (lane == 0) hopper::arrive_expecting(full, boxes * (kRowBytes << box_shift));
    __syncwarp();
    if (block >= 0) {
      hopper::copy_box(to + chunk * S::kKeyChunk + first_token * kRowBytes, map, chunk * 64,
                       (first_key + first_token) & ((1 << p.block_shift) - 1), kv_head, block, full);
    }
  }

  __device__ void copy_queries(const PrefillTile& tile, int head_tile, unsigned parity) {
    hopper::wait(&shared.queries_free, parity ^ 1);
    if (lane == 0) {
      shared.tile = tile;
      shared.head_tile = head_tile;
      const unsigned bytes = p.packed_heads * p.tile_tokens * kRowBytes;
      hopper::arrive_expecting(&shared.queries_full, tile.tokens > 0 ? S::kChunks * bytes : 0);
      if (tile.tokens > 0) {
        for (int c = 0; c < S::kChunks; ++c) {
          hopper::copy_box(shared.queries[c], maps.queries, c * 64, head_tile * p.packed_heads, tile.row,
                           &shared.queries_full);
        }
      }
    }
  }

  __device__ void run() {
    const auto* tiles = reinterpret_cast<const PrefillTile*>(p.plan + 1);
    const int work = p.plan->num_tiles * p.head_tiles;
    for (unsigned parity = 0;; parity ^= 1) {
      int taken = 0;
      if (lane == 0) taken = atomicAdd(&p.plan->next, 1);
      taken = __shfl_sync(0xFFFFFFFFU, taken, 0);
      if (taken >= work) {
        // Every block of threads asks in vain once; the last to do so leaves the plan ready for the next
        // layer.
        if (lane == 0 && taken == work + static_cast<int>(gridDim.x) - 1) p.plan->next = 0;
        copy_queries({}, 0, parity);
        return;
      }
      const PrefillTile tile = tiles[taken / p.head_tiles];
      const int head_tile = taken % p.head_tiles;
      copy_queries(tile, head_tile, parity);
      const int kv_head = head_tile * p.packed_heads / p.group;
      const int* table = p.block_tables + tile.table_row * p.table_stride;
      const int num_keys = tile.position + tile.tokens;
      int first_key = (num_keys - 1) / S::kKeys * S::kKeys;
      int block = block_of(table, first_key, num_keys);
      for (; first_key >= 0; first_key -= S::kKeys) {
        const int next_block = first_key > 0 ? block_of(table, first_key - S::kKeys, num_keys) : 0;
        const int s = ring.stage;
        copy_stage(maps.keys, shared.keys[s][0], &shared.keys_full[s], &shared.keys_free[s], kv_head, block,
                   first_key);
        copy_stage(maps.values, shared.values[s][0], &shared.values_full[s], &shared.values_free[s], kv_head,
                   block, first_key);
        block = next_block;
        ring.next();
      }
    }
  }
};

// One of the warpgroups that compute: rows [64 * group, 64 * group + 64) of a tile.
template <typename T, typename S>
struct Consumer {
  const PrefillParams& p;
  Shared<S>& shared;
  int group;
  int thread = threadIdx.x % kWarpgroup;
  Ring ring;
  SoftmaxRows softmax;
  float scores[S::kKeys / 8][4];
  std::uint32_t weights[S::kKeys / 16][4];  // scores that have been weighed, as a product's left operand
  float sums[S::kColumns / 8][4];

  __device__ void release(std::uint64_t* barrier) const {
    if (thread % 32 == 0) hopper::arrive(barrier);
  }
  // The warpgroups take turns from wait_for_turn to end_turn.
  __device__ void wait_for_turn() const { hopper::sync_threads(1 + group, 2 * kWarpgroup); }
  __device__ void end_turn() const { hopper::arrive_threads(2 - group, 2 * kWarpgroup); }

  __device__ void start_scores(int stage) {
    const std::uint64_t q = hopper::by_rows(shared_address(shared.queries[0]) + group * 64 * kRowBytes);
    const std::uint64_t k = hopper::by_rows(shared_address(shared.keys[stage][0]));
    hopper::pin(scores);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < S::kDim / 16; ++i) {
      hopper::multiply_shared<T>(scores, hopper::advance(q, i / 4 * S::kQueryChunk + i % 4 * 32),
                                 hopper::advance(k, i / 4 * S::kKeyChunk + i % 4 * 32), i > 0);
    }
    hopper::commit_products();
  }

  __device__ void start_sums(int stage) {
    const std::uint64_t v = hopper::by_columns(shared_address(shared.values[stage][0]), S::kKeyChunk);
    hopper::pin(sums);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) {
      const std::uint64_t rows = hopper::advance(v, i * 16 * kRowBytes);
      hopper::multiply_registers<T, S::kProductColumns, 0>(sums, weights[i], rows);
      if constexpr (S::kColumns > 128) {
        hopper::multiply_registers<T, 128, 16>(sums, weights[i], hopper::advance(rows, 2 * S::kKeyChunk));
      }
    }
    hopper::commit_products();
  }

  // Past the sequence's end lie another's values or none, and a weight of 0 does not make them 0.
  __device__ void clear_values(int stage, int first_row) const {
    constexpr int kVectors = kRowBytes / 16;
    const int count = (S::kKeys - first_row) * kVectors;
    for (int c = 0; c < S::kChunks; ++c) {
      auto* rows = reinterpret_cast<uint4*>(shared.values[stage][c]) + first_row * kVectors;
      for (int i = thread; i < count; i += kWarpgroup) rows[i] = make_uint4(0, 0, 0, 0);
    }
    hopper::publish_stores();
    hopper::sync_threads(3 + group, kWarpgroup);
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&block)[4] = scores[2 * i + j / 2];
        weights[i][j] = pack(block[j % 2 * 2], block[j % 2 * 2 + 1], T());
      }
    }
  }

  __device__ void compute(const PrefillTile& tile, int head_tile) {
    const int row = 64 * group + thread / 32 * 16 + thread % 32 / 4;
    const int last[2] = {last_key(p, tile, row), last_key(p, tile, row + 8)};
    const int all_see = last_key(p, tile, 64 * group);  // the last key that all 64 rows see
    const int num_keys = tile.position + tile.tokens;
    int first_key = (num_keys - 1) / S::kKeys * S::kKeys;
    float shrink[2];
    softmax = {};
#pragma unroll
    for (auto& block : sums) block[0] = block[1] = block[2] = block[3] = 0;

    hopper::wait(&shared.keys_full[ring.stage], ring.parity);
    start_scores(ring.stage);
    hopper::wait_for_products<0>();
    hopper::pin(scores);
    release(&shared.keys_free[ring.stage]);
    if (first_key == 0) release(&shared.queries_free);
    mask_scores(scores, first_key, last);
    softmax.weigh(scores, p.scale_log2, shrink);
    pack_weights();
    hopper::wait(&shared.values_full[ring.stage], ring.parity);
    if (num_keys - first_key < S::kKeys) clear_values(ring.stage, num_keys - first_key);

    Ring next = ring;
    next.next();
    if (first_key > 0) hopper::wait(&shared.keys_full[next.stage], next.parity);
    while (first_key > 0) {
      first_key -= S::kKeys;
      const Ring before = ring;
      ring = next;
      next.next();
      wait_for_turn();
      start_scores(ring.stage);
      hopper::wait(&shared.values_full[before.stage], before.parity);
      start_sums(before.stage);
      end_turn();
      hopper::wait_for_products<1>();
      hopper::pin(scores);
      release(&shared.keys_free[ring.stage]);
      if (first_key == 0) release(&shared.queries_free);
      if (first_key + S::kKeys - 1 > all_see) mask_scores(scores, first_key, last);
      softmax.weigh(scores, p.scale_log2, shrink);
      hopper::pin(scores);
      // Here, and not where the loop begins, since ptxas moves the wait below above the softmax, but not over
      // a branch.
      if (first_key > 0) hopper::wait(&shared.keys_full[next.stage], next.parity);
      hopper::wait_for_products<0>();
      hopper::pin(sums);
      release(&shared.values_free[before.stage]);
      multiply_rows(sums, shrink);
      pack_weights();
    }
    hopper::wait(&shared.values_full[ring.stage], ring.parity);
    start_sums(ring.stage);
    hopper::wait_for_products<0>();
    hopper::pin(sums);
    release(&shared.values_free[ring.stage]);
    ring.next();
    write_rows<T, S::kDim>(p, tile, head_tile, row, sums, softmax.total);
  }

  __device__ void run() {
    if (group == 1) end_turn();  // the first is the other's
    for (unsigned parity = 0;; parity ^= 1) {
      hopper::wait(&shared.queries_full, parity);
      const PrefillTile tile = shared.tile;
      if (tile.tokens == 0) return;
      compute(tile, shared.head_tile);
    }
  }
};

template <typename S>
__device__ void init_barriers(Shared<S>& shared) {
  hopper::init_barrier(&shared.queries_full, 1);
  hopper::init_barrier(&shared.queries_free, kConsumerWarps);
  for (int s = 0; s < kStages; ++s) {
    hopper::init_barrier(&shared.keys_full[s], 1);
    hopper::init_barrier(&shared.values_full[s], 1);
    hopper::init_barrier(&shared.keys_free[s], kConsumerWarps);
    hopper::init_barrier(&shared.values_free[s], kConsumerWarps);
  }
  hopper::publish_barriers();
}

#endif

template <typename T, typename S>
__global__ __launch_bounds__(kThreads, 1) void prefill_hopper_kernel(const __grid_constant__ Maps maps,
                                                                     const PrefillParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t memory[];  // swizzling goes by address: 1,024 bytes repeat
  auto& shared = *reinterpret_cast<Shared<S>*>(memory);
  cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  cudaGridDependencySynchronize();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    hopper::give_registers<kProducerRegisters>();
    if (threadIdx.x < kConsumers * kWarpgroup + 32) Producer<S>{p, maps, shared}.run();
  } else {
    hopper::take_registers<kConsumerRegisters>();
    Consumer<T, S>{p, shared, static_cast<int>(threadIdx.x) / kWarpgroup}.run();
  }
#else
  __trap();
#endif
}

// A map of a tensor in 16-bit values, boxes of 64 dimensions by those given; sizes and boxes from the
// innermost on.
template <int kRank>
CUtensorMap make_map(const Tensor& tensor, const cuuint64_t (&sizes)[kRank],
                     const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                           &found),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(
      &map,
      tensor.dtype() == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      kRank, tensor.data(), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "a tensor map of prefill_attention");
  return map;
}

// Of keys or values [blocks, KV heads, tokens of a block, dim].
CUtensorMap cache_map(const Tensor& half, int keys_of_stage) {
  const auto size = [&](int i) { return static_cast<cuuint64_t>(half.dim(i)); };
  const auto stride = [&](int i) { return static_cast<cuuint64_t>(half.stride(i)) * 2; };
  const auto tokens = static_cast<cuuint32_t>(std::min<std::int64_t>(half.dim(2), keys_of_stage));
  return make_map<4>(half, {size(3), size(2), size(1), size(0)}, {stride(2), stride(1), stride(0)},
                     {64, tokens, 1, 1});
}

CUtensorMap query_map(const Tensor& q, const PrefillParams& params, const AttentionBatch& batch,
                      const AttentionShape& shape) {
  const auto dim = static_cast<cuuint64_t>(shape.head_dim);
  return make_map<3>(
      q, {dim, static_cast<cuuint64_t>(shape.num_heads), static_cast<cuuint64_t>(batch.num_tokens)},
      {dim * 2, static_cast<cuuint64_t>(q.stride(0)) * 2},
      {64, static_cast<cuuint32_t>(params.packed_heads), static_cast<cuuint32_t>(params.tile_tokens)});
}

template <typename T, int kDim>
void launch_shape(const LaunchContext& context, const PrefillParams& params, const AttentionCall& call,
                  const AttentionBatch& batch, const AttentionShape& shape) {
  using S = Shape<kDim>;
  constexpr int kBytes = sizeof(Shared<S>);
  static const cudaError_t enlarged =
      cudaFuncSetAttribute(prefill_hopper_kernel<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  check(enlarged, "shared memory of prefill_attention");
  const Maps maps{query_map(call.q, params, batch, shape), cache_map(call.cache.keys, S::kKeys),
                  cache_map(call.cache.values, S::kKeys)};
  const int grid = std::min(context.num_sms, max_prefill_work(batch, params));
  launch(context, "prefill_attention", prefill_hopper_kernel<T, S>, grid, kThreads, kBytes, maps, params);
}

template <typename T>
void launch_dim(const LaunchContext& context, const PrefillParams& params, const AttentionCall& call,
                const AttentionBatch& batch, const AttentionShape& shape) {
  switch (shape.head_dim) {
    case 64:
      return launch_shape<T, 64>(context, params, call, batch, shape);
    case 80:
      return launch_shape<T, 80>(context, params, call, batch, shape);
    case 96:
      return launch_shape<T, 96>(context, params, call, batch, shape);
    case 128:
      return launch_shape<T, 128>(context, params, call, batch, shape);
    case 256:
      return launch_shape<T, 256>(context, params, call, batch, shape);
    default:
      check(cudaErrorInvalidValue, "prefill_attention has no kernel for this head size");
  }
}

}  // namespace

void prefill_attention_hopper(const LaunchContext& context, const PrefillParams& params,
                              const AttentionCall& call, const AttentionBatch& batch,
                              const AttentionShape& shape) {
  if (call.q.dtype() == DType::kBF16) {
    launch_dim<__nv_bfloat16>(context, params, call, batch, shape);
  } else {
    launch_dim<__half>(context, params, call, batch, shape);
  }
}

}  // namespace quire::cuda
