// Prefill attention for Hopper (sm_90a): out[token, head] = softmax(scores of q · kᵀ) · v over the paged
// cache, causal, for sequences of more than one query token.
//
// One block of threads an SM takes tiles of kTileRows (token, head) rows until none is left. Four warps
// fetch: queries (of the next tile while this one is computed), and keys and values block by block, by TMA
// into two stages of shared memory. Two warpgroups have 64 rows each and go over the keys from the last on
// (only there some are masked); the scores of the next keys are issued before the values of these, so that
// the softmax runs under matrix products (Shah et al., FlashAttention-3, 2024). Having the warpgroups take
// turns, as there, cost 5 % at 4k tokens. Where there is a window, they end at the first stage that it
// reaches.
//
// Layout: keys and values of one (block, head) contiguous, q and out rows strided; in shared memory, rows of
// 64 dimensions (128 bytes), swizzled.
//
// Flops: 4 * head_dim a (row, key). Bytes: keys and values once a tile, from L2. On an H200, with 16 query
// and 8 KV heads of 128, bf16 and blocks of 16: 467 to 477, 644 to 653 and 617 to 651 TFLOP/s on 16 x 1k, 4 x
// 4k and 1 x 16k tokens, of 789 that an 8192³ matrix product reached in the same run.
#include <algorithm>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/prefill_rows.cuh"
#include "backends/cuda/kernels/tensor_map.h"

namespace quire::cuda {
namespace {

constexpr int kRowBytes = 128;  // of shared memory: 64 dimensions
constexpr int kStages = 2;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kWarpgroup = 128;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

template <int kHeadDim>
struct Shape {
  static constexpr int kDim = kHeadDim;
  static constexpr int kChunks = (kDim + 63) / 64;         // of 64 dimensions; the last may end in zeros
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;     // of one stage
  static constexpr int kQueryTiles = kDim <= 128 ? 2 : 1;  // of the tile in hand and of the next
  static constexpr int kQueryChunk = kTileRows * kRowBytes;
  static constexpr int kKeyChunk = kKeys * kRowBytes;
};

struct Work {
  PrefillTile tile;  // no tokens: there is no more work
  int head_tile;
};

template <typename S>
struct Shared {
  std::uint8_t queries[S::kQueryTiles][S::kChunks][S::kQueryChunk];
  std::uint8_t keys[kStages][S::kChunks][S::kKeyChunk];
  std::uint8_t values[kStages][S::kChunks][S::kKeyChunk];
  std::uint64_t queries_full[S::kQueryTiles], queries_free[S::kQueryTiles];
  std::uint64_t keys_full[kStages], keys_free[kStages];
  std::uint64_t values_full[kStages], values_free[kStages];
  Work work[S::kQueryTiles];  // of `queries`
  Work fetched[2];            // what is fetched, and what will be
};

struct Maps {
  CUtensorMap queries;  // [tokens, heads, dim]
  CUtensorMap keys;     // [blocks, KV heads, tokens of a block, dim]
  CUtensorMap values;
};

// Which of a ring's places is next, and the parity of its phase.
template <int kPlaces>
struct Ring {
  int place = 0;
  unsigned parity = 0;
  __device__ void next() {
    place = place + 1 == kPlaces ? 0 : place + 1;
    parity ^= place == 0;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kConsumerWarps = 4 * kConsumers;
// In place of a block. Boxes of block -1 lie outside of the cache, and are read as zeros.
constexpr int kZeros = -1;
constexpr int kNothing = -2;
constexpr int kProducerWarps = 2;  // each for keys and for values
// Numbered barriers.
constexpr int kProducerBarrier = 1;
constexpr int kConsumerBarrier = 2;
// Of the 64K registers of an SM: 2 * 128 * 232 + 128 * 40.
constexpr int kConsumerRegisters = 232;
constexpr int kProducerRegisters = 40;

// One of the four warps that fetch: two the keys, two the values, since each can start few copies at a time.
// A lane copies one box: a block's tokens (kKeys of them at most) by 64 dimensions.
template <typename S>
struct Producer {
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
  Ring<kStages> ring;
  Ring<S::kQueryTiles> queries;

  // What the lane copies to the stage of first_key: a block; kZeros where no token sees the box; kNothing.
  __device__ int block_of(const int* table, int first_key, int begin, int end) const {
    const int key = first_key + first_token;
    if (first_token >= S::kKeys || first_key < 0 || key >= end) return kNothing;
    return key + (1 << box_shift) > begin ? table[key >> p.block_shift] : kZeros;
  }

  __device__ void copy_stage(int kv_head, int block, int first_key) {
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
    ring.next();
  }

  __device__ void copy_queries(const Work& work) {
    const int i = queries.place;
    hopper::wait(&shared.queries_free[i], queries.parity ^ 1);
    shared.work[i] = work;
    if (work.tile.tokens == 0) return hopper::arrive(&shared.queries_full[i]);
    hopper::arrive_expecting(&shared.queries_full[i],
                             S::kChunks * p.packed_heads * p.tile_tokens * kRowBytes);
    for (int c = 0; c < S::kChunks; ++c) {
      hopper::copy_box(shared.queries[i][c], maps.queries, c * 64, work.head_tile * p.packed_heads,
                       work.tile.row, &shared.queries_full[i]);
    }
    queries.next();
  }

  __device__ Work work_at(int index, int count) const {
    const auto* tiles = reinterpret_cast<const PrefillTile*>(p.plan + 1);
    return index < count ? Work{tiles[index / p.head_tiles], index % p.head_tiles} : Work{};
  }

  // What this block of threads computes next: first the piece of its own number, then whichever is left.
  __device__ Work take_work(int count) const {
    const int taken = atomicAdd(&p.plan->next, 1);
    // Every block of threads that had work asks in vain once; the last to do so leaves 0 for the next layer.
    if (taken == count - 1) p.plan->next = 0;
    return work_at(static_cast<int>(gridDim.x) + taken, count);
  }

  __device__ void run() {
    const int count = p.plan->num_tiles * p.head_tiles;
    const bool leads = threadIdx.x == kThreads - 1;  // of a warp that fetches values: they are needed last
    Work work = work_at(blockIdx.x, count);
    for (int next = 0; work.tile.tokens > 0; next ^= 1) {
      if (leads) copy_queries(work);
      const int kv_head = work.head_tile * p.packed_heads / p.group;
      const int* table = p.block_tables + work.tile.table_row * p.table_stride;
      const int begin = first_key_of(p, work.tile);
      const int end = work.tile.position + work.tile.tokens;
      int first_key = (end - 1) / S::kKeys * S::kKeys;
      copy_stage(kv_head, block_of(table, first_key, begin, end), first_key);
      if (leads) shared.fetched[next] = take_work(count);
      int block = block_of(table, first_key - S::kKeys, begin, end);
      while ((first_key -= S::kKeys) > begin - S::kKeys) {
        const int block_after = block_of(table, first_key - S::kKeys, begin, end);
        copy_stage(kv_head, block, first_key);
        block = block_after;
      }
      hopper::sync_threads(kProducerBarrier, kWarpgroup);
      work = shared.fetched[next];
    }
    if (leads) copy_queries(work);
  }
};

// One of the warpgroups that compute: rows [64 * group, 64 * group + 64) of a tile.
template <typename T, typename S>
struct Consumer {
  static constexpr int kColumns = S::kDim == 80 ? 96 : S::kDim;  // of the sums
  static constexpr int kProductColumns = kColumns < 128 ? kColumns : 128;

  const PrefillParams& p;
  Shared<S>& shared;
  int group;
  int thread = threadIdx.x % kWarpgroup;
  Ring<kStages> ring;
  Ring<S::kQueryTiles> queries;
  SoftmaxRows softmax;
  float scores[S::kKeys / 8][4];
  std::uint32_t weights[S::kKeys / 16][4];  // scores that have been weighed, as a product's left operand
  float sums[kColumns / 8][4];

  __device__ void release(std::uint64_t* barrier) const {
    __syncwarp();
    if (thread % 32 == 0) hopper::arrive(barrier);
  }

  __device__ void start_scores(int stage) {
    const std::uint64_t q =
        hopper::by_rows(shared_address(shared.queries[queries.place][0]) + group * 64 * kRowBytes);
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
      hopper::multiply_registers<T, kProductColumns, 0>(sums, weights[i], rows);
      if constexpr (kColumns > 128) {
        hopper::multiply_registers<T, 128, 16>(sums, weights[i], hopper::advance(rows, 2 * S::kKeyChunk));
      }
    }
    hopper::commit_products();
  }

  // Past the sequence's end lie another's values or none, and a weight of 0 does not make them 0. Both
  // warpgroups clear some.
  __device__ void clear_values(int stage, int first_row) const {
    constexpr int kVectors = kRowBytes / 16;
    const int count = (S::kKeys - first_row) * kVectors;
    for (int c = 0; c < S::kChunks; ++c) {
      auto* rows = reinterpret_cast<uint4*>(shared.values[stage][c]) + first_row * kVectors;
      for (int i = threadIdx.x; i < count; i += kConsumers * kWarpgroup) rows[i] = make_uint4(0, 0, 0, 0);
    }
    hopper::publish_stores();
    hopper::sync_threads(kConsumerBarrier, kConsumers * kWarpgroup);
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

  // Turns the scores of the stage of `ring`, whose product has ended, into weights. is_last: of the stages.
  __device__ void weigh(int first_key, const int (&last)[2], bool masked, bool is_last, float (&shrink)[2]) {
    hopper::pin(scores);
    release(&shared.keys_free[ring.place]);
    if (is_last) release(&shared.queries_free[queries.place]);
    if (p.scale.inner != 0) cap_scores(scores, p.scale.inner);
    if (masked) mask_scores(scores, first_key, last, p.window);
    softmax.weigh(scores, p.scale.outer, shrink);
    hopper::pin(scores);
  }

  __device__ void finish_sums(const Ring<kStages>& stage) {
    hopper::wait_for_products<0>();
    hopper::pin(sums);
    release(&shared.values_free[stage.place]);
  }

  __device__ void compute(const PrefillTile& tile, int head_tile) {
    const int row = 64 * group + thread / 32 * 16 + thread % 32 / 4;
    const int last[2] = {last_key(p, tile, row), last_key(p, tile, row + 8)};
    // The first key and the last that all 64 rows see.
    const int all_see_from = last_key(p, tile, 64 * group + 63) - p.window + 1;
    const int all_see = last_key(p, tile, 64 * group);
    const int end = tile.position + tile.tokens;
    const int lowest = first_key_of(p, tile) / S::kKeys * S::kKeys;
    int first_key = (end - 1) / S::kKeys * S::kKeys;
    float shrink[2];
    softmax = {};
#pragma unroll
    for (auto& block : sums) block[0] = block[1] = block[2] = block[3] = 0;

    hopper::wait(&shared.keys_full[ring.place], ring.parity);
    start_scores(ring.place);
    hopper::wait_for_products<0>();
    weigh(first_key, last, true, first_key == lowest, shrink);
    pack_weights();
    hopper::wait(&shared.values_full[ring.place], ring.parity);
    if (end - first_key < S::kKeys) clear_values(ring.place, end - first_key);

    Ring<kStages> next = ring;
    next.next();
    if (first_key > lowest) hopper::wait(&shared.keys_full[next.place], next.parity);
    while (first_key > lowest) {
      first_key -= S::kKeys;
      const Ring<kStages> before = ring;
      ring = next;
      next.next();
      start_scores(ring.place);
      hopper::wait(&shared.values_full[before.place], before.parity);
      start_sums(before.place);
      hopper::wait_for_products<1>();
      const bool masked = first_key + S::kKeys - 1 > all_see || first_key < all_see_from;
      weigh(first_key, last, masked, first_key == lowest, shrink);
      // Here, and not where the loop begins, since ptxas moves the wait for products above the softmax, but
      // not over a branch.
      if (first_key > lowest) hopper::wait(&shared.keys_full[next.place], next.parity);
      finish_sums(before);
      multiply_rows(sums, shrink);
      pack_weights();
    }
    hopper::wait(&shared.values_full[ring.place], ring.parity);
    start_sums(ring.place);
    finish_sums(ring);
    ring = next;
    write_rows<T, S::kDim>(p, tile, head_tile, row, sums, softmax);
  }

  // By the lane that will release it, for its warp.
  __device__ Work read_work() const {
    Work work{};
    if (thread % 32 == 0) work = shared.work[queries.place];
    const auto share = [](int& value) { value = __shfl_sync(0xFFFFFFFFU, value, 0); };
    share(work.tile.row);
    share(work.tile.tokens);
    share(work.tile.position);
    share(work.tile.table_row);
    share(work.head_tile);
    return work;
  }

  __device__ void run() {
    for (;; queries.next()) {
      hopper::wait(&shared.queries_full[queries.place], queries.parity);
      const Work work = read_work();
      if (work.tile.tokens == 0) return;
      compute(work.tile, work.head_tile);
    }
  }
};

template <typename S>
__device__ void init_barriers(Shared<S>& shared) {
  for (int i = 0; i < S::kQueryTiles; ++i) {
    hopper::init_barrier(&shared.queries_full[i], 1);
    hopper::init_barrier(&shared.queries_free[i], kConsumerWarps);
  }
  for (int s = 0; s < kStages; ++s) {
    hopper::init_barrier(&shared.keys_full[s], kProducerWarps);
    hopper::init_barrier(&shared.values_full[s], kProducerWarps);
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
  admit_next_kernel();
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  wait_for_kernels();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    hopper::give_registers<kProducerRegisters>();
    Producer<S>{p, maps, shared}.run();
  } else {
    hopper::take_registers<kConsumerRegisters>();
    Consumer<T, S>{p, shared, static_cast<int>(threadIdx.x) / kWarpgroup}.run();
  }
#else
  __trap();
#endif
}

// Of keys or values [blocks, KV heads, tokens of a block, dim].
CUtensorMap cache_map(const Tensor& half, int keys_of_stage) {
  const auto size = [&](int i) { return static_cast<cuuint64_t>(half.dim(i)); };
  const auto stride = [&](int i) { return static_cast<cuuint64_t>(half.stride(i)) * 2; };
  const auto tokens = static_cast<cuuint32_t>(std::min<std::int64_t>(half.dim(2), keys_of_stage));
  return make_tensor_map(half, {size(3), size(2), size(1), size(0)}, {stride(2), stride(1), stride(0)},
                         {64, tokens, 1, 1});
}

CUtensorMap query_map(const Tensor& q, const PrefillParams& params, const AttentionBatch& batch,
                      const AttentionShape& shape) {
  const auto dim = static_cast<cuuint64_t>(shape.head_dim);
  return make_tensor_map(
      q, {dim, static_cast<cuuint64_t>(shape.num_heads), static_cast<cuuint64_t>(batch.num_tokens)},
      {dim * 2, static_cast<cuuint64_t>(q.stride(0)) * 2},
      {64, static_cast<cuuint32_t>(params.packed_heads), static_cast<cuuint32_t>(params.tile_tokens)});
}

template <typename T, int kDim>
void launch_shape(const LaunchContext& context, const PrefillParams& params, const AttentionCall& call,
                  const AttentionBatch& batch, const AttentionShape& shape) {
  using S = Shape<kDim>;
  constexpr int kBytes = sizeof(Shared<S>);
  constexpr auto kernel = prefill_hopper_kernel<T, S>;
  allow_shared_bytes<kernel>(kBytes);
  const Maps maps{query_map(call.q, params, batch, shape), cache_map(call.cache.keys, S::kKeys),
                  cache_map(call.cache.values, S::kKeys)};
  const int grid = std::min(context.num_sms, max_prefill_work(batch, params));
  launch(context, "prefill_attention", kernel, grid, kThreads, kBytes, maps, params);
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
