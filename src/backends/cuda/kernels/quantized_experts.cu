// Routed experts whose matrices have codes, in 16 bits. Must move the tiles of every expert that is met; x,
// the inner values and out are small.
//
// Three kernels of one kind: a warp multiplies tiles of two rows of tiles (the gate's and up's, or
// neighbours) with up to 16 tokens, or of one row with one token, and the warps of a block, which split the
// columns, add up in shared memory, in one order. A warp copies its tiles to a ring that only it uses; with a
// few tokens all that it needs is under way before it uses the first. No sum depends on the other tokens.
//
// Few pairs: a block has rows of one pair's expert. Down, it goes through all experts of a token, in order of
// their number, reads the routing ahead of the kernel in front and copies its first tiles before that has
// ended. Many: the pairs are sorted by expert, and a block has rows of one expert for all of its pairs, 16 at
// a time; from the second time on its tiles come from L2.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/experts.cuh"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/quantized_tile.cuh"

namespace quire::cuda {
namespace {

using Layout = QuantizedLayout;

// What a block has: one pair; a token with its experts, whose results are summed; an expert's pairs.
enum class Way { kPair, kSum, kGroup };

template <Way kWay>
struct Plan {
  static constexpr bool kOne = kWay != Way::kGroup;        // one token at a time
  static constexpr int kRows = kWay == Way::kSum ? 1 : 2;  // of tiles, a warp's
  static constexpr int kWarps = 16 / kRows;
  static constexpr int kTokenTiles = kOne ? 1 : 2;  // of 8
  static constexpr int kTokens = kOne ? 1 : 16;
  static constexpr int kSlots = 4 / kRows;  // of the ring, each of kRows tiles
  static constexpr int kBlocksOfSm = kWay == Way::kSum ? 1 : 2;
};

struct ExpertArgs {
  QuantizedMatrix matrix;
  RoutingArgs routing;
  const void* x;
  void* out;
  std::int64_t x_stride, out_stride;
  const int* offsets = nullptr;  // kGroup: where each expert's pairs begin
  const int* tokens = nullptr;   // kGroup: rows of x, by pair; null: x has a row for each pair
  int expert_tiles;              // rows of tiles of an expert
  bool is_gated;
  ExpertGate gate = {};
  const float* down_bias = nullptr;  // kSum
  int units = 0;                     // of an expert: what a warp computes, kRows rows of tiles
  int k_log2 = 0;  // of the warps among which columns are split; the others have other units
};

// A place among the tiles that a warp goes through: a column of them, of one of the token's experts.
struct Cursor {
  int choice, col;

  __device__ void advance(int columns, int col_tiles) {
    col += columns;
    while (col >= col_tiles) {
      col -= col_tiles;
      ++choice;
    }
  }
};

// A lane's part of a tile's columns of x. Of one token: columns 4 · lane on, and products have it 8 times.
template <Way kWay>
struct TileInput {
  static constexpr int kPlaces = Plan<kWay>::kTokenTiles * Layout::kSteps;
  uint2 values[Plan<kWay>::kOne ? 1 : kPlaces];

  // rows: of the lane's token of each tile, or null.
  template <typename T>
  __device__ void load(const T* const* rows, int col_tile, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto read = [&](const T* row, int column) {
      return row != nullptr && column < k ? *reinterpret_cast<const uint2*>(row + column) : make_uint2(0, 0);
    };
    const int first = col_tile * Layout::kTileColumns;
    if constexpr (Plan<kWay>::kOne) {
      values[0] = read(rows[0], first + lane * 4);
    } else {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i)
        values[i] =
            read(rows[i / Layout::kSteps], first + i % Layout::kSteps * Layout::kStepColumns + lane % 4 * 4);
    }
  }
  // For each step those that it multiplies.
  __device__ void spread(uint2 (&columns)[kPlaces]) const {
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      if constexpr (Plan<kWay>::kOne) {
        const int source = i * 4 + static_cast<int>(threadIdx.x) % 4;
        columns[i] = make_uint2(__shfl_sync(~0U, values[0].x, source), __shfl_sync(~0U, values[0].y, source));
      } else {
        columns[i] = values[i];
      }
    }
  }
};

// sums += the tile times x, in blocks of kBlockSteps steps of the scales.
template <int kBlockSteps, bool kMinima, int kTokenTiles, typename T, CodeKind kCode, typename Scales>
__device__ inline void add_tile(float (&sums)[kTokenTiles][4], const Decoder<T, kCode>& decoder,
                                const uint2 (&x)[kTokenTiles * Layout::kSteps], const std::uint8_t* tile,
                                const Scales& scales) {
  using Codes = Decoder<T, kCode>;
  constexpr int kChains =
      kTokenTiles == 1 && kBlockSteps > 2 ? 2 : 1;  // of products that wait for each other
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 vectors[Codes::kVectors];
#pragma unroll
  for (int v = 0; v < Codes::kVectors; ++v) vectors[v] = reinterpret_cast<const uint4*>(tile)[v * 32 + lane];
#pragma unroll
  for (int block = 0; block < Layout::kSteps / kBlockSteps; ++block) {
    float open[kChains][kTokenTiles][4] = {};
    float x_sums[kTokenTiles][4] = {};
#pragma unroll
    for (int s = 0; s < kBlockSteps; ++s) {
      const int step = block * kBlockSteps + s;
      std::uint32_t a[4];
      decoder.operand(vectors[step / Codes::kVectorSteps], step % Codes::kVectorSteps, a);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const uint2 columns = x[t * Layout::kSteps + step];
        multiply_add<T>(open[s % kChains][t], a, columns.x, columns.y);
        if constexpr (kMinima) add_columns<T>(x_sums[t], columns);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) add_scaled(sums[t], open[c][t], scales.scales[block]);
      if constexpr (kMinima) {
        const float2 minimum = scales.minima[block];
        add_scaled(sums[t], x_sums[t], make_float2(-minimum.x, -minimum.y));
      }
    }
  }
}

template <Way kWay>
using WarpSums = float[Plan<kWay>::kRows][Plan<kWay>::kTokenTiles][4];

// A warp's part of its block.
template <typename T, CodeKind kCode, bool kMinima, Way kWay>
class WarpProduct {
  using P = Plan<kWay>;
  using Codes = Decoder<T, kCode>;

 public:
  // ring: of this warp, the block's warp-th.
  __device__ WarpProduct(const ExpertArgs& args, std::uint8_t* ring, const ByteValues& bytes, int warp)
      : args_(args), ring_(ring), bytes_(bytes), decoder_(args.matrix) {
    const int unit = (static_cast<int>(blockIdx.x) * P::kWarps + warp) >> args.k_log2;
    const int first = warp & (columns() - 1);
    const int all = args.matrix.layout.col_tiles() * (kWay == Way::kSum ? args.routing.top_k : 1);
    count_ = unit < args.units && first < all ? (all - first + columns() - 1) >> args.k_log2 : 0;
    first_ = {0, 0};
    first_.advance(first, args.matrix.layout.col_tiles());
    row_tile_ = args.is_gated ? unit : min(unit * P::kRows, args.expert_tiles - 1);
    const int second = args.is_gated ? unit + args.units : min(unit * P::kRows + 1, args.expert_tiles - 1);
    second_tile_ = second - row_tile_;
  }

  __device__ void choose(const Choice& choice) { choice_ = choice; }
  // Starts the first copies.
  __device__ void start() {
    copies_ = first_;
    copied_ = 0;
#pragma unroll
    for (int slot = 0; slot < P::kSlots; ++slot) copy(slot);
  }
  // sums = the tiles times x, of rows [begin, end): a token's; or of the pairs, as kWay says.
  template <int kBlockSteps>
  __device__ void multiply(WarpSums<kWay>& sums, int begin, int end) {
    using Scales = BlockScales<Layout::kSteps / kBlockSteps, kMinima>;
    const Layout& layout = args_.matrix.layout;
    Input inputs[P::kOne ? P::kSlots : 1];
    find_rows(begin, end);
    loads_ = first_;
    if constexpr (P::kOne) {
#pragma unroll
      for (int slot = 0; slot < P::kSlots; ++slot)
        if (slot < count_) load(inputs[slot]);
    }
    for (int i = 0; i < count_; i += P::kSlots) {
#pragma unroll
      for (int slot = 0; slot < P::kSlots; ++slot) {
        if (i + slot >= count_) break;
        Input& input = inputs[P::kOne ? slot : 0];
        if constexpr (!P::kOne) load(input);
        wait_for_copies<P::kSlots - 1>();
        __syncwarp();  // the other lanes' copies too
        uint2 x[TileInput<kWay>::kPlaces];
        input.x.spread(x);
#pragma unroll
        for (int r = 0; r < P::kRows; ++r) {
          const std::uint8_t* tile = ring_ + (slot * P::kRows + r) * layout.tile_bytes;
          Scales scales(layout, tile, static_cast<int>(threadIdx.x) % 32 / 4, bytes_.scale, bytes_.minimum);
          if constexpr (kWay == Way::kSum) {
            const float2 factor =
                make_float2(input.weight * input.row_scales.x, input.weight * input.row_scales.y);
            for (float2& scale : scales.scales) scale_pair(scale, factor);
            for (float2& minimum : scales.minima) scale_pair(minimum, factor);
          }
          add_tile<kBlockSteps, kMinima>(sums[r], decoder_, x, tile, scales);
        }
        __syncwarp();  // all have read the tiles
        if (P::kOne && i + slot + P::kSlots < count_) load(input);
        copy(slot);
      }
    }
  }
  // Of rows g and g + 8 of tile r.
  __device__ float2 row_scales(int r) const { return scales_of(choice_.expert, r); }

 private:
  struct Input {
    TileInput<kWay> x;
    float weight;       // kSum
    float2 row_scales;  // kSum
  };

  __device__ int columns() const { return 1 << args_.k_log2; }
  __device__ float2 scales_of(int expert, int r) const {
    if (args_.matrix.row_scales == nullptr) return make_float2(1, 1);
    const int tile = expert * args_.expert_tiles + row_tile_ + r * second_tile_;
    const float* scales = args_.matrix.row_scales + tile * Layout::kTileRows + threadIdx.x % 32 / 4;
    return make_float2(scales[0], scales[8]);
  }
  // The next tiles, if there are any, to this place of the ring.
  __device__ void copy(int slot) {
    if (copied_ < count_) {
      const Layout& layout = args_.matrix.layout;
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const int expert =
          kWay == Way::kSum ? __shfl_sync(~0U, choice_.expert, copies_.choice) : choice_.expert;
      const auto row_bytes = static_cast<std::uint32_t>(layout.row_bytes());
      const std::uint8_t* from =
          args_.matrix.tiles +
          std::uint64_t{row_bytes} * static_cast<std::uint32_t>(expert * args_.expert_tiles + row_tile_) +
          copies_.col * layout.tile_bytes + lane * 16;
      std::uint32_t to =
          shared_address(ring_) + static_cast<std::uint32_t>(slot * P::kRows * layout.tile_bytes + lane * 16);
      const int left = layout.tile_bytes - lane * 16;
#pragma unroll
      for (int r = 0; r < P::kRows; ++r) {
#pragma unroll
        for (int v = 0; v < Codes::kVectors + 2; ++v) {  // scales and minima are at most 1,024 bytes
          if (v < Codes::kVectors || v * 512 < left) copy_async_16(to + v * 512, from + v * 512, true);
        }
        from += std::uint64_t{row_bytes} * static_cast<std::uint32_t>(second_tile_);
        to += static_cast<std::uint32_t>(layout.tile_bytes);
      }
      copies_.advance(columns(), layout.col_tiles());
      ++copied_;
    }
    commit_copies();
  }
  __device__ void find_rows(int begin, int end) {
    const T* x = static_cast<const T*>(args_.x);
    if constexpr (kWay == Way::kPair) rows_[0] = x + begin * args_.x_stride;
    if constexpr (kWay == Way::kGroup) {
#pragma unroll
      for (int t = 0; t < P::kTokenTiles; ++t) {
        const int row = begin + t * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
        rows_[t] =
            row >= end ? nullptr : x + (args_.tokens == nullptr ? row : args_.tokens[row]) * args_.x_stride;
      }
    }
  }
  // The next columns of x.
  __device__ void load(Input& input) {
    if constexpr (kWay == Way::kSum) {
      const int pair = __shfl_sync(~0U, choice_.pair, loads_.choice);
      rows_[0] = static_cast<const T*>(args_.x) + pair * args_.x_stride;
      input.weight = __shfl_sync(~0U, choice_.weight, loads_.choice);
      input.row_scales = scales_of(__shfl_sync(~0U, choice_.expert, loads_.choice), 0);
    }
    input.x.load(rows_, loads_.col, args_.matrix.layout.cols);
    loads_.advance(columns(), args_.matrix.layout.col_tiles());
  }

  const ExpertArgs& args_;
  std::uint8_t* ring_;
  const ByteValues& bytes_;
  const Codes decoder_;
  int row_tile_, second_tile_;  // of the expert; how far the second one is from it
  int count_;                   // of steps along the columns
  Cursor first_, copies_, loads_;
  int copied_;
  Choice choice_;
  const T* rows_[P::kTokenTiles];
};

constexpr int kRowPitch = 20;  // floats between the sums of two tokens: lanes store to different banks

template <Way kWay>
using BlockSums = float[Plan<kWay>::kWarps][Plan<kWay>::kRows][Plan<kWay>::kTokens][kRowPitch];

// Keeps a lane's sums of a row of tiles, times scales of its rows, [token][row].
template <Way kWay>
__device__ inline void keep_sums(float (*to)[kRowPitch], const float (&sums)[Plan<kWay>::kTokenTiles][4],
                                 float2 scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (Plan<kWay>::kOne && lane % 4 != 0) return;  // they have the same
#pragma unroll
  for (int t = 0; t < Plan<kWay>::kTokenTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; i += Plan<kWay>::kOne ? 2 : 1)
      to[t * 8 + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sums[t][i] * (i < 2 ? scales.x : scales.y);
  }
}

// Writes rows [row, row + tokens) of out, the block's columns of them; of an expert, but for kSum.
template <typename T, Way kWay>
__device__ inline void write_sums(const ExpertArgs& args, const BlockSums<kWay>& sums, int row, int tokens,
                                  int expert) {
  using P = Plan<kWay>;
  const auto sum = [&](int unit, int r, int token, int i) {
    float total = 0;
    for (int warp = 0; warp < 1 << args.k_log2; ++warp)
      total += sums[(unit << args.k_log2) + warp][r][token][i];
    return total;
  };
  const int rows = args.is_gated ? 1 : P::kRows;  // of tiles that a unit writes: one or two
  const int units = P::kWarps >> args.k_log2;
  for (int at = static_cast<int>(threadIdx.x); at < units * rows * Layout::kTileRows * tokens;
       at += P::kWarps * 32) {
    const int i = at % Layout::kTileRows;
    const int r = at / Layout::kTileRows & (rows - 1);
    const int unit = at / Layout::kTileRows >> (rows - 1) & (units - 1);
    const int token = P::kOne ? 0 : at / Layout::kTileRows / (rows * units);
    const int tile = (static_cast<int>(blockIdx.x) * units + unit) * rows + r;
    if (tile >= (args.is_gated ? args.units : args.expert_tiles)) continue;
    float value = sum(unit, r, token, i);
    const int column = tile * Layout::kTileRows + i;
    if (args.is_gated) value = gated(args.gate, value, sum(unit, P::kRows - 1, token, i), expert, column);
    if constexpr (kWay == Way::kSum)
      value += bias_sum(args.routing, row, args.down_bias, args.expert_tiles * Layout::kTileRows, column);
    static_cast<T*>(args.out)[(row + token) * args.out_stride + column] = static_cast<T>(value);
  }
}

// A grid of units of an expert; and tokens, pairs of a token and tokens, or experts.
template <typename T, CodeKind kCode, bool kMinima, Way kWay>
__global__ __launch_bounds__(Plan<kWay>::kWarps * 32, Plan<kWay>::kBlocksOfSm) void quantized_experts_kernel(
    const __grid_constant__ ExpertArgs args) {
  using P = Plan<kWay>;
  extern __shared__ __align__(16) std::uint8_t rings[];
  __shared__ ByteValues bytes;
  __shared__ BlockSums<kWay> all_sums;
  const Layout& layout = args.matrix.layout;
  const int item = static_cast<int>(blockIdx.y);
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the warp's
  WarpProduct<T, kCode, kMinima, kWay> product(args, rings + warp * P::kSlots * P::kRows * layout.tile_bytes,
                                               bytes, warp);
  int begin = item, end = item + 1, expert = item;
  if constexpr (kWay == Way::kSum) {
    admit_next_kernel();
    product.choose(sorted_choice(args.routing, item));
  } else {
    wait_for_kernels();
    admit_next_kernel();  // only now: the next kernel reads the routing ahead of its wait
    const auto choice = static_cast<int>(blockIdx.z);
    if constexpr (kWay == Way::kPair)
      expert = args.routing.experts[item * args.routing.experts_stride + choice];
    product.choose({expert, 0, 1});
    if constexpr (kWay == Way::kGroup) {
      begin = args.offsets[item];
      end = args.offsets[item + 1];
      if (begin == end) return;
    }
  }
  product.start();
  if (layout.scale == ScaleKind::kByte || layout.minimum == ScaleKind::kByte) {
    bytes.load(args.matrix);
    __syncthreads();
  }
  float2 row_scales[P::kRows];
#pragma unroll
  for (int r = 0; r < P::kRows; ++r)
    row_scales[r] = kWay == Way::kSum ? make_float2(1, 1) : product.row_scales(r);
  if constexpr (kWay == Way::kSum) wait_for_kernels();
  for (int first = begin; first < end; first += P::kTokens) {
    const int tokens = min(P::kTokens, end - first);
    WarpSums<kWay> sums = {};
    dispatch_block_steps(layout, [&]<int kBlockSteps>() {
      product.template multiply<kBlockSteps>(sums, first, first + tokens);
    });
#pragma unroll
    for (int r = 0; r < P::kRows; ++r) keep_sums<kWay>(all_sums[warp][r], sums[r], row_scales[r]);
    __syncthreads();
    const int row = kWay == Way::kPair ? item * args.routing.top_k + static_cast<int>(blockIdx.z) : first;
    write_sums<T, kWay>(args, all_sums, row, tokens, expert);
    if (first + P::kTokens >= end) break;
    product.start();
    __syncthreads();
  }
}

template <Way kWay>
int ring_bytes(const Layout& layout) {
  using P = Plan<kWay>;
  return P::kWarps * P::kSlots * P::kRows * layout.tile_bytes;
}

template <Way kWay>
bool has_room(const LaunchContext& context, const QuantizedMatrix& matrix) {
  constexpr int kOthers = sizeof(ByteValues) + sizeof(BlockSums<kWay>);
  return ring_bytes<kWay>(matrix.layout) + kOthers <= context.shared_bytes;
}

// items: tokens or experts.
template <Way kWay>
void launch_experts(const LaunchContext& context, const char* name, ExpertArgs args, std::int64_t items,
                    DType dtype) {
  using P = Plan<kWay>;
  const Layout& layout = args.matrix.layout;
  const int columns = layout.col_tiles() * (kWay == Way::kSum ? args.routing.top_k : 1);
  args.units = ceil_div(args.expert_tiles, P::kRows);
  args.k_log2 = std::bit_width(static_cast<unsigned>(std::min(P::kWarps, columns))) - 1;
  const dim3 grid(ceil_div(args.units << args.k_log2, P::kWarps), items,
                  kWay == Way::kPair ? args.routing.top_k : 1);
  const int bytes = ring_bytes<kWay>(layout);
  dispatch_operand(dtype, [&]<typename T>() {
    dispatch_codes(layout, [&]<CodeKind kCode, bool kMinima>() {
      const auto kernel = quantized_experts_kernel<T, kCode, kMinima, kWay>;
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
      launch(context, name, kernel, grid, P::kWarps * 32, bytes, args);
    });
  });
}

ExpertArgs args_of(const Tensor& out, const Tensor& x, const QuantizedMatrix& matrix,
                   const RoutingArgs& routing, std::int64_t num_experts) {
  const auto expert_tiles = static_cast<int>(matrix.layout.row_tiles() / num_experts);
  return {.matrix = matrix,
          .routing = routing,
          .x = x.data(),
          .out = out.data(),
          .x_stride = x.stride(0),
          .out_stride = out.stride(0),
          .expert_tiles = expert_tiles,
          .is_gated = expert_tiles * Layout::kTileRows == 2 * out.dim(1)};
}

}  // namespace

bool quantized_pairs_have_room(const LaunchContext& context, const ExpertCodes& codes) {
  return has_room<Way::kPair>(context, codes.gate_up) && has_room<Way::kSum>(context, codes.down);
}

void quantized_experts_by_pair(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                               const Tensor& inner) {
  const DType dtype = call.x.dtype();
  const RoutingArgs routing(call.routing);
  ExpertArgs gate_up = args_of(inner, call.x, call.codes->gate_up, routing, shape.num_experts);
  gate_up.gate = gate_of(call, shape);
  launch_experts<Way::kPair>(context, "experts' gate and up", gate_up, call.x.dim(0), dtype);
  ExpertArgs down = args_of(call.out, inner, call.codes->down, routing, shape.num_experts);
  down.down_bias = call.biases.down.data_as<const float>();
  launch_experts<Way::kSum>(context, "experts' down", down, call.x.dim(0), dtype);
}

void quantized_grouped_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const QuantizedMatrix& matrix, const PairGroups& groups) {
  const std::int64_t num_experts = groups.offsets.dim(0) - 1;
  ExpertArgs args = args_of(out, x, matrix, {}, num_experts);
  args.offsets = groups.offsets.data_as<const int>();
  args.tokens = groups.tokens.data_as<const int>();
  args.gate = groups.gate;
  launch_experts<Way::kGroup>(context, "experts' products", args, num_experts, x.dtype());
}

}  // namespace quire::cuda
