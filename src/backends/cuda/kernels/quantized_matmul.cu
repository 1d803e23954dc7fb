// Products x · weightᵀ of a quantised weight [n, k] for some dozens to hundreds of tokens: out [tokens, n].
// Must move the weight's tiles once and do 2·tokens·n·k operations; x comes from the L2 cache.
//
// A block of 4 warps computes 128 rows of the weight by kTokenTiles times 8 tokens. Both operands come in
// tiles of 128 columns through a ring in shared memory; the weight's first tiles are fetched before the
// kernel in front has ended. A warp makes operands of the codes of its 32 rows, once for all tokens, and the
// products by mma.sync; sums of a block of columns are multiplied by its scale in float32, as in
// quantized_matvec.cu. On Hopper a cluster of blocks shares a tile, each taking a part of k: they send their
// sums to each other's shared memory, where each adds an equal share of them, always in one order.
//
// On an H200, codes of 4 bits by 128, at 32 / 64 / 128 tokens: 6144 × 4096 in 24 / 41 / 43 us, 24576 × 4096
// in 48 / 78 / 127, 4096 × 12288 in 36 / 61 / 101 (bf16: 16 / 16 / 17, 52 / 53 / 56, 30 / 32 / 34), so that
// neither the reading rate (less than a quarter) nor the tensor cores bound it: a profile has SMs idle for 44
// % of the time, and schedulers that issue in a third of the cycles when they are not.
#include <algorithm>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/quantized_tile.cuh"

namespace quire::cuda {
namespace {

using Layout = QuantizedLayout;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpTiles = 2;  // of 16 rows
constexpr int kBlockTiles = kWarps * kWarpTiles;
constexpr int kXPitch = 288;  // bytes between tokens: those of 4 tokens' 32 bytes lie in different banks
constexpr int kMaxStages = 4;
constexpr int kMaxSplit = 8;
constexpr int kBlocksOfSm = 2;  // that one multiprocessor runs at a time

struct BatchedArgs : LinearArgs {
  BatchedArgs(const Tensor& out_tensor, const Tensor& x_tensor, const QuantizedMatrix& quantized,
              const Tensor& bias_tensor)
      : LinearArgs(out_tensor, x_tensor,
                   Tensor(const_cast<std::uint8_t*>(quantized.tiles), DType::kU8,
                          {quantized.layout.rows, quantized.layout.cols}, DeviceKind::kCuda),
                   bias_tensor),
        matrix(quantized),
        row_tiles(quantized.layout.row_tiles()),
        col_tiles(quantized.layout.col_tiles()),
        out_is_f32(out_tensor.dtype() == DType::kF32) {}

  QuantizedMatrix matrix;
  int row_tiles;
  int col_tiles;
  int stages = 0;  // 2 to 4
  bool out_is_f32;
};

// Copies what a block multiplies, tile of columns by tile of columns. kCodes: vectors of a lane's codes.
template <typename T, int kTokens, int kCodes>
class StageCopier {
 public:
  __device__ StageCopier(const BatchedArgs& args, std::uint8_t* ring)
      : args_(args),
        vectors_(args.matrix.layout.tile_bytes / 16),
        first_row_tile_(static_cast<int>(blockIdx.z) * kBlockTiles),
        first_token_(static_cast<int>(blockIdx.y) * kTokens),
        ring_(ring) {}

  __device__ int weight_bytes() const { return kBlockTiles * vectors_ * 16; }
  __device__ std::uint8_t* stage(int place) const {
    return ring_ + place * (weight_bytes() + kTokens * kXPitch);
  }
  __device__ void copy_weight(int place, int col_tile) const {
    const std::int64_t row_bytes = args_.matrix.layout.tile_bytes * std::int64_t{args_.col_tiles};
    const std::uint8_t* from = args_.matrix.tiles + std::int64_t{col_tile} * args_.matrix.layout.tile_bytes;
    const std::uint32_t to = shared_address(stage(place));
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {  // each warp copies its own
      const int tile = static_cast<int>(threadIdx.x) / 32 * kWarpTiles + t;
      const bool inside = first_row_tile_ + tile < args_.row_tiles;
      const std::uint8_t* row = inside ? from + (first_row_tile_ + tile) * row_bytes : from;
#pragma unroll
      for (int i = 0; i < kCodes + 2; ++i) {  // scales and minima are at most 1,024 bytes
        const int v = i * 32 + lane;
        if (i < kCodes || v < vectors_)
          copy_async_16(to + static_cast<std::uint32_t>(tile * vectors_ + v) * 16, row + v * 16, inside);
      }
    }
  }
  __device__ void copy_x(int place, int col_tile) const {
    constexpr int kRowVectors = Layout::kTileColumns / 8;
    const std::uint32_t to = shared_address(stage(place) + weight_bytes());
    const T* x = static_cast<const T*>(args_.x);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kRowVectors; i += kThreads) {
      const int token = i / kRowVectors;
      const int column = col_tile * Layout::kTileColumns + i % kRowVectors * 8;
      const bool inside = first_token_ + token < args_.tokens && column < args_.k;
      copy_async_16(to + static_cast<std::uint32_t>(token * kXPitch + i % kRowVectors * 16),
                    inside ? x + (first_token_ + token) * args_.x_stride + column : x, inside);
    }
  }

 private:
  const BatchedArgs& args_;
  int vectors_;
  int first_row_tile_;
  int first_token_;
  std::uint8_t* ring_;
};

template <int kTokenTiles>
using WarpSums = float[kWarpTiles][kTokenTiles][4];

// A warp's sums += its tiles of the stage times x, in blocks of kBlockSteps steps.
template <int kBlockSteps, bool kMinima, int kTokenTiles, typename T, CodeKind kCode>
__device__ inline void add_blocks(WarpSums<kTokenTiles>& sums, const Decoder<T, kCode>& decoder,
                                  const QuantizedLayout& layout, const std::uint8_t* weight,
                                  const std::uint8_t* x, const ByteValues& bytes) {
  using Codes = Decoder<T, kCode>;
  constexpr int kBlocks = Codes::kVectorSteps / kBlockSteps;  // of a vector
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint8_t* x_lane = x + lane / 4 * kXPitch + lane % 4 * 8;
  using Scales = BlockScales<Layout::kSteps / kBlockSteps, kMinima>;
  const std::uint8_t* second = weight + layout.tile_bytes;
  const Scales scales[kWarpTiles] = {Scales(layout, weight, lane / 4, bytes.scale, bytes.minimum),
                                     Scales(layout, second, lane / 4, bytes.scale, bytes.minimum)};
#pragma unroll
  for (int v = 0; v < Codes::kVectors; ++v) {
    uint4 vectors[kWarpTiles];
#pragma unroll
    for (int r = 0; r < kWarpTiles; ++r)
      vectors[r] = reinterpret_cast<const uint4*>(weight + r * layout.tile_bytes)[v * 32 + lane];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float open[kWarpTiles][kTokenTiles][4] = {};
      float x_sums[kTokenTiles][4] = {};
#pragma unroll
      for (int s = b * kBlockSteps; s < (b + 1) * kBlockSteps; ++s) {
        std::uint32_t a[kWarpTiles][4];
#pragma unroll
        for (int r = 0; r < kWarpTiles; ++r) decoder.operand(vectors[r], s, a[r]);
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const uint2 columns =
              *reinterpret_cast<const uint2*>(x_lane + t * 8 * kXPitch + (v * Codes::kVectorSteps + s) * 32);
#pragma unroll
          for (int r = 0; r < kWarpTiles; ++r) multiply_add<T>(open[r][t], a[r], columns.x, columns.y);
          if constexpr (kMinima) add_columns<T>(x_sums[t], columns);
        }
      }
      const int block = v * kBlocks + b;
#pragma unroll
      for (int r = 0; r < kWarpTiles; ++r) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          add_scaled(sums[r][t], open[r][t], scales[r].scales[block]);
          if constexpr (kMinima) subtract_minima(sums[r][t], x_sums[t], scales[r].minima[block]);
        }
      }
    }
  }
}

template <bool kMinima, int kTokenTiles, typename T, CodeKind kCode>
__device__ inline void add_stage(WarpSums<kTokenTiles>& sums, const Decoder<T, kCode>& decoder,
                                 const QuantizedLayout& layout, const std::uint8_t* weight,
                                 const std::uint8_t* x, const ByteValues& bytes) {
  if (layout.block_log2 != 0) {
    add_blocks<2, kMinima, kTokenTiles>(sums, decoder, layout, weight, x, bytes);
  } else {
    add_blocks<1, kMinima, kTokenTiles>(sums, decoder, layout, weight, x, bytes);
  }
}

// Writes a lane's sums of one row tile of the weight.
template <typename T>
class SumsWriter {
 public:
  // row: of the tile, the first.
  __device__ SumsWriter(const BatchedArgs& args, int row)
      : args_(args), column_(row + static_cast<int>(threadIdx.x) % 32 / 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = column_ + half * 8;
      if (column >= args.n) continue;
      if (args.matrix.row_scales != nullptr) scales_[half] = args.matrix.row_scales[column];
      if (args.bias != nullptr) biases_[half] = args.bias[column];
    }
  }
  // 8 tokens from `token` on.
  __device__ void write(const float (&sums)[4], int token) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = column_ + i / 2 * 8;
      const int at = token + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      if (column >= args_.n || at >= args_.tokens) continue;
      const float value = fmaf(sums[i], scales_[i / 2], biases_[i / 2]);
      const std::int64_t place = at * args_.out_stride + column;
      if (args_.out_is_f32) {
        static_cast<float*>(args_.out)[place] = value;
      } else {
        static_cast<T*>(args_.out)[place] = round_to<T>(value);
      }
    }
  }

 private:
  const BatchedArgs& args_;
  int column_;
  float scales_[2] = {1.0F, 1.0F};
  float biases_[2] = {};
};

// Adds the sums of the cluster's blocks: those of unit u, one of a warp's tiles by 8 tokens, by the block of
// rank u % split; then writes them.
template <typename T, int kTokenTiles>
__device__ inline void reduce_and_write(const BatchedArgs& args, WarpSums<kTokenTiles>& sums,
                                        float4* exchange) {
  constexpr int kUnits = kWarpTiles * kTokenTiles;
  const int split = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  [[maybe_unused]] const int slots = (kUnits + split - 1) / split;
#if __CUDA_ARCH__ >= 900
  if (split > 1) {
    hopper::sync_cluster();  // all rings are empty
    int owner = 0, slot = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (owner != rank) {
        const int sender = rank > owner ? rank - owner - 1 : rank - owner - 1 + split;
        hopper::store_to_block(exchange + (sender * slots + slot) * kThreads + threadIdx.x,
                               static_cast<unsigned>(owner), sums[u / kTokenTiles][u % kTokenTiles]);
      }
      if (++owner == split) owner = 0, ++slot;
    }
    hopper::sync_cluster();
  }
#endif
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = (static_cast<int>(blockIdx.z) * kBlockTiles + warp * kWarpTiles) * Layout::kTileRows;
  const int token = static_cast<int>(blockIdx.y) * kTokenTiles * 8;
  const SumsWriter<T> writers[kWarpTiles] = {{args, row}, {args, row + Layout::kTileRows}};
  int owner = 0, slot = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (owner == rank) {
      auto& values = sums[u / kTokenTiles][u % kTokenTiles];
      for (int sender = 0; sender < split - 1; ++sender) {
        const float4 part = exchange[(sender * slots + slot) * kThreads + threadIdx.x];
        values[0] += part.x;
        values[1] += part.y;
        values[2] += part.z;
        values[3] += part.w;
      }
      writers[u / kTokenTiles].write(values, token + u % kTokenTiles * 8);
    }
    if (++owner == split) owner = 0, ++slot;
  }
}

template <typename T, CodeKind kCode, bool kMinima, int kTokenTiles>
__global__ __launch_bounds__(kThreads,
                             2) void quantized_matmul_kernel(const __grid_constant__ BatchedArgs args) {
  extern __shared__ __align__(16) std::uint8_t ring[];
  __shared__ ByteValues bytes;
  admit_next_kernel();
  const QuantizedLayout& layout = args.matrix.layout;
  const StageCopier<T, kTokenTiles * 8, Decoder<T, kCode>::kVectors> copier(args, ring);
  const int begin = args.col_tiles * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x);
  const int count = args.col_tiles * (static_cast<int>(blockIdx.x) + 1) / static_cast<int>(gridDim.x) - begin;
  const int ahead = args.stages - 1;
  for (int i = 0; i < min(ahead, count); ++i) copier.copy_weight(i, begin + i);
  if (layout.scale == ScaleKind::kByte || layout.minimum == ScaleKind::kByte) bytes.load(args.matrix);
  wait_for_kernels();
  for (int i = 0; i < ahead; ++i) {
    if (i < count) copier.copy_x(i, begin + i);
    commit_copies();
  }
  const Decoder<T, kCode> decoder(args.matrix);
  WarpSums<kTokenTiles> sums = {};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int place = 0;
  int next = ahead;
  for (int i = 0; i < count; ++i) {
    if (ahead == 3) {
      wait_for_copies<2>();
    } else if (ahead == 2) {
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();  // the stage is complete, and the one before it has been read
    if (i + ahead < count) {
      copier.copy_weight(next, begin + i + ahead);
      copier.copy_x(next, begin + i + ahead);
    }
    commit_copies();
    const std::uint8_t* stage = copier.stage(place);
    add_stage<kMinima, kTokenTiles>(sums, decoder, layout, stage + warp * kWarpTiles * layout.tile_bytes,
                                    stage + copier.weight_bytes(), bytes);
    place = place + 1 == args.stages ? 0 : place + 1;
    next = next + 1 == args.stages ? 0 : next + 1;
  }
  wait_for_copies<0>();
  reduce_and_write<T, kTokenTiles>(args, sums, reinterpret_cast<float4*>(ring));
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <typename T, int kTokenTiles>
void launch_batched(const LaunchContext& context, BatchedArgs args) {
  constexpr int kTokens = kTokenTiles * 8;
  const int token_blocks = ceil_div(args.tokens, kTokens);
  const int row_blocks = ceil_div(args.row_tiles, kBlockTiles);
  // Each split costs an exchange of sums: no more of them than the device runs blocks at a time.
  const int most =
      std::min({kMaxSplit, args.col_tiles / 2, kBlocksOfSm * context.num_sms / (token_blocks * row_blocks)});
  const int split = overlaps_kernels() ? std::max(most, 1) : 1;
  const int stage_bytes = kBlockTiles * args.matrix.layout.tile_bytes + kTokens * kXPitch;
  const int limit = context.shared_bytes / kBlocksOfSm - static_cast<int>(sizeof(ByteValues)) - 1024;
  args.stages = std::clamp(limit / stage_bytes, 2, kMaxStages);
  const int slots = ceil_div(kWarpTiles * kTokenTiles, split);
  const int exchange = (split - 1) * slots * kThreads * static_cast<int>(sizeof(float4));
  // No more of them may lie on one multiprocessor, while another has none.
  const int least = context.shared_bytes / (kBlocksOfSm + 1);
  const int bytes = std::max({args.stages * stage_bytes, exchange, least});
  const dim3 grid(static_cast<unsigned>(split), static_cast<unsigned>(token_blocks),
                  static_cast<unsigned>(row_blocks));
  dispatch_codes(args.matrix.layout, [&]<CodeKind kCode, bool kMinima>() {
    const auto kernel = quantized_matmul_kernel<T, kCode, kMinima, kTokenTiles>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "quantized_matmul");
    launch_clusters(context, "quantized_matmul", kernel, grid, grid.x, kThreads,
                    static_cast<std::size_t>(bytes), args);
  });
}

}  // namespace

void quantized_batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const QuantizedMatrix& matrix, const Tensor& bias) {
  const BatchedArgs args(out, x, matrix, bias);
  if (args.tokens == 0 || args.n == 0) return;
  const auto run = [&]<typename T>() {
    args.tokens <= 32 ? launch_batched<T, 4>(context, args) : launch_batched<T, 8>(context, args);
  };
  x.dtype() == DType::kBF16 ? run.template operator()<__nv_bfloat16>() : run.template operator()<__half>();
}

}  // namespace quire::cuda
