// Prefill attention for Hopper (sm_90a): out[token, head] = softmax(scores of q · kᵀ) · v over the paged
// cache, causal.
//
// One block of threads an SM takes tiles of kTileRows (token, head) rows until none is left. Four warps
// fetch: queries (of the next tile while this one is computed), and keys and values block by block, by TMA
// into two stages of shared memory; of a cache of codes, which they widen to float16 on the way (RowScale):
// then queries and weights are float16, too, whatever the activations are. Two warpgroups have 64 rows each
// and go over the keys from the last on (only there some are masked); the scores of the next keys are issued
// before the values of these, so that the softmax runs under matrix products (Shah et al., FlashAttention-3,
// 2024). Having the warpgroups take turns, as there, cost 5 % at 4k tokens. Where there is a window, they end
// at the first stage that it reaches. Where there are fewer tiles than SMs, several blocks of threads share a
// tile's keys, and merge_prefill adds up what each leaves.
//
// Layout: keys and values of one (block, head) contiguous, q and out rows strided; in shared memory, rows of
// 64 dimensions (128 bytes), swizzled.
//
// Flops: 4 * head_dim a (row, key). Bytes: keys and values once a tile, from L2. On an H200, with 16 query
// and 8 KV heads of 128, bf16 and blocks of 16: 467 to 477, 644 to 653 and 617 to 651 TFLOP/s on 16 x 1k, 4 x
// 4k and 1 x 16k tokens, of 789 that an 8192³ matrix product reached in the same run.
#include <algorithm>

#include "backends/cuda/kernels/prefill_stages.cuh"
#include "backends/cuda/kernels/tensor_map.h"

namespace quire::cuda {
namespace {

using namespace prefill;

constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

// What queries in bfloat16 are multiplied with to become float16, beside keys that were codes: it holds them
// up to 1,048,064, exactly from 2^-13 on, and to 2^-21 below.
constexpr float kQueryFactor = 0.0625F;
template <typename T, typename S>
constexpr bool kNarrowsQueries = std::is_same_v<T, __nv_bfloat16>&& S::kCodes;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kConsumerWarps = 4 * kConsumers;
// Numbered barriers.
constexpr int kProducerBarrier = 1;
constexpr int kConsumerBarrier = 2;  // and 3: each warpgroup's own
// Of the 64K registers of an SM: 2 * 128 of the first and 128 of the second, together 384 * 168.
template <typename S>
constexpr int kConsumerRegisters = !S::kCodes       ? 232
                                   : S::kDim <= 128 ? 200
                                                    : 216;
template <typename S>
constexpr int kProducerRegisters = !S::kCodes       ? 40
                                   : S::kDim <= 128 ? 104
                                                    : 72;

// One of the four warps that fetch.
template <typename S, typename Stages>
struct Producer {
  const PrefillParams& p;
  const Maps& maps;
  Shared<S>& shared;
  Stages stages;
  RingStage queries;

  __device__ void copy_queries(const Work& work) {
    const int i = queries.place;
    hopper::wait(&shared.queries_free[i], queries.parity ^ 1);
    shared.work[i] = work;
    if (work.tile.tokens == 0) return hopper::arrive(&shared.queries_full[i]);
    hopper::arrive_expecting(&shared.queries_full[i],
                             S::kChunks * p.packed_heads * p.tile_tokens * kRowBytes);
    for (int c = 0; c < S::kChunks; ++c) {
      hopper::copy_box(shared.queries[i][c], maps.queries, c * 64, work.head_tile(p) * p.packed_heads,
                       work.tile.row, &shared.queries_full[i]);
    }
    queries.next(S::kQueryTiles);
  }

  __device__ Work work_at(int index, int count) const {
    const auto* tiles = reinterpret_cast<const PrefillTile*>(p.plan + 1);
    return index < count ? Work{tiles[index / (p.head_tiles * p.pieces)], index} : Work{};
  }

  // What this block of threads computes next: first the piece of its own number, then whichever is left.
  __device__ Work take_work(int count) const {
    const int taken = atomicAdd(&p.plan->next, 1);
    // Every block of threads that had work asks in vain once; the last to do so leaves 0 for the next layer.
    if (taken == count - 1) p.plan->next = 0;
    return work_at(static_cast<int>(gridDim.x) + taken, count);
  }

  __device__ void run() {
    const int count = p.plan->num_tiles * p.head_tiles * p.pieces;
    const bool leads = threadIdx.x == kThreads - 1;  // of a warp that fetches values: they are needed last
    Work work = work_at(blockIdx.x, count);
    for (int next = 0; work.tile.tokens > 0; next ^= 1) {
      if (leads) copy_queries(work);
      const auto fetch_next = [&] {
        if (leads) shared.fetched[next] = take_work(count);
      };
      const KeyRange keys(p, work, S::kKeys);
      keys.empty() ? fetch_next() : stages.fill_all(keys, fetch_next);
      sync_threads(kProducerBarrier, kWarpgroup);
      work = shared.fetched[next];
    }
    if (leads) copy_queries(work);
  }
};

// One of the warpgroups that compute: rows [64 * group, 64 * group + 64) of a tile.
template <typename T, typename S>
struct Consumer {
  static constexpr int kColumns = S::kDim == 80 ? 96 : S::kDim;  // of the sums
  using Operand = std::conditional_t<S::kCodes, __half, T>;      // of products
  static constexpr int kProductColumns = kColumns < 128 ? kColumns : 128;

  const PrefillParams& p;
  Shared<S>& shared;
  int group;
  int thread = threadIdx.x % kWarpgroup;
  RingStage ring;
  RingStage queries;
  SoftmaxRows softmax;
  float scores[S::kKeys / 8][4];
  std::uint32_t weights[S::kKeys / 16][4];  // scores that have been weighed, as a product's left operand
  float sums[kColumns / 8][4];

  __device__ void release(std::uint64_t* barrier) const {
    __syncwarp();
    if (thread % 32 == 0) hopper::arrive(barrier);
  }

  // To float16, in place.
  __device__ void narrow_queries() const {
    const auto narrow = [](std::uint32_t& pair) {
      const float low = __uint_as_float(pair << 16);
      const float high = __uint_as_float(pair & 0xFFFF0000U);
      pair = pack(low * kQueryFactor, high * kQueryFactor, __half());
    };
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      auto* rows = reinterpret_cast<uint4*>(shared.queries[queries.place][c] + group * 64 * kRowBytes);
#pragma unroll
      for (int i = 0; i < 64 * kRowBytes / 16; i += kWarpgroup) {
        uint4 values = rows[i + thread];
        narrow(values.x);
        narrow(values.y);
        narrow(values.z);
        narrow(values.w);
        rows[i + thread] = values;
      }
    }
    hopper::publish_stores();
    sync_threads(kConsumerBarrier + group, kWarpgroup);
  }

  __device__ void start_scores(int stage) {
    const std::uint64_t q =
        hopper::by_rows(shared_address(shared.queries[queries.place][0]) + group * 64 * kRowBytes);
    const std::uint64_t k = hopper::by_rows(shared_address(shared.keys[stage][0]));
    hopper::pin(scores);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < S::kDim / 16; ++i) {
      hopper::multiply_shared<Operand>(scores, hopper::advance(q, i / 4 * S::kQueryChunk + i % 4 * 32),
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
      hopper::multiply_registers<Operand, kProductColumns, 0>(sums, weights[i], rows);
      if constexpr (kColumns > 128) {
        hopper::multiply_registers<Operand, 128, 16>(sums, weights[i],
                                                     hopper::advance(rows, 2 * S::kKeyChunk));
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
    sync_threads(kConsumerBarrier, kConsumers * kWarpgroup);
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&block)[4] = scores[2 * i + j / 2];
        weights[i][j] = pack(block[j % 2 * 2], block[j % 2 * 2 + 1], Operand());
      }
    }
  }

  // Turns the scores of the stage of `ring`, whose product has ended, into weights. is_last: of the stages.
  __device__ void weigh(int first_key, const int (&last)[2], bool masked, bool is_last, float (&shrink)[2]) {
    hopper::pin(scores);
    release(&shared.keys_free[ring.place]);
    if (is_last) release(&shared.queries_free[queries.place]);
    if (p.scores.inner != 0) cap_scores(scores, p.scores.inner, p.far_from_cap);
    if (masked) mask_scores(scores, first_key, last, p.scores.window);
    softmax.weigh(scores, p.scores.outer, shrink);
    hopper::pin(scores);
  }

  __device__ void finish_sums(const RingStage& stage) {
    hopper::wait_for_products<0>();
    hopper::pin(sums);
    release(&shared.values_free[stage.place]);
  }

  __device__ void compute(const Work& work, const KeyRange& keys) {
    const PrefillTile& tile = work.tile;
    const int row = 64 * group + thread / 32 * 16 + thread % 32 / 4;
    const int last[2] = {last_key(p, tile, row), last_key(p, tile, row + 8)};
    // The first key and the last that all 64 rows see.
    const int all_see_from = last_key(p, tile, 64 * group + 63) - p.scores.window + 1;
    const int all_see = last_key(p, tile, 64 * group);
    const int lowest = keys.begin / S::kKeys * S::kKeys;
    int first_key = (keys.end - 1) / S::kKeys * S::kKeys;
    float shrink[2];
    softmax = {};
#pragma unroll
    for (auto& block : sums) block[0] = block[1] = block[2] = block[3] = 0;
    if (keys.empty()) {
      release(&shared.queries_free[queries.place]);
      return write_part<S::kDim>(p, tile, work.index, row, false, sums, softmax);
    }

    hopper::wait(&shared.keys_full[ring.place], ring.parity);
    start_scores(ring.place);
    hopper::wait_for_products<0>();
    weigh(first_key, last, true, first_key == lowest, shrink);
    pack_weights();
    hopper::wait(&shared.values_full[ring.place], ring.parity);
    if (!S::kCodes && keys.end - first_key < S::kKeys) clear_values(ring.place, keys.end - first_key);

    RingStage next = ring;
    next.next(kStages);
    if (first_key > lowest) hopper::wait(&shared.keys_full[next.place], next.parity);
    while (first_key > lowest) {
      first_key -= S::kKeys;
      const RingStage before = ring;
      ring = next;
      next.next(kStages);
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
    if (p.pieces > 1) return write_part<S::kDim>(p, tile, work.index, row, true, sums, softmax);
    write_rows<T, S::kDim>(p, tile, work.head_tile(p), row, sums, softmax);
  }

  // A tile none of whose rows is this warpgroup's.
  __device__ void leave(const KeyRange& keys) {
    const int lowest = keys.begin / S::kKeys * S::kKeys;
    int first_key = (keys.end - 1) / S::kKeys * S::kKeys;
    release(&shared.queries_free[queries.place]);
    if (keys.empty()) return;
    for (bool is_first = true; first_key >= lowest;
         first_key -= S::kKeys, is_first = false, ring.next(kStages)) {
      hopper::wait(&shared.keys_full[ring.place], ring.parity);
      release(&shared.keys_free[ring.place]);
      hopper::wait(&shared.values_full[ring.place], ring.parity);
      if (is_first && !S::kCodes && keys.end - first_key < S::kKeys)
        clear_values(ring.place, keys.end - first_key);
      release(&shared.values_free[ring.place]);
    }
  }

  // By the lane that will release it, for its warp.
  __device__ Work read_work() const {
    Work work{};
    if (thread % 32 == 0) work = shared.work[queries.place];
    const auto share = [](int& value) { value = of_warp(value); };
    share(work.tile.row);
    share(work.tile.tokens);
    share(work.tile.position);
    share(work.tile.table_row);
    share(work.index);
    return work;
  }

  __device__ void run() {
    for (;; queries.next(S::kQueryTiles)) {
      // Said again, since tiles without a row or a key of this warpgroup end by ways of their own: otherwise
      // the loop over stages computes each operand's address in every thread, which takes up to a tenth
      // longer.
      ring = of_warp(ring);
      queries = of_warp(queries);
      hopper::wait(&shared.queries_full[queries.place], queries.parity);
      const Work work = read_work();
      if (work.tile.tokens == 0) return;
      const KeyRange keys(p, work, S::kKeys);
      if (64 * group >= work.tile.tokens * p.packed_heads) {
        leave(keys);
        continue;
      }
      if constexpr (kNarrowsQueries<T, S>) narrow_queries();
      compute(work, keys);
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
    hopper::give_registers<kProducerRegisters<S>>();
    if constexpr (S::kCodes) {
      Producer<S, CodeStages<S>>{p, maps, shared, {p, shared}}.run();
    } else {
      Producer<S, BoxStages<S>>{p, maps, shared, {p, maps, shared}}.run();
    }
  } else {
    hopper::take_registers<kConsumerRegisters<S>>();
    Consumer<T, S>{p, shared, of_warp(static_cast<int>(threadIdx.x) / kWarpgroup)}.run();
  }
#else
  __trap();
#endif
}

// Of keys or values [blocks, KV heads, tokens of a block, dim].
CUtensorMap cache_map(const Tensor& half, int keys_of_stage) {
  const int tokens = std::min(static_cast<int>(half.dim(2)), keys_of_stage);
  return make_tensor_map(half, {half.dim(3), half.dim(2), half.dim(1), half.dim(0)},
                         {2 * half.stride(2), 2 * half.stride(1), 2 * half.stride(0)}, {64, tokens, 1, 1});
}

CUtensorMap query_map(const Tensor& q, const PrefillParams& params, const AttentionBatch& batch,
                      const AttentionShape& shape) {
  return make_tensor_map(q, {shape.head_dim, shape.num_heads, batch.num_tokens},
                         {2 * shape.head_dim, 2 * q.stride(0)},
                         {64, params.packed_heads, params.tile_tokens});
}

template <typename T, typename S>
void launch_shape(const LaunchContext& context, const PrefillParams& params, const AttentionCall& call,
                  const AttentionBatch& batch, const AttentionShape& shape) {
  constexpr int kBytes = sizeof(Shared<S>);
  constexpr auto kernel = prefill_hopper_kernel<T, S>;
  allow_shared_bytes<kernel>(kBytes);
  Maps maps{.queries = query_map(call.q, params, batch, shape)};
  if (!S::kCodes) {
    maps.keys = cache_map(call.cache.keys, S::kKeys);
    maps.values = cache_map(call.cache.values, S::kKeys);
  }
  PrefillParams scaled = params;
  if (kNarrowsQueries<T, S>)
    (params.scores.inner != 0 ? scaled.scores.inner : scaled.scores.outer) /= kQueryFactor;
  const int grid = std::min(context.num_sms, max_prefill_work(batch, params) * params.pieces);
  launch(context, "prefill_attention", kernel, grid, kThreads, kBytes, maps, scaled);
}

}  // namespace

void prefill_attention_hopper(const LaunchContext& context, const PrefillParams& params,
                              const AttentionCall& call, const AttentionBatch& batch,
                              const AttentionShape& shape) {
  dispatch_operand(call.q.dtype(), [&]<typename T>() {
    const bool has_kernel = dispatch_head_dim(shape.head_dim, [&]<int kDim>() {
      params.code == CacheCode::kNone
          ? launch_shape<T, Shape<kDim, false>>(context, params, call, batch, shape)
          : launch_shape<T, Shape<kDim, true>>(context, params, call, batch, shape);
    });
    require(has_kernel, "prefill_attention has no kernel for this head size");
  });
}

}  // namespace quire::cuda
