// out [tokens, n] = x [tokens, k] · weightᵀ + bias for 1 to 16 tokens and a quantised weight [n, k], and the
// gated pair activation(gate) · up. Must move the weight's tiles once; x and out are small.
//
// A block of 16 warps owns a range of rows of tiles, and splits k among its warps, and where k is short the
// rows, too. A warp multiplies a unit at a time, two tiles that are neighbours along k, whose x it keeps in
// registers while it goes down the rows; a unit is copied as one piece, by one instruction from Hopper on, to
// a ring in shared memory that only the warp uses. The copies begin before the kernel in front has ended.
// Codes become bfloat16 or float16 in registers, without rounding (but for tables, whose values are rounded
// once: NF4's by up to 2^-9 in bfloat16), as the left operand of tensor cores whose right operand are 8
// tokens; sums of a block of columns are multiplied by its scale in float32. For minima another product sums
// up x; so it does for integers of 4 bits, which are multiplied with 128 or 1,024 more than they are, since
// to take that away from each costs more. The warps' sums are added in shared memory, in one order.
//
// On an H200 that reads 4,510 GB/s, products in a graph one after the other, each with a weight of its own
// (bench/cuda/quantized_bench.cpp), x in bf16, at 1 / 8 tokens: 24576 × 4096 gated in codes of 4 bits by 128
// at 68 / 55 % of that, in rows of FP8 at 78 / 70 %, in Q4_K at 44 / 39 %, in NF4 at 38 / 34 %; 6144 × 4096
// at 45 / 34 %, 66 / 54 %, 33 / 27 % and 31 / 26 %; 4096 × 4096 at 37 / 27 %, 55 / 43 %, 28 / 22 % and 27 /
// 22 %; 4096 × 12288 at 54 / 42 %, 76 / 60 %, 38 / 32 % and 34 / 30 %. Without its multiplications 24576 ×
// 4096 takes 14.5 of 17 us, 4096 × 4096 3 of 5.2: there they begin with x and have nothing to hide behind. A
// unit of 4 bits takes a warp some 255 instructions, 112 of them to part its codes, on a pipe that issues
// every other cycle.
#include <algorithm>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/product_tile.cuh"
#include "backends/cuda/kernels/quantized_tile.cuh"

namespace quire::cuda {
namespace {

using Layout = QuantizedLayout;

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kRowPitch = 20;  // floats between the sums of two tokens: lanes store to different banks
constexpr int kMaxPassBytes = 96 << 10;
constexpr int kRing = 2;  // units

// Cuts a range into parts whose lengths differ by one at most.
struct EvenSplit {
  int quotient = 0;
  int rest = 0;

  EvenSplit() = default;
  EvenSplit(int size, int parts) : quotient(size / parts), rest(size % parts) {}
  __device__ int begin(int part) const { return part * quotient + min(part, rest); }
};

struct MatvecArgs : LinearArgs {
  QuantizedMatrix matrix;
  int row_tiles = 0;  // of out
  int col_tiles = 0;
  EvenSplit block_rows;  // of tiles
  EvenSplit warp_units;  // of a row of tiles
  int unit_tiles = 0;    // neighbours along k, which a warp computes at a time
  int k_warps_log2 = 0;  // so many warps split k, the others take other rows
  int ring_units = 0;    // 1 to kRing
  int pass_tiles = 0;    // whose sums are in shared memory at a time
  int parts_log2 = 0;    // lanes that add up an element's sums
  bool is_gated = false;
  bool out_is_f32 = false;
};

// What a block computes: rows of tiles, the gate's and up's in turn where gated.
struct BlockTiles {
  __device__ explicit BlockTiles(const MatvecArgs& args)
      : args(args),
        first(args.block_rows.begin(static_cast<int>(blockIdx.x))),
        count((args.block_rows.begin(static_cast<int>(blockIdx.x) + 1) - first) * (args.is_gated ? 2 : 1)) {}
  // Of the matrix.
  __device__ int row_tile(int i) const {
    const int gated = args.is_gated ? 1 : 0;
    return first + (i >> gated) + (i & gated) * args.row_tiles;
  }

  const MatvecArgs& args;
  int first;
  int count;
};

// A warp's part of a block: units of every row_step-th row of tiles.
struct WarpTiles {
  __device__ explicit WarpTiles(const MatvecArgs& args) {
    k_warp = warp() & ((1 << args.k_warps_log2) - 1);
    first_row = warp() >> args.k_warps_log2;
    row_step = kWarps >> args.k_warps_log2;
    first_col = args.warp_units.begin(k_warp) * args.unit_tiles;
    end_col = min(args.warp_units.begin(k_warp + 1) * args.unit_tiles, args.col_tiles);
  }

  int k_warp;
  int first_row, row_step;
  int first_col, end_col;
};

// A warp's ring of units: of a pass of rows, down the rows, then along k.
template <int kUnit>
class UnitRing {
 public:
  // memory: of the warp's ring.
  __device__ UnitRing(const MatvecArgs& args, const BlockTiles& tiles, const WarpTiles& own,
                      std::uint8_t* memory, std::uint64_t* barriers)
      : args_(args),
        tiles_(tiles),
        own_(own),
        memory_(memory),
        barriers_(barriers),
        row_(own.first_col < own.end_col ? own.first_row : tiles.count),
        col_(own.first_col) {
    if (args.col_tiles % kUnit != 0) {  // the last unit is no whole one: what x's zeros meet is a number
      for (int i = lane() * 16; i < args.ring_units * unit_bytes(); i += 512)
        *reinterpret_cast<uint4*>(memory + i) = make_uint4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
      hopper::publish_stores();
#endif
    }
#if __CUDA_ARCH__ >= 900
    if (lane() < kRing) hopper::init_barrier(&barriers_[lane()], 1);
    hopper::publish_barriers();
#endif
    __syncwarp();
  }

  // All places. More than one unit under way while the kernel in front runs would keep it waiting for its x.
  __device__ void fill() {
    for (int i = 0; i < args_.ring_units; ++i, at_.next(args_.ring_units)) {
#if __CUDA_ARCH__ >= 900
      if (i > 0 && row_ < tiles_.count) hopper::wait(&barriers_[i - 1], 0);
#endif
      copy_next();
    }
    at_.parity = 0;
  }
  // The next unit, once it is there.
  __device__ const std::uint8_t* wait() const {
#if __CUDA_ARCH__ >= 900
    hopper::wait(&barriers_[at_.place], at_.parity);
#else
    args_.ring_units == kRing ? wait_for_copies<kRing - 1>() : wait_for_copies<0>();
    __syncwarp();  // the other lanes' copies too
#endif
    return place();
  }
  // Its place is free.
  __device__ void release() {
    __syncwarp();  // all have read it
    copy_next();
    at_.next(args_.ring_units);
  }

 private:
  __device__ int unit_bytes() const { return kUnit * args_.matrix.layout.tile_bytes; }
  __device__ std::uint8_t* place() const { return memory_ + at_.place * unit_bytes(); }

  __device__ void copy_next() {
    if (row_ < tiles_.count) {
      const int tile_bytes = args_.matrix.layout.tile_bytes;
      const std::uint8_t* from = args_.matrix.tiles +
                                 tiles_.row_tile(row_) * std::int64_t{args_.col_tiles * tile_bytes} +
                                 col_ * tile_bytes;
      const int bytes = min(kUnit, own_.end_col - col_) * tile_bytes;
#if __CUDA_ARCH__ >= 900
      if (lane() == 0) {
        hopper::arrive_expecting(&barriers_[at_.place], static_cast<unsigned>(bytes));
        hopper::copy_bytes(place(), from, static_cast<unsigned>(bytes), &barriers_[at_.place]);
      }
#else
      for (int i = lane() * 16; i < bytes; i += 512) copy_async_16(place() + i, from + i, true);
#endif
      row_ += own_.row_step;
      if (row_ >= min(pass_ + args_.pass_tiles, tiles_.count)) {
        col_ += kUnit;
        if (col_ >= own_.end_col) {
          col_ = own_.first_col;
          pass_ += args_.pass_tiles;
        }
        row_ = pass_ + own_.first_row;
      }
    }
#if __CUDA_ARCH__ < 900
    commit_copies();
#endif
  }

  const MatvecArgs& args_;
  const BlockTiles& tiles_;
  const WarpTiles& own_;
  std::uint8_t* memory_;
  [[maybe_unused]] std::uint64_t* barriers_;
  RingStage at_;
  int pass_ = 0;  // of the next unit to copy
  int row_;
  int col_;
};

// A lane's part of a tile's columns of x, for each step. Beyond the last token it is that one once more: no
// one looks at its sums.
template <int kTokenTiles>
struct TileInput {
  uint2 values[kTokenTiles][Layout::kSteps];
  float2 sums[kTokenTiles];  // of the tile's columns, of the tokens of this lane's sums

  template <typename T>
  __device__ void load(const LinearArgs& args, int col_tile) {
    const int column = col_tile * Layout::kTileColumns + static_cast<int>(threadIdx.x % 4 * 4);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const int token = min(static_cast<int>(threadIdx.x % 32 / 4) + t * 8, args.tokens - 1);
      const T* row = static_cast<const T*>(args.x) + token * args.x_stride + column;
      if ((col_tile + 1) * Layout::kTileColumns <= args.k) {
#pragma unroll
        for (int step = 0; step < Layout::kSteps; ++step)
          values[t][step] = *reinterpret_cast<const uint2*>(row + step * Layout::kStepColumns);
      } else {
#pragma unroll
        for (int step = 0; step < Layout::kSteps; ++step)
          values[t][step] = column + step * Layout::kStepColumns < args.k
                                ? *reinterpret_cast<const uint2*>(row + step * Layout::kStepColumns)
                                : make_uint2(0, 0);
      }
    }
  }
  template <typename T>
  __device__ void sum() {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float parts[2][4] = {};
#pragma unroll
      for (int step = 0; step < Layout::kSteps; ++step) add_columns<T>(parts[step % 2], values[t][step]);
      sums[t] = make_float2(parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]);
    }
  }
};

// sums += a unit's tiles times x, in blocks of kBlockSteps steps.
template <int kBlockSteps, bool kMinima, int kUnit, int kTokenTiles, typename T, CodeKind kCode>
__device__ inline void add_unit(float (&sums)[kTokenTiles][4], const Decoder<T, kCode>& decoder,
                                const TileInput<kTokenTiles> (&x)[kUnit], const QuantizedLayout& layout,
                                const std::uint8_t* unit, const ByteValues& bytes) {
  using Codes = Decoder<T, kCode>;
  constexpr int kChains =
      kBlockSteps > 2 && kTokenTiles == 1 ? 2 : 1;  // of products that wait for each other
  constexpr bool kSumsX = (kMinima || Codes::kIsShifted) && kBlockSteps < Layout::kSteps;
  const unsigned lane = threadIdx.x % 32;
  uint4 vectors[kUnit][Codes::kVectors];
  BlockScales<Layout::kSteps / kBlockSteps, kMinima> scales[kUnit];
#pragma unroll
  for (int r = 0; r < kUnit; ++r, unit += layout.tile_bytes) {
#pragma unroll
    for (int v = 0; v < Codes::kVectors; ++v)
      vectors[r][v] = reinterpret_cast<const uint4*>(unit)[v * 32 + lane];
    scales[r].read(layout, unit, static_cast<int>(lane / 4), bytes.scale, bytes.minimum);
  }
#pragma unroll
  for (int block = 0; block < Layout::kSteps / kBlockSteps; ++block) {
    float open[kChains][kUnit][kTokenTiles][4] = {};
    float x_sums[kUnit][kTokenTiles][4] = {};
#pragma unroll
    for (int s = 0; s < kBlockSteps; ++s) {
      const int step = block * kBlockSteps + s;
      std::uint32_t a[kUnit][4];
#pragma unroll
      for (int r = 0; r < kUnit; ++r) {
        decoder.shifted_operand(vectors[r][step / Codes::kVectorSteps], step % Codes::kVectorSteps, a[r]);
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const uint2 columns = x[r].values[t][step];
          multiply_add<T>(open[s % kChains][r][t], a[r], columns.x, columns.y);
          if constexpr (kSumsX) add_columns<T>(x_sums[r][t], columns);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kUnit; ++r) {
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const float2 x_sum = kSumsX ? make_float2(x_sums[r][t][0], x_sums[r][t][1]) : x[r].sums[t];
        if constexpr (Codes::kIsShifted) decoder.shift_back(open[0][r][t], x_sum);
#pragma unroll
        for (int c = 0; c < kChains; ++c) add_scaled(sums[t], open[c][r][t], scales[r].scales[block]);
        if constexpr (kMinima) subtract_minima(sums[t], x_sum, scales[r].minima[block]);
      }
    }
  }
}

// [token][8][2], rows g and g + 8 side by side, = a warp's sums of a tile, or where add += them.
template <int kTokenTiles>
__device__ inline void keep_sums(float* to, const float (&sums)[kTokenTiles][4], int tokens, bool add) {
  const int token = static_cast<int>(threadIdx.x % 4 * 2);
  auto* pair = reinterpret_cast<float2*>(to + token * kRowPitch) + threadIdx.x % 32 / 4;
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (token + t * 8 + i >= tokens) continue;
      float2& kept = pair[(t * 8 + i) * kRowPitch / 2];
      const float2 before = add ? kept : make_float2(0, 0);
      kept = make_float2(before.x + sums[t][i], before.y + sums[t][i + 2]);
    }
  }
}

// Adds the warps' sums [warp][tile of the pass][token][row] of a pass, from its tile `begin` to `end`, and
// writes them.
template <typename T>
__device__ inline void write_pass(const MatvecArgs& args, const BlockTiles& tiles, const float* partial,
                                  int begin, int end) {
  const int tile_floats = args.tokens * kRowPitch;
  const int parts = 1 << args.parts_log2;
  const int part = static_cast<int>(threadIdx.x) & (parts - 1);
  const auto sum = [&](int tile, int token, int row) {
    const float* from = partial + (tile - begin) * tile_floats + token * kRowPitch + row % 8 * 2 + row / 8;
    float total = 0;
#pragma unroll 4
    for (int warp = part; warp < 1 << args.k_warps_log2; warp += parts)
      total += from[warp * args.pass_tiles * tile_floats];
    for (int lane = 1; lane < parts; lane *= 2) total += __shfl_xor_sync(~0U, total, lane);
    return args.matrix.row_scales == nullptr
               ? total
               : total * args.matrix.row_scales[tiles.row_tile(tile) * Layout::kTileRows + row];
  };
  const int step = args.is_gated ? 2 : 1;
  const int values = (end - begin) / step * args.tokens * Layout::kTileRows;
  // The same number of rounds for all lanes of a warp.
  for (int i = static_cast<int>(threadIdx.x) >> args.parts_log2; __any_sync(~0U, i < values);
       i += kThreads >> args.parts_log2) {
    const unsigned at_tile = min(static_cast<unsigned>(i), values - 1U) / Layout::kTileRows;
    const int row = i % Layout::kTileRows;
    const unsigned in_pass = args.tokens == 1 ? at_tile : at_tile / args.tokens;
    const int token = static_cast<int>(at_tile - in_pass * args.tokens);
    const int tile = begin + static_cast<int>(in_pass) * step;
    const int column = tiles.row_tile(tile) * Layout::kTileRows + row;
    float value = sum(tile, token, row);
    if (args.bias != nullptr && column < args.n) value += args.bias[column];
    if (args.is_gated) value = activated(value, args.activation) * sum(tile + 1, token, row);
    if (i >= values || column >= args.n || part != 0) continue;
    const std::int64_t at = token * args.out_stride + column;
    if (args.out_is_f32) {
      static_cast<float*>(args.out)[at] = value;
    } else {
      static_cast<T*>(args.out)[at] = static_cast<T>(value);
    }
  }
}

template <typename T, CodeKind kCode, bool kMinima, int kTokenTiles, int kBlockSteps>
__global__ __launch_bounds__(kThreads,
                             1) void quantized_matvec_kernel(const __grid_constant__ MatvecArgs args) {
  constexpr int kUnit = 3 - kTokenTiles;  // as many as registers can hold x of
  extern __shared__ __align__(16) std::uint8_t shared[];
  __shared__ ByteValues bytes;
  __shared__ std::uint64_t barriers[kWarps][kRing];
  admit_next_kernel();
  const QuantizedLayout& layout = args.matrix.layout;
  const BlockTiles tiles(args);
  const WarpTiles own(args);
  const int ring_bytes = args.ring_units * kUnit * layout.tile_bytes;
  auto* partial = reinterpret_cast<float*>(shared + kWarps * ring_bytes);
  const int tile_floats = args.tokens * kRowPitch;
  UnitRing<kUnit> ring(args, tiles, own, shared + warp() * ring_bytes, barriers[warp()]);
  ring.fill();
  if (layout.scale == ScaleKind::kByte || layout.minimum == ScaleKind::kByte) {
    bytes.load(args.matrix);
    __syncthreads();
  }
  wait_for_kernels();

  constexpr bool kSumsX = (kMinima || Decoder<T, kCode>::kIsShifted) && kBlockSteps == Layout::kSteps;
  const Decoder<T, kCode> decoder(args.matrix);
  TileInput<kTokenTiles> x[kUnit];
  for (int pass = 0; pass < tiles.count; pass += args.pass_tiles) {
    const int end = min(pass + args.pass_tiles, tiles.count);
    float* kept = partial + own.k_warp * args.pass_tiles * tile_floats;
    for (int col = own.first_col; col < own.end_col; col += kUnit) {
      if (pass == 0 || own.end_col - own.first_col > kUnit) {  // else x stays
#pragma unroll
        for (int i = 0; i < kUnit; ++i) x[i].template load<T>(args, col + i);
        if constexpr (kSumsX) {
#pragma unroll
          for (int i = 0; i < kUnit; ++i) x[i].template sum<T>();
        }
      }
      for (int tile = pass + own.first_row; tile < end; tile += own.row_step) {
        float sums[kTokenTiles][4] = {};
        add_unit<kBlockSteps, kMinima>(sums, decoder, x, layout, ring.wait(), bytes);
        keep_sums(kept + (tile - pass) * tile_floats, sums, args.tokens, col > own.first_col);
        ring.release();
      }
    }
    __syncthreads();
    write_pass<T>(args, tiles, partial, pass, end);
    if (end < tiles.count) __syncthreads();
  }
}

// Sets how a block uses its warps and its shared memory; gives the bytes.
int plan_block(const LaunchContext& context, MatvecArgs& args, int block_tiles) {
  const QuantizedLayout& layout = args.matrix.layout;
  const int limit = context.shared_bytes - static_cast<int>(sizeof(ByteValues)) - 1024;
  args.unit_tiles = args.tokens > 8 ? 1 : 2;                    // as many as registers can hold x of
  const int units = ceil_div(args.col_tiles, args.unit_tiles);  // of a row
  const auto warp_units = [&](int log2) {
    return ceil_div(block_tiles, kWarps >> log2) * ceil_div(units, 1 << log2);
  };
  for (int log2 = 0; 1 << log2 <= std::min(units, kWarps); ++log2)
    if (warp_units(log2) <= warp_units(args.k_warps_log2)) args.k_warps_log2 = log2;
  const int k_warps = 1 << args.k_warps_log2;
  args.warp_units = EvenSplit(units, k_warps);
  const int row_step = kWarps / k_warps;
  const int tile_sums = k_warps * args.tokens * kRowPitch * int{sizeof(float)};
  const int passes = ceil_div(block_tiles * tile_sums, std::min(kMaxPassBytes, limit / 2));
  args.pass_tiles = ceil_div(ceil_div(block_tiles, passes), 2 * row_step) * 2 * row_step;
  const int unit_bytes = kWarps * args.unit_tiles * layout.tile_bytes;
  while (args.pass_tiles > 2 * row_step && args.pass_tiles * tile_sums + unit_bytes > limit)
    args.pass_tiles -= 2 * row_step;
  const int pass_bytes = args.pass_tiles * tile_sums;
  require(pass_bytes + unit_bytes <= limit, "quantized_matvec: shared memory");
  args.ring_units =
      std::clamp((limit - pass_bytes) / unit_bytes, 1, std::min(warp_units(args.k_warps_log2), kRing));
  args.parts_log2 = args.tokens == 1 ? 3 : 0;
  // Blocks must not share a multiprocessor while another has none: more than half of its memory for each.
  return std::max(args.ring_units * unit_bytes + pass_bytes, context.shared_bytes / 2);
}

template <typename T, int kTokenTiles>
void launch_matvec(const LaunchContext& context, MatvecArgs args) {
  const int grid = std::min(args.row_tiles, context.num_sms);
  args.block_rows = EvenSplit(args.row_tiles, grid);
  const int bytes = plan_block(context, args, ceil_div(args.row_tiles, grid) * (args.is_gated ? 2 : 1));
  dispatch_codes(args.matrix.layout, [&]<CodeKind kCode, bool kMinima>() {
    const auto run = [&]<int kBlockSteps>() {
      const auto kernel = quantized_matvec_kernel<T, kCode, kMinima, kTokenTiles, kBlockSteps>;
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "quantized_matvec");
      launch(context, "quantized_matvec", kernel, grid, kThreads, bytes, args);
    };
    dispatch_block_steps(args.matrix.layout, run);
  });
}

}  // namespace

bool quantized_products_support(const Tensor& x) { return x.dtype() != DType::kF32 && has_vector_rows(x); }

void quantized_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x,
                      const QuantizedMatrix& matrix, const Tensor& bias, Gate gate) {
  MatvecArgs args{{out, x, matrix.tile_tensor(), bias, gate}, matrix};
  args.is_gated = gate.has_value();
  args.out_is_f32 = out.dtype() == DType::kF32;
  if (args.tokens == 0 || args.n == 0) return;
  args.row_tiles = ceil_div(args.n, Layout::kTileRows);
  args.col_tiles = matrix.layout.col_tiles();
  dispatch_operand(x.dtype(), [&]<typename T>() {
    args.tokens > 8 ? launch_matvec<T, 2>(context, args) : launch_matvec<T, 1>(context, args);
  });
}

}  // namespace quire::cuda
