// Paged decode attention: out = softmax(scores of q · kᵀ) · v for the sequences of one query token.
//
// Layout: cache [block][kv head][K | V][token][dim], of 16 bits, or of codes, and then with f32 [K |
// V][token] behind. Bytes that must move: every key and value of every sequence once, 4 * head_dim a token
// and KV head, or 2 * head_dim + 8; the arithmetic (4 * heads * head_dim FLOP a token) hides under that. So
// the kernel is made to keep reads in flight. Its blocks of threads stay for the whole launch and take equal
// shares of the work (decode_plan.cuh). A warp streams its tiles of 16 tokens through a ring of its own,
// across the ends of sequences, and meets the others only there (decode_loader.cuh). Under load a read takes
// several µs, so what is needed where an item begins is read one item ahead. The pieces of an item that lies
// in several shares are summed, in order of position, by the block of threads that finishes last.
//
// Tensor cores take 16 tokens by 8 query heads: Sᵀ = K · Qᵀ, then Oᵀ = Vᵀ · Pᵀ. All query heads of a KV head
// share one pass over K and V; more than 16 make several items of it.
//
// Reached on an H200, where read_all read 4.62 TB/s in the same run: 93 % of that with 256 rows of 100 to
// 2048 tokens (16 heads, 8 KV heads, size 128), 91 % with rows of 100 to 1024, 91 % with 32 rows of 4096 (32
// heads, 8 KV heads); there one row of 1024 takes 5.9 µs. What is missing is 3 µs until the first tiles
// arrive, and the end: some of the card's SMs get a sixth more of the bandwidth than the others, and are done
// before them.
#include <bit>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/decode_warp.cuh"

namespace quire::cuda {
namespace {

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
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(num_heads) * (kDim / 4); i += kWarps * kWarpSize)
    f(static_cast<int>(i / (kDim / 4)), static_cast<int>(i % (kDim / 4) * 4));
}

// Of the whole item: its head's sink counts here, once.
template <typename T, int kDim>
__device__ void write_output(const DecodeArgs& args, const Piece& piece, int head, int dim, HeadSum& sum) {
  head += piece.first_head(args.split);
  T* row = static_cast<T*>(args.out) + elements(piece.row.query_row, args.out_stride);
  sum.write(row + head * kDim + dim, sink_weight(args.scores.sinks, head, sum.weight().x));
}

// Where a share keeps one head of its piece of a divided item: it has up to one that begins in it, and one
// that does not.
__device__ inline int slot_of(const DecodeArgs& args, int share, bool begins, int head) {
  return (2 * share + (begins ? 1 : 0)) * args.split.heads_per_item + head;
}

// The warps' sums to the output or, of a divided item, to the workspace.
template <typename T, typename Sizes, int kDim, int kWarps>
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
          return *reinterpret_cast<const float4*>(sums + head * Sizes::kSumStride + dim);
        });
    if (piece.whole(args.scores.window)) {
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
  const int tiles = piece.tiles(args.scores.window);
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

template <typename T, typename E, int kDim, int kHeadTiles>
__global__ void __launch_bounds__(Ring<E, kDim, kHeadTiles>::kThreads, Ring<E, kDim, kHeadTiles>::kBlocksOfSm)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  using Sizes = Ring<E, kDim, kHeadTiles>;
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

  Loader<T, E, kDim, kHeadTiles> loader(args, pieces, warp, lane);
  WarpAttention<T, E, kDim, kHeadTiles> attention(lane);
  Piece piece = pieces.first();
  int free_stages = Sizes::kStages;
  // Byte offsets in the ring: of the next stage to be loaded; of the oldest, which is the next to be read.
  int load_stage = first_stage, stage = first_stage;
  const auto advance = [&](int& offset) {
    offset += Sizes::kStageBytes;
    if (offset == first_stage + Sizes::kStages * Sizes::kStageBytes) offset = first_stage;
  };
  int tile = piece.first_tile_of<Sizes::kWarps>(warp), end = piece.end(args.scores.window);
  int last_stage = -1;  // the stage of the piece that was read last
  bool ended = false;   // the piece
  for (int index = 0;;) {
    for (; free_stages > 0; --free_stages) {
      loader.load(shared_ring + load_stage);
      advance(load_stage);
    }
    if (ended) {
      if (!piece.whole(args.scores.window)) merge_pieces<T, kDim>(args, header, piece, meeting);
      if (++index == pieces.count()) return;
      piece = pieces.next(index, piece);
      tile = piece.first_tile_of<Sizes::kWarps>(warp);
      end = piece.end(args.scores.window);
      last_stage = -1;
    }
    if (tile < end) {
      wait_for_copies<Sizes::kStages - 1>();
      __syncwarp();
      if (last_stage < 0) attention.begin(shared_ring + stage + Sizes::kQueries);
      const int token = tile * kTileTokens + piece.first_token(args.scores.window);
      const int hidden = max(first_key(piece.row.seq_len, args.scores.window) - token, 0);
      attention.add_tile(shared_ring + stage, hidden, piece.row.seq_len - token - hidden, args.scores);
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
    combine_warps<T, Sizes, kDim>(args, piece, ring, meeting);
    __syncthreads();
  }
}

// Bytes from a head's keys in a block to their scales, or to those of the values, if those of all lie so far.
int scales_offset(const Tensor& keys, const Tensor& scales) {
  if (!scales.defined()) return 0;
  for (int i = 0; i < 2; ++i) {
    const bool is_beside = scales.stride(i) * static_cast<std::int64_t>(sizeof(float)) == keys.stride(i);
    require(is_beside, "decode attention: scales");
  }
  return static_cast<int>(scales.data_as<const std::byte>() - keys.data_as<const std::byte>());
}

}  // namespace

void decode_attention(const LaunchContext& context, const AttentionCall& call, const AttentionBatch& batch,
                      const AttentionShape& shape) {
  const HeadSplit split(shape);
  const Tensor& keys = call.cache.keys;
  const bool supported = call.q.dtype() != DType::kF32 && keys.stride(2) == shape.head_dim &&
                         std::has_single_bit(static_cast<unsigned>(shape.block_size)) &&
                         shape.block_size >= 8;
  require(supported, "decode attention: cache");
  std::size_t bytes = 0;
  const DecodeArgs args{
      .out = call.out.data(),
      .q = call.q.data(),
      .keys = keys.data(),
      .tables = batch.block_tables.data_as<const int>(),
      .values_offset = (call.cache.values.data_as<const std::byte>() - keys.data_as<const std::byte>()) /
                       static_cast<std::int64_t>(size_of(keys.dtype())),
      .key_scales = scales_offset(keys, call.cache.key_scales),
      .value_scales = scales_offset(keys, call.cache.value_scales),
      .block_stride = static_cast<int>(keys.stride(0)),
      .head_stride = static_cast<int>(keys.stride(1)),
      .out_stride = static_cast<int>(call.out.stride(0)),
      .q_stride = static_cast<int>(call.q.stride(0)),
      .table_stride = static_cast<int>(batch.block_tables.stride(0)),
      .block_shift = std::countr_zero(static_cast<unsigned>(shape.block_size)),
      .kv_heads = shape.num_kv_heads,
      .split = split,
      .scores = ScoreArgs(call.scores),
      .plan = lay_out_plan(reinterpret_cast<std::uintptr_t>(call.workspace.data()), shape, context.num_sms,
                           bytes)};
  require(bytes <= call.workspace.bytes(), "decode attention: workspace");
  dispatch_operand(call.q.dtype(), [&]<typename T>() {
    dispatch_elements<T>(call.cache.code, [&]<typename E>() {
      const auto run = [&]<int kDim, int kHeadTiles>() {
        using Sizes = Ring<E, kDim, kHeadTiles>;
        constexpr auto kernel = decode_kernel<T, E, kDim, kHeadTiles>;
        allow_shared_bytes<kernel>(Sizes::kBytes);
        launch(context, "decode attention", kernel, Sizes::kBlocksOfSm * context.num_sms, Sizes::kThreads,
               Sizes::kBytes, args);
      };
      require(dispatch_heads(shape.head_dim, split.head_tiles, run), "decode attention: head size");
    });
  });
}

}  // namespace quire::cuda
