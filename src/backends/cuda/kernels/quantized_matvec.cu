// out [tokens, n] = x [tokens, k] · weightᵀ + bias for 1 to 16 tokens and a quantised weight [n, k], and the
// gated pair activation(gate) · up. Must move the weight's tiles once; x and out are small.
//
// A block of 16 warps owns a range of rows of tiles, and splits k among its warps, and where k is short the
// rows, too. A warp copies its tiles, which lie one behind the other, to a ring in shared memory that only it
// uses. The copies begin before the kernel in front has ended. Codes become bfloat16 or float16 in registers,
// without rounding (but for tables, whose values are rounded once: NF4's by up to 2^-9 in bfloat16), as the
// left operand of tensor cores whose right operand are 8 tokens; sums of a block of columns are multiplied by
// its scale in float32. For minima another product sums up x. The warps' sums are added in shared memory, in
// one order.
//
// On an H200 that reads 4,504 GB/s, products in a graph one after the other, each with a weight of its own
// (bench/cuda/quantized_bench.cpp), x in bf16, at 1 / 8 tokens: 24576 × 4096 gated in codes of 4 bits by 128
// at 50 / 45 % of that, in blocks of FP8 at 75 / 66 %, in Q4_K at 39 / 38 %; 6144 × 4096 at 36 / 29 %, 61 /
// 45 % and 31 / 28 %; 4096 × 4096 at 33 / 23 %, 50 / 37 % and 30 / 24 %; 4096 × 12288 at 41 / 32 %, 64 / 50 %
// and 35 / 28 %. A profile of 6144 × 4096 shows warps that wait for their own instructions: a scheduler
// has 3.7 of them and issues in 37 % of the cycles; no pipe is busy for more than a quarter.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/quantized_tile.cuh"

namespace quire::cuda {
namespace {

using Layout = QuantizedLayout;

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kRowPitch = 20;  // floats between the sums of two tokens: lanes store to different banks
constexpr int kMaxPassTiles = 4;
constexpr int kInputs = 2;  // tiles of columns whose x is held in registers
constexpr int kAhead = 2;   // tiles under way before x is there

struct MatvecArgs : LinearArgs {
  MatvecArgs(const Tensor& out_tensor, const Tensor& x_tensor, const QuantizedMatrix& quantized,
             const Tensor& bias_tensor)
      : LinearArgs(out_tensor, x_tensor,
                   Tensor(const_cast<std::uint8_t*>(quantized.tiles), DType::kU8,
                          {quantized.layout.rows, quantized.layout.cols}, DeviceKind::kCuda),
                   bias_tensor),
        matrix(quantized) {}

  QuantizedMatrix matrix;
  int row_tiles = 0;  // of out
  int col_tiles = 0;
  int k_warps = kWarps;  // among which k is split: 16, 8, 4, 2 or 1; the others take other rows
  int ring_tiles = 0;    // 2, 4 or 8
  int pass_tiles = 0;    // whose sums are in shared memory at a time
  bool is_gated = false;
  bool out_is_f32 = false;
};

// Waits until at most so many of this thread's groups of copies are under way: 1, 3 or 7.
__device__ inline void wait_for_copies_but(int pending) {
  if (pending == 7) return wait_for_copies<7>();
  if (pending == 3) return wait_for_copies<3>();
  wait_for_copies<1>();
}

// What a block computes: rows of tiles, the gate's and up's in turn where gated.
struct BlockTiles {
  __device__ explicit BlockTiles(const MatvecArgs& args) : args(args) {
    first = static_cast<int>(std::int64_t{args.row_tiles} * blockIdx.x / gridDim.x);
    const int end = static_cast<int>(std::int64_t{args.row_tiles} * (blockIdx.x + 1) / gridDim.x);
    count = (end - first) * (args.is_gated ? 2 : 1);
  }
  // Of the matrix.
  __device__ int row_tile(int i) const {
    return args.is_gated ? first + i / 2 + (i % 2 == 0 ? 0 : args.row_tiles) : first + i;
  }

  const MatvecArgs& args;
  int first;
  int count;
};

// A warp's part of a block: columns of tiles, of every row_step-th row of tiles.
struct WarpTiles {
  __device__ explicit WarpTiles(const MatvecArgs& args) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    k_warp = warp % args.k_warps;
    first_row = warp / args.k_warps;
    row_step = kWarps / args.k_warps;
    first_col = args.col_tiles * k_warp / args.k_warps;
    num_cols = args.col_tiles * (k_warp + 1) / args.k_warps - first_col;
  }

  int k_warp;
  int first_row, row_step;
  int first_col, num_cols;
};

// Copies a warp's tiles to its ring: along k, then down the rows. kCodes: vectors of a lane's codes.
template <int kCodes>
class TileCopier {
 public:
  __device__ TileCopier(const MatvecArgs& args, const BlockTiles& tiles, const WarpTiles& own, uint4* ring)
      : tiles_(tiles),
        own_(own),
        vectors_(args.matrix.layout.tile_bytes / 16),
        row_vectors_(args.col_tiles * vectors_),
        first_(reinterpret_cast<const uint4*>(args.matrix.tiles) + own.first_col * vectors_ +
               threadIdx.x % 32),
        ring_(shared_address(ring + threadIdx.x % 32)),
        row_(own.num_cols == 0 ? tiles.count : own.first_row) {
    from_ = first_ + tiles.row_tile(row_) * std::int64_t{row_vectors_};
  }

  // The next tile, if there is one, to this place of the ring.
  __device__ void copy_next(int slot) {
    if (row_ < tiles_.count) {
      const std::uint32_t to = ring_ + static_cast<std::uint32_t>(slot * vectors_ * 16);
      const int left = vectors_ - static_cast<int>(threadIdx.x % 32);
#pragma unroll
      for (int i = 0; i < kCodes + 2; ++i) {  // scales and minima are at most 1,024 bytes
        if (i < kCodes || i * 32 < left) copy_async_16(to + i * 512, from_ + i * 32, true);
      }
      from_ += vectors_;
      if (++col_ == own_.num_cols) {
        col_ = 0;
        row_ += own_.row_step;
        from_ = first_ + tiles_.row_tile(row_) * std::int64_t{row_vectors_};
      }
    }
    commit_copies();
  }

 private:
  const BlockTiles& tiles_;
  const WarpTiles& own_;
  int vectors_;
  int row_vectors_;
  const uint4* first_;
  const uint4* from_;
  std::uint32_t ring_;
  int row_;
  int col_ = 0;
};

// A lane's part of a tile's columns of x, for each step.
template <int kTokenTiles>
struct TileInput {
  uint2 values[kTokenTiles][Layout::kSteps];

  template <typename T>
  __device__ void load(const LinearArgs& args, int col_tile) {
    const int token = static_cast<int>(threadIdx.x) % 32 / 4;
    const int column = col_tile * Layout::kTileColumns + static_cast<int>(threadIdx.x) % 4 * 4;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const T* row = static_cast<const T*>(args.x) + (token + t * 8) * args.x_stride + column;
#pragma unroll
      for (int step = 0; step < Layout::kSteps; ++step) {
        const bool inside = token + t * 8 < args.tokens && column + step * Layout::kStepColumns < args.k;
        values[t][step] =
            inside ? *reinterpret_cast<const uint2*>(row + step * Layout::kStepColumns) : make_uint2(0, 0);
      }
    }
  }
};

// sums += a tile times x, in blocks of kBlockSteps steps.
template <int kBlockSteps, bool kMinima, int kTokenTiles, typename T, CodeKind kCode>
__device__ inline void add_blocks(float (&sums)[kTokenTiles][4], const Decoder<T, kCode>& decoder,
                                  const TileInput<kTokenTiles>& x, const QuantizedLayout& layout,
                                  const std::uint8_t* tile, const ByteValues& bytes) {
  using Codes = Decoder<T, kCode>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 vectors[Codes::kVectors];
#pragma unroll
  for (int v = 0; v < Codes::kVectors; ++v) vectors[v] = reinterpret_cast<const uint4*>(tile)[v * 32 + lane];
  const BlockScales<Layout::kSteps / kBlockSteps, kMinima> scales(layout, tile, lane / 4, bytes.scale,
                                                                  bytes.minimum);
#pragma unroll
  for (int block = 0; block < Layout::kSteps / kBlockSteps; ++block) {
    constexpr int kChains = kBlockSteps > 2 ? 2 : 1;  // of products that wait for each other
    float open[kChains][kTokenTiles][4] = {};
    float x_sums[kTokenTiles][4] = {};
#pragma unroll
    for (int s = 0; s < kBlockSteps; ++s) {
      const int step = block * kBlockSteps + s;
      std::uint32_t a[4];
      decoder.operand(vectors[step / Codes::kVectorSteps], step % Codes::kVectorSteps, a);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        multiply_add<T>(open[s % kChains][t], a, x.values[t][step].x, x.values[t][step].y);
        if constexpr (kMinima) add_columns<T>(x_sums[t], x.values[t][step]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) add_scaled(sums[t], open[c][t], scales.scales[block]);
      if constexpr (kMinima) subtract_minima(sums[t], x_sums[t], scales.minima[block]);
    }
  }
}

template <bool kMinima, int kTokenTiles, typename T, CodeKind kCode>
__device__ inline void add_tile(float (&sums)[kTokenTiles][4], const Decoder<T, kCode>& decoder,
                                const TileInput<kTokenTiles>& x, const QuantizedLayout& layout,
                                const std::uint8_t* tile, const ByteValues& bytes) {
  if (layout.block_log2 == 3) {
    add_blocks<8, kMinima>(sums, decoder, x, layout, tile, bytes);
  } else if (layout.block_log2 != 0) {
    add_blocks<2, kMinima>(sums, decoder, x, layout, tile, bytes);
  } else {
    add_blocks<1, kMinima>(sums, decoder, x, layout, tile, bytes);
  }
}

// Writes a warp's sums of a tile to [token][row].
template <int kTokenTiles>
__device__ inline void keep_sums(float* to, const float (&sums)[kTokenTiles][4], int tokens) {
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int token = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = t * 8 + token + i % 2;
      if (at < tokens) to[at * kRowPitch + row + i / 2 * 8] = sums[t][i];
    }
  }
}

// Adds the warps' sums [warp][tile of the pass][token][row] of a pass, from its tile `begin` to `end`, and
// writes them.
template <typename T>
__device__ inline void write_pass(const MatvecArgs& args, const BlockTiles& tiles, const float* partial,
                                  int begin, int end) {
  const int tile_floats = args.tokens * kRowPitch;
  const auto sum = [&](int tile, int token, int row) {
    const float* from = partial + (tile - begin) * tile_floats + token * kRowPitch + row;
    float total = 0;
#pragma unroll 4
    for (int warp = 0; warp < args.k_warps; ++warp) total += from[warp * args.pass_tiles * tile_floats];
    return args.matrix.row_scales == nullptr
               ? total
               : total * args.matrix.row_scales[tiles.row_tile(tile) * Layout::kTileRows + row];
  };
  const int step = args.is_gated ? 2 : 1;
  const int values = (end - begin) / step * args.tokens * Layout::kTileRows;
  for (int i = static_cast<int>(threadIdx.x); i < values; i += kThreads) {
    const int row = i % Layout::kTileRows;
    const int token = i / Layout::kTileRows % args.tokens;
    const int tile = begin + i / Layout::kTileRows / args.tokens * step;
    const int column = tiles.row_tile(tile) * Layout::kTileRows + row;
    if (column >= args.n) continue;
    float value = sum(tile, token, row);
    if (args.bias != nullptr) value += args.bias[column];
    if (args.is_gated) value = activated(value, args.activation) * sum(tile + 1, token, row);
    const std::int64_t at = token * args.out_stride + column;
    if (args.out_is_f32) {
      static_cast<float*>(args.out)[at] = value;
    } else {
      static_cast<T*>(args.out)[at] = round_to<T>(value);
    }
  }
}

template <typename T, CodeKind kCode, bool kMinima, int kTokenTiles>
__global__ __launch_bounds__(kThreads,
                             1) void quantized_matvec_kernel(const __grid_constant__ MatvecArgs args) {
  extern __shared__ uint4 shared[];
  __shared__ ByteValues bytes;
  admit_next_kernel();
  const QuantizedLayout& layout = args.matrix.layout;
  const int vectors = layout.tile_bytes / 16;
  const BlockTiles tiles(args);
  const WarpTiles own(args);
  uint4* ring = shared + static_cast<int>(threadIdx.x) / 32 * args.ring_tiles * vectors;
  auto* partial = reinterpret_cast<float*>(shared + kWarps * args.ring_tiles * vectors);
  const int tile_floats = args.tokens * kRowPitch;

  TileCopier<Decoder<T, kCode>::kVectors> copier(args, tiles, own, ring);
  for (int slot = 0; slot < kAhead; ++slot) copier.copy_next(slot);
  if (layout.scale == ScaleKind::kByte || layout.minimum == ScaleKind::kByte) bytes.load(args.matrix);
  for (int slot = kAhead; slot < args.ring_tiles; ++slot) {
    wait_for_copies<kAhead - 1>();
    copier.copy_next(slot);
  }
  __syncthreads();
  wait_for_kernels();

  const Decoder<T, kCode> decoder(args.matrix);
  TileInput<kTokenTiles> x[kInputs];
#pragma unroll
  for (int i = 0; i < kInputs; ++i) x[i].template load<T>(args, own.first_col + i);
  int slot = 0;
  for (int pass = 0; pass < tiles.count; pass += args.pass_tiles) {
    const int end = min(pass + args.pass_tiles, tiles.count);
    for (int tile = pass + own.first_row; tile < end; tile += own.row_step) {
      float sums[kTokenTiles][4] = {};
      for (int col = 0; col < own.num_cols; col += kInputs) {
#pragma unroll
        for (int i = 0; i < kInputs; ++i) {
          if (col + i >= own.num_cols) break;
          wait_for_copies_but(args.ring_tiles - 1);
          __syncwarp();  // the other lanes' copies too
          add_tile<kMinima>(sums, decoder, x[i], layout,
                            reinterpret_cast<const std::uint8_t*>(ring + slot * vectors), bytes);
          __syncwarp();                  // all have read the tile
          if (own.num_cols > kInputs) {  // else x stays
            const int next = col + i + kInputs;
            x[i].template load<T>(args, own.first_col + (next < own.num_cols ? next : i));
          }
          copier.copy_next(slot);
          slot = slot + 1 == args.ring_tiles ? 0 : slot + 1;
        }
      }
      keep_sums(partial + (own.k_warp * args.pass_tiles + tile - pass) * tile_floats, sums, args.tokens);
    }
    __syncthreads();
    write_pass<T>(args, tiles, partial, pass, end);
    if (end < tiles.count) __syncthreads();
  }
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Sets how a block uses its warps and its shared memory; gives the bytes.
int plan_block(const LaunchContext& context, MatvecArgs& args, int block_tiles) {
  const QuantizedLayout& layout = args.matrix.layout;
  const auto pow2 = [](int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); };
  const auto limit = context.shared_bytes - static_cast<int>(sizeof(ByteValues)) - 1024;
  args.k_warps = std::min(kWarps, pow2(args.col_tiles));
  const int most_tiles = layout.is_4_bits() ? 8 : 4;
  const int warp_tiles =
      ceil_div(block_tiles * args.k_warps, kWarps) * ceil_div(args.col_tiles, args.k_warps);
  args.ring_tiles = std::clamp(pow2(warp_tiles), 2, most_tiles);
  // A multiple of the rows that are computed at a time, and of the gate's and up's pair.
  const int least_pass = std::max(kWarps / args.k_warps, args.is_gated ? 2 : 1);
  args.pass_tiles = std::max(args.tokens > 8 ? kMaxPassTiles / 2 : kMaxPassTiles, least_pass);
  const auto bytes = [&] {
    return kWarps * args.ring_tiles * layout.tile_bytes +
           args.k_warps * args.pass_tiles * args.tokens * kRowPitch * int{sizeof(float)};
  };
  while (bytes() > limit && args.pass_tiles > least_pass) args.pass_tiles /= 2;
  while (bytes() > limit && args.ring_tiles > 2) args.ring_tiles /= 2;
  // Blocks of a long product must not share a multiprocessor while another has none: more than half of its
  // memory for each. A short one gains more from lying beside the next kernel's block.
  const bool is_long = args.ring_tiles == most_tiles || args.tokens > 8;
  return is_long ? std::max(bytes(), context.shared_bytes / 2) : bytes();
}

template <typename T, int kTokenTiles>
void launch_matvec(const LaunchContext& context, MatvecArgs args) {
  const int grid = std::min(args.row_tiles, context.num_sms);
  const int bytes = plan_block(context, args, ceil_div(args.row_tiles, grid) * (args.is_gated ? 2 : 1));
  dispatch_codes(args.matrix.layout, [&]<CodeKind kCode, bool kMinima>() {
    const auto kernel = quantized_matvec_kernel<T, kCode, kMinima, kTokenTiles>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "quantized_matvec");
    launch(context, "quantized_matvec", kernel, grid, kThreads, static_cast<std::size_t>(bytes), args);
  });
}

void multiply(const LaunchContext& context, MatvecArgs args, DType dtype) {
  if (args.tokens == 0 || args.n == 0) return;
  args.row_tiles = ceil_div(args.n, Layout::kTileRows);
  args.col_tiles = args.matrix.layout.col_tiles();
  const auto run = [&]<typename T>() {
    args.tokens > 8 ? launch_matvec<T, 2>(context, args) : launch_matvec<T, 1>(context, args);
  };
  dtype == DType::kBF16 ? run.template operator()<__nv_bfloat16>() : run.template operator()<__half>();
}

}  // namespace

bool quantized_products_support(const Tensor& x) { return x.dtype() != DType::kF32 && has_vector_rows(x); }

void quantized_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x,
                      const QuantizedMatrix& matrix, const Tensor& bias) {
  MatvecArgs args(out, x, matrix, bias);
  args.out_is_f32 = out.dtype() == DType::kF32;
  multiply(context, args, x.dtype());
}

void quantized_gated_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x,
                            const QuantizedMatrix& matrix, Activation activation) {
  MatvecArgs args(out, x, matrix, Tensor());
  args.n /= 2;
  args.is_gated = true;
  args.activation = terms_of(activation);
  multiply(context, args, x.dtype());
}

}  // namespace quire::cuda
