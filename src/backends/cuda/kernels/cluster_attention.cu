// Decode attention of few sequences, with what comes before it in the same launch: norm and rotary embedding
// of the new token's heads, and its key and value written to the paged cache.
//
// A cluster of blocks of threads takes the query heads of one KV head of one sequence, up to 16. All that
// earlier steps left in the cache does not depend on the kernel in front: while that runs, the cluster's
// warps copy their tiles of 16 tokens to shared memory, the first kStages of each warp, which are all of them
// in a short context. (The step's first kernel, take_sampled_tokens, lets no other begin before all in front
// of it has ended, and with it what wrote the cache and its tables.) Then each block prepares the queries,
// the one with the last tile also the new key and value, and the warps multiply. Their sums are added up by
// block, and sent to the block of the cluster that writes those columns.
//
// Tensor cores take 16 tokens by 8 query heads, as in decode_attention.cu, which is the better one for many
// sequences: there every block of threads has the same number of tiles, whatever the lengths.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/attention_input.cuh"
#include "backends/cuda/kernels/decode_warp.cuh"
#include "backends/cuda/kernels/hopper.cuh"

namespace quire::cuda {
namespace {

constexpr int kWidth = 4;             // elements of a vector
constexpr int kMaxCluster = 8;        // blocks: the portable size
constexpr int kBlocksOfSm = 2;        // that are wanted at most
constexpr int kRingBytes = 64 << 10;  // of a block
// That a query sees. Of more, decode_attention.cu's even shares are faster. decode_graphs.cpp has graphs for
// as many.
constexpr int kMaxPositions = 2048;

template <typename T>
using Native = std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16, __half>;

// One instance. A stage holds 16 keys and 16 values of a warp, and when all are read, its sums.
template <typename T, int kDim, int kHeadTiles>
struct Sizes : Ring<Native<T>, kDim, kHeadTiles> {
  using Base = Ring<Native<T>, kDim, kHeadTiles>;
  static constexpr unsigned kStageBytes = std::max(2 * Base::kTileBytes, Base::kSumBytes);
  static constexpr int kStages = kRingBytes / (Base::kWarps * 2 * Base::kTileBytes);
  static constexpr unsigned kRings = Base::kWarps * kStages * kStageBytes;
  static constexpr unsigned kQueryBytes = Base::kHeads * kDim * sizeof(T);
  static constexpr unsigned kUnits = Base::kHeads * kDim / 4;  // of four columns of out
  // Sums and weights of a unit from each block of the cluster.
  static constexpr unsigned kInboxBytes = 2 * (kUnits + kMaxCluster) * sizeof(float4);
  static constexpr unsigned kBytes = kRings + kQueryBytes + kInboxBytes;
};

template <typename T>
struct ClusterArgs {
  PrepareArgs<T> input;
  Native<T>* out;
  SequenceArgs sequences;
  std::int64_t out_stride;
  int block_shift;  // log2 of the block size
  int cluster;      // blocks of threads
  HeadSplit split;
  ScoreArgs scores;
};

// What a cluster computes: some query heads of a KV head of a sequence.
struct Item {
  int sequence, kv_head, part;
  int first_head, num_heads;

  template <typename T>
  __device__ explicit Item(const ClusterArgs<T>& args) {
    const HeadSplit& split = args.split;
    const int item = static_cast<int>(blockIdx.x) / args.cluster;
    part = item % split.parts;
    kv_head = item / split.parts % args.input.num_kv_heads;
    sequence = item / (split.parts * args.input.num_kv_heads);
    first_head = kv_head * split.group + part * split.heads_per_item;
    num_heads = min(split.heads_per_item, split.group - part * split.heads_per_item);
  }
};

// The tiles of a warp: every step-th of those that the query sees, from `first` on.
template <typename T, int kDim, typename Sizes>
class WarpTiles {
 public:
  __device__ WarpTiles(const ClusterArgs<T>& args, const Item& item, int seq_len, int first, int step,
                       std::uint32_t ring)
      : args_(args),
        table_(args.sequences.block_tables +
               args.sequences.table_rows[item.sequence] * args.sequences.table_stride),
        keys_(args.input.keys.rows + item.kv_head * args.input.keys.head),
        values_(args.input.values.rows + item.kv_head * args.input.values.head),
        seq_len_(seq_len),
        first_key_(first_key(seq_len, args.scores.window)),
        first_token_((first_tile(seq_len, args.scores.window) + first) * kTileTokens),
        step_(step * kTileTokens),
        ring_(ring) {}

  // Of the warp's i-th tile.
  __device__ int token(int i) const { return first_token_ + i * step_; }
  __device__ bool has(int i) const { return token(i) < seq_len_; }
  __device__ unsigned hidden(int i) const { return max(first_key_ - token(i), 0); }
  __device__ std::uint32_t stage(int i) const { return ring_ + i % Sizes::kStages * Sizes::kStageBytes; }

  // Copies the i-th to its stage, without the new token; zeros stand for it, and for what the query does not
  // see: a value there might be NaN. One group of copies, empty where there is no such tile. In the order of
  // i.
  __device__ void copy(int i) {
    if (has(i)) copy_rows(i);
    commit_copies();
  }

 private:
  using TileRows = typename Sizes::TileRows;

  __device__ void copy_rows(int i) {
    if (i % static_cast<int>(kWarpSize) == 0) fetch_blocks(i);
    const int from = token(i);
    const unsigned before = hidden(i);
    const unsigned there = seq_len_ - 1 - from - before;
    const int blocks[2] = {__shfl_sync(~0U, upper_block_, i), __shfl_sync(~0U, lower_block_, i)};
    constexpr unsigned kChunks = kTileTokens * TileRows::kChunks;
#pragma unroll
    for (unsigned c = threadIdx.x % kWarpSize; c < kChunks; c += kWarpSize) {
      const unsigned row = c / TileRows::kChunks, chunk = c % TileRows::kChunks;
      const int block = blocks[row / 8];
      const int offset = (from + static_cast<int>(row)) & (args_.input.block_size - 1);
      const bool inside = row - before < there;
      const std::uint32_t to = stage(i) + TileRows::offset(row, chunk);
      copy_async_16(to, keys_ + block * args_.input.keys.block + offset * kDim + chunk * 8, inside);
      copy_async_16(to + Sizes::kTileBytes,
                    values_ + block * args_.input.values.block + offset * kDim + chunk * 8, inside);
    }
  }
  // The blocks of the first 8 tokens and of the last 8, of 32 tiles from the i-th on, a tile a lane. Where
  // the query does not see the first 8, any block that it sees.
  __device__ void fetch_blocks(int i) {
    const int from = token(i + static_cast<int>(threadIdx.x % kWarpSize));
    if (from >= seq_len_) return;
    upper_block_ = table_[max(from, first_key_) >> args_.block_shift];
    lower_block_ = table_[min(from + 8, seq_len_ - 1) >> args_.block_shift];
  }

  const ClusterArgs<T>& args_;
  const int* table_;
  const T* keys_;
  const T* values_;
  int seq_len_, first_key_, first_token_, step_;
  std::uint32_t ring_;
  int upper_block_ = 0, lower_block_ = 0;
};

// A head that some lanes hold, to row `row` of queries in shared memory.
template <typename QueryRows, typename T>
__device__ void store_query(const PrepareArgs<T>& args, T* queries, int row,
                            const HeadPiece<kWidth, T> (&head)[kPieces<kWidth>]) {
  const auto at = [&](int column) {
    const unsigned offset = QueryRows::offset(static_cast<unsigned>(row), static_cast<unsigned>(column) / 8);
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(queries) + offset) + column % 8;
  };
  for_pieces<kWidth>(args, [&](int p, int a, int b) {
    store_vec(at(a), head[p].a);
    store_vec(at(b), head[p].b);
  });
}

// What a block prepares of the new token: its queries, and in the block with the last tile the key and the
// value. By all threads; they wait for the kernels in front.
template <typename Sizes, typename T, int kDim>
__device__ void prepare_token(const ClusterArgs<T>& args, const Item& item, bool has_last_tile, T* queries,
                              T (&key_and_value)[2][kDim]) {
  const PrepareArgs<T>& input = args.input;
  const int at_once = 32 >> input.lane_bits;
  const int query_jobs = (item.num_heads + at_once - 1) / at_once;
  const int jobs = query_jobs + (has_last_tile ? 2 : 0);
  const int row = args.sequences.query_starts[item.sequence];
  const int position = input.positions[row], slot = input.slots[row];
  const T* const qkv = input.qkv[row];
  const int member = static_cast<int>(threadIdx.x) % 32 >> input.lane_bits;
  bool waited = false;
#pragma unroll 1
  for (int job = static_cast<int>(threadIdx.x / kWarpSize); job < jobs; job += Sizes::kWarps) {
    const Kind kind = job < query_jobs ? Kind::kQuery : job == query_jobs ? Kind::kKey : Kind::kValue;
    const int query = job * at_once + member;
    const bool is_there = kind == Kind::kQuery ? query < item.num_heads : member == 0;
    const int column =
        heads_before(input, kind) + (kind == Kind::kQuery ? item.first_head + query : item.kv_head);
    const HeadTerms<kWidth, T> terms(input, kind, position);
    if (!waited) wait_for_kernels();
    waited = true;
    HeadPiece<kWidth, T> head[kPieces<kWidth>] = {};
    if (is_there) load_head<kWidth>(input, qkv + column * input.head_dim, head);
    const bool is_value = kind == Kind::kValue;
    if (!is_value || terms.norm != nullptr) transform<kWidth, true>(input, terms, is_value, 1, head);
    if (!is_there) continue;
    if (kind == Kind::kQuery) {
      store_query<typename Sizes::QueryRows>(input, queries, query, head);
      continue;
    }
    store_head<kWidth>(input, key_and_value[is_value ? 1 : 0], head);
    if (slot < 0 || item.part > 0) continue;
    store_head<kWidth>(input, cached_at(input, is_value, slot, item.kv_head), head);
  }
  if (!waited) wait_for_kernels();
}

// Longer than 60 lines: the order of copying, waiting and multiplying is one whole.
template <typename T, int kDim, int kHeadTiles>
__global__ void __launch_bounds__(Sizes<T, kDim, kHeadTiles>::kThreads, kBlocksOfSm)
    cluster_attention_kernel(const __grid_constant__ ClusterArgs<T> args) {
#if __CUDA_ARCH__ >= 900
  using Sizes = Sizes<T, kDim, kHeadTiles>;
  using Element = Native<T>;
  constexpr int kWarps = Sizes::kWarps;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) T new_rows[2][kDim];  // key and value
  __shared__ float2 weights[kWarps][16];         // a head; maximum -inf: the warp had no tile
  auto* const queries = reinterpret_cast<T*>(shared + Sizes::kRings);
  auto* const inbox = reinterpret_cast<float4*>(shared + Sizes::kRings + Sizes::kQueryBytes);

  admit_next_kernel();
  const Item item(args);
  const int seq_len = args.sequences.seq_lens[item.sequence];
  if (seq_len == 0) return wait_for_kernels();  // no block of the cluster has anything to do
  hopper::arrive_relaxed_at_cluster();
  const int rank = static_cast<int>(blockIdx.x) % args.cluster;
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const unsigned lane = threadIdx.x % kWarpSize;
  unsigned char* const ring = shared + warp * Sizes::kStages * Sizes::kStageBytes;
  WarpTiles<T, kDim, Sizes> tiles(args, item, seq_len, warp * args.cluster + rank, kWarps * args.cluster,
                                  shared_address(ring));
  for (int i = 0; i < Sizes::kStages; ++i) tiles.copy(i);
  const int last_tile = item_tiles(seq_len, args.scores.window) - 1;
  prepare_token<Sizes>(args, item, last_tile % args.cluster == rank, queries, new_rows);
  __syncthreads();

  WarpAttention<Element, Element, kDim, kHeadTiles> attention(lane);
  attention.begin(shared_address(queries));
  int i = 0;
  for (; tiles.has(i); ++i) {
    wait_for_copies<Sizes::kStages - 1>();
    __syncwarp();
    const int seen = seq_len - tiles.token(i);  // the hidden ones with them
    if (seen <= kTileTokens) {
      using TileRows = typename Sizes::TileRows;
      for (unsigned c = lane; c < 2 * TileRows::kChunks; c += kWarpSize) {
        const unsigned half = c / TileRows::kChunks, chunk = c % TileRows::kChunks;
        unsigned char* const stage = ring + i % Sizes::kStages * Sizes::kStageBytes;
        *reinterpret_cast<uint4*>(stage + half * Sizes::kTileBytes + TileRows::offset(seen - 1, chunk)) =
            reinterpret_cast<const uint4*>(new_rows[half])[chunk];
      }
      __syncwarp();
    }
    attention.add_tile(tiles.stage(i), tiles.hidden(i), seen - tiles.hidden(i), args.scores);
    __syncwarp();
    tiles.copy(i + Sizes::kStages);
  }
  if (i > 0) {
    attention.store(reinterpret_cast<float*>(ring), weights[warp], item.num_heads);
  } else if (lane < 16) {
    weights[warp][lane] = {-INFINITY, 0};
  }
  const bool has_tiles = rank <= last_tile;  // this block
  __syncthreads();

  hopper::wait_for_cluster();  // all blocks have begun
  const int units = item.num_heads * (kDim / 4);
  const int units_of_block = (units + args.cluster - 1) / args.cluster;
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += static_cast<int>(Sizes::kThreads)) {
    HeadSum sum;
    if (has_tiles) {
      const int head = unit / (kDim / 4), dim = unit % (kDim / 4) * 4;
      sum.add<kWarps>(
          kWarps, [&](int w) { return weights[w][head]; },
          [&](int w) {
            if (weights[w][head].x == -INFINITY) return float4{};
            const auto* sums =
                reinterpret_cast<const float*>(shared + w * Sizes::kStages * Sizes::kStageBytes);
            return *reinterpret_cast<const float4*>(sums + head * Sizes::kSumStride + dim);
          });
    }
    float4* const to = inbox + 2 * (rank * units_of_block + unit / args.cluster);
    const auto owner = static_cast<unsigned>(unit % args.cluster);
    const float4 sums = sum.sums();
    const float2 weight = sum.weight();
    hopper::store_to_block(to, owner, {sums.x, sums.y, sums.z, sums.w});
    hopper::store_to_block(to + 1, owner, {weight.x, weight.y, 0, 0});
  }
  hopper::sync_cluster();
  Element* const row = args.out + args.sequences.query_starts[item.sequence] * args.out_stride;
  for (int u = static_cast<int>(threadIdx.x); u < units_of_block; u += static_cast<int>(Sizes::kThreads)) {
    const int unit = u * args.cluster + rank;
    if (unit >= units) break;
    const auto from = [&](int block) { return inbox + 2 * (block * units_of_block + u); };
    HeadSum sum;
    sum.add<kMaxCluster>(
        args.cluster, [&](int block) { return make_float2(from(block)[1].x, from(block)[1].y); },
        [&](int block) { return *from(block); });
    const int head = item.first_head + unit / (kDim / 4);
    sum.write(row + head * kDim + unit % (kDim / 4) * 4,
              sink_weight(args.scores.sinks, head, sum.weight().x));
  }
#endif
}

// Blocks of threads for each of so many items; 0: there are none, or too many for clusters. One block on
// every multiprocessor at most, since more of them keep the next kernel's out; but two are better than one
// that is alone with its item.
int cluster_of(const LaunchContext& context, int items) {
  int cluster = kMaxCluster;
  while (cluster > 2 && items * cluster > context.num_sms) cluster /= 2;
  return items > 0 && items * cluster <= kBlocksOfSm * context.num_sms ? cluster : 0;
}

}  // namespace

bool cluster_attention_supports(const LaunchContext& context, const AttentionInput& input,
                                const KvCacheLayer& cache, const AttentionBatch& batch,
                                const AttentionScores& scores) {
  if (!overlaps_kernels() || batch.max_query_len != 1 || batch.num_sequences != batch.num_tokens)
    return false;
  if (!has_fast_attention(input.qkv.dtype(), input.head_dim) || scores.alibi_slopes.defined()) return false;
  if (input.num_kv_heads == 0 || input.q_scale.defined() || input.norm_after_rotary) return false;
  const auto block_size = static_cast<unsigned>(cache.keys.dim(2));
  if (cache.code != CacheCode::kNone || !std::has_single_bit(block_size) || block_size < 8) return false;
  if (cache.keys.stride(2) != input.head_dim || cache.values.stride(2) != input.head_dim ||
      !splits_into(cache.keys, 8) || !splits_into(cache.values, 8) || !heads_split_into(input, cache, kWidth))
    return false;
  if (std::min(batch.max_seq_len, window_of(scores)) > kMaxPositions) return false;
  const HeadSplit split(input.num_heads, input.num_kv_heads);
  unsigned bytes = 0;  // some GPUs have but 99 KB
  dispatch_heads(input.head_dim, split.head_tiles,
                 [&]<int kDim, int kHeadTiles>() { bytes = Sizes<BFloat16, kDim, kHeadTiles>::kBytes; });
  return bytes <= static_cast<unsigned>(context.shared_bytes) &&
         cluster_of(context, batch.num_sequences * input.num_kv_heads * split.parts) > 0;
}

void cluster_attention(const LaunchContext& context, const Tensor& out, const AttentionInput& input,
                       const KvCacheLayer& cache, const AttentionBatch& batch,
                       const AttentionScores& scores) {
  const HeadSplit split(input.num_heads, input.num_kv_heads);
  const int items = batch.num_sequences * input.num_kv_heads * split.parts;
  const auto run_type = [&]<typename T>() {
    const ClusterArgs<T> args{.input = prepare_args<kWidth, T>(input, cache, batch),
                              .out = static_cast<Native<T>*>(out.data()),
                              .sequences = SequenceArgs(batch),
                              .out_stride = out.stride(0),
                              .block_shift = std::countr_zero(static_cast<unsigned>(cache.keys.dim(2))),
                              .cluster = cluster_of(context, items),
                              .split = split,
                              .scores = ScoreArgs(scores)};
    const auto run = [&]<int kDim, int kHeadTiles>() {
      using Sizes = Sizes<T, kDim, kHeadTiles>;
      constexpr auto kernel = cluster_attention_kernel<T, kDim, kHeadTiles>;
      allow_shared_bytes<kernel>(Sizes::kBytes);
      launch_clusters(context, "cluster attention", kernel, items * args.cluster, args.cluster,
                      Sizes::kThreads, Sizes::kBytes, args);
    };
    require(dispatch_heads(input.head_dim, split.head_tiles, run), "cluster attention: head size");
  };
  input.qkv.dtype() == DType::kBF16 ? run_type.template operator()<BFloat16>()
                                    : run_type.template operator()<Float16>();
}

}  // namespace quire::cuda
