// Products x · weightᵀ of a quantised weight [n, k] for some dozens to hundreds of tokens, on Hopper: out
// [tokens, n]. Must move the weight's tiles once and do 2·tokens·n·k operations; x comes from the L2 cache.
//
// A block computes 64 rows of the weight for each of its 1 to 3 warpgroups by 64 tokens. One more warpgroup
// copies tiles of 128 columns of both to a ring in shared memory: the weight's as they lie, its first ones
// before the kernel in front has ended; x by way of registers, since in a tile the columns of a step lie in
// another order (quantized.h), in which x must lie, too. A warpgroup makes operands of its codes in
// registers, which wgmma takes as its left ones; sums of a block of columns are multiplied by its scale in
// float32, as in quantized_matvec.cu. For minima the copying warps sum up x. Where a product has few tiles, a
// cluster of blocks shares one, each taking a part of k (split_product.cuh).
//
// On an H200 (4,604 GB/s), codes of 4 bits by 128, at 32 / 64 / 128 tokens: 24576 × 4096, whose blocks share
// no k, in 36 / 37 / 69 us (bf16: 51 / 53 / 56), so that neither the reading rate nor the tensor cores bound
// it: a tile of columns takes a block 1 us, of which wgmma is 0.4. With clusters of 4, of which the device
// runs 30 at a time and not 33, 6144 × 4096 took two rounds: 24 / 25 us.
#include <algorithm>
#include <array>
#include <atomic>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/quantized_tile.cuh"
#include "backends/cuda/kernels/split_product.cuh"

namespace quire::cuda {
namespace {

using Layout = QuantizedLayout;

constexpr int kWarpgroup = 128;
constexpr int kGroupTiles = 4;  // of 16 rows, a warp each
constexpr int kMaxGroups = 3;
constexpr int kMaxThreads = (kMaxGroups + 1) * kWarpgroup;
constexpr int kTokens = 64;
constexpr int kTokenBlocks = kTokens / 8;
constexpr int kHalfBytes = kTokens * 128;  // of x: 64 columns, in rows of 128 bytes, swizzled
constexpr int kXBytes = 2 * kHalfBytes;    // of a stage
constexpr int kMaxStages = 8;
constexpr int kMaxSplit = 8;

struct BatchedArgs : LinearArgs {
  BatchedArgs(const Tensor& out_tensor, const Tensor& x_tensor, const QuantizedMatrix& quantized,
              const Tensor& bias_tensor)
      : LinearArgs(out_tensor, x_tensor, quantized.tile_tensor(), bias_tensor),
        matrix(quantized),
        row_tiles(quantized.layout.row_tiles()),
        col_tiles(quantized.layout.col_tiles()),
        out_is_f32(out_tensor.dtype() == DType::kF32) {}

  QuantizedMatrix matrix;
  int row_tiles;
  int col_tiles;
  int groups = 1;  // warpgroups that multiply
  int split = 1;   // blocks along k
  int stages = 1;
  bool out_is_f32;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kCopyingRegisters = 104, kMultiplyingRegisters = 128;

struct Shared {
  ByteValues bytes;
  std::uint64_t full[kMaxStages];
  std::uint64_t free[kMaxStages];
  float x_sums[kMaxStages][Layout::kSteps][kTokens];  // of blocks of columns, where there are minima
};

// A block's place in the product, and what lies where in its ring.
struct Block {
  const BatchedArgs& args;
  std::uint8_t* ring;
  Shared& shared;
  int rank = static_cast<int>(blockIdx.x);
  int token = static_cast<int>(blockIdx.y) * kTokens;                       // the first
  int row_tile = static_cast<int>(blockIdx.z) * args.groups * kGroupTiles;  // the first
  int begin = args.col_tiles * rank / args.split;
  int count = args.col_tiles * (rank + 1) / args.split - begin;  // of tiles of columns

  __device__ std::uint8_t* x(int stage) const { return ring + stage * kXBytes; }
  __device__ std::uint8_t* weight(int stage, int tile) const {
    return ring + args.stages * kXBytes +
           (stage * args.groups * kGroupTiles + tile) * args.matrix.layout.tile_bytes;
  }
};

// What the copying warpgroup does.
template <typename T, bool kMinima>
class Copier {
 public:
  __device__ explicit Copier(const Block& block) : block_(block) {}

  __device__ void run() {
    for (int i = 0; i < min(block_.count, block_.args.stages); ++i) copy_weight(i, i);
    wait_for_kernels();
    Input x[2];  // of the next two stages
    load_x(x[0], 0);
    load_x(x[1], 1);
    for (int i = 0; i < block_.count; i += 2) {
      fill(x[0], i);
      fill(x[1], i + 1);
    }
  }

 private:
  static constexpr int kWarps = kWarpgroup / 32;
  static constexpr int kParts = kTokens * Layout::kSteps / kWarpgroup;  // of a thread: a token's step
  using Input = uint4[kParts][2];

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kWarpgroup; }

  __device__ void fill(Input& x, int i) {
    if (i >= block_.count) return;
    if (i >= block_.args.stages) {
      hopper::wait(&block_.shared.free[at_.place], at_.parity ^ 1);
      copy_weight(at_.place, i);
    }
    store_x(x, at_.place);
    load_x(x, i + 2);
    at_.next(block_.args.stages);
  }
  // A warp copies some of the block's rows of tiles.
  __device__ void copy_weight(int stage, int i) const {
    const BatchedArgs& args = block_.args;
    const int tile_bytes = args.matrix.layout.tile_bytes;
    const int warp = thread() / 32, lane = thread() % 32;
    const int end = min(args.groups * kGroupTiles, args.row_tiles - block_.row_tile);
    std::uint64_t* full = &block_.shared.full[stage];
    const int tiles = max(end - warp + kWarps - 1, 0) / kWarps;
    if (lane == 0) hopper::arrive_expecting(full, static_cast<unsigned>(tiles * tile_bytes));
    __syncwarp();
    if (lane >= tiles) return;
    const int row = warp + lane * kWarps;
    const std::int64_t tile = std::int64_t{block_.row_tile + row} * args.col_tiles + block_.begin + i;
    hopper::copy_bytes(block_.weight(stage, row), args.matrix.tiles + tile * tile_bytes,
                       static_cast<unsigned>(tile_bytes), full);
  }
  // Beyond the last token it is that one once more: no one looks at its sums.
  __device__ void load_x(Input& x, int i) const {
    if (i >= block_.count) return;
    const BatchedArgs& args = block_.args;
    const int column =
        (block_.begin + i) * Layout::kTileColumns + thread() % Layout::kSteps * Layout::kStepColumns;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int token =
          min(block_.token + thread() / Layout::kSteps + p * (kTokens / kParts), args.tokens - 1);
      const T* from = static_cast<const T*>(args.x) + token * args.x_stride + column;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        x[p][half] = column + half * 8 < args.k ? *reinterpret_cast<const uint4*>(from + half * 8)
                                                : make_uint4(0, 0, 0, 0);
    }
  }
  // In the order of the product's columns: of each four the first two, then the others.
  __device__ void store_x(const Input& x, int stage) const {
    const int step = thread() % Layout::kSteps;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int row = thread() / Layout::kSteps + p * (kTokens / kParts);
      std::uint8_t* to = block_.x(stage) + step / 4 * kHalfBytes + row * 128;
      const uint4 low = x[p][0], high = x[p][1];
      const int chunk = step % 4 * 2;
      *reinterpret_cast<uint4*>(to + (chunk ^ row % 8) * 16) = make_uint4(low.x, low.z, high.x, high.z);
      *reinterpret_cast<uint4*>(to + ((chunk + 1) ^ row % 8) * 16) = make_uint4(low.y, low.w, high.y, high.w);
      if constexpr (kMinima) sum_x(x[p], stage, row, step);
    }
    hopper::publish_stores();
    __syncwarp();
    if (thread() % 32 == 0) hopper::arrive(&block_.shared.full[stage]);
  }
  // Lanes that are neighbours have the steps of a token.
  __device__ void sum_x(const uint4 (&x)[2], int stage, int row, int step) const {
    const int block_log2 = block_.args.matrix.layout.block_log2;
    const auto* values = reinterpret_cast<const T*>(x);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Layout::kStepColumns; ++i) sum += static_cast<float>(values[i]);
#pragma unroll
    for (int log2 = 0; log2 < 3; ++log2)
      if (log2 < block_log2) sum += __shfl_xor_sync(~0U, sum, 1 << log2);
    block_.shared.x_sums[stage][step][row] = sum;
  }

  const Block& block_;
  RingStage at_;
};

// One warpgroup that multiplies: 64 rows of the weight by kTokens tokens.
template <typename T, CodeKind kCode, bool kMinima, int kBlockSteps>
struct Consumer {
  const Block& block;
  int warp = static_cast<int>(threadIdx.x) / 32;  // its row of tiles
  float sums[kTokenBlocks][4] = {};

  __device__ void multiply() {
    const Decoder<T, kCode> decoder(block.args.matrix);
    RingStage at;
    for (int i = 0; i < block.count; ++i, at.next(block.args.stages)) {
      hopper::wait(&block.shared.full[at.place], at.parity);
      add_stage(decoder, at.place);
      if (threadIdx.x % 32 == 0) hopper::arrive(&block.shared.free[at.place]);
    }
  }

  __device__ void add_stage(const Decoder<T, kCode>& decoder, int stage) {
    using Codes = Decoder<T, kCode>;
    const Layout& layout = block.args.matrix.layout;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint8_t* tile = block.weight(stage, warp);
    uint4 vectors[Codes::kVectors];
#pragma unroll
    for (int v = 0; v < Codes::kVectors; ++v)
      vectors[v] = reinterpret_cast<const uint4*>(tile)[v * 32 + lane];
    const BlockScales<Layout::kSteps / kBlockSteps, kMinima> scales(
        layout, tile, lane / 4, block.shared.bytes.scale, block.shared.bytes.minimum);
    const std::uint64_t x = hopper::by_rows(shared_address(block.x(stage)));
#pragma unroll
    for (int b = 0; b < Layout::kSteps / kBlockSteps; ++b) {
      std::uint32_t a[kBlockSteps][4];
#pragma unroll
      for (int s = 0; s < kBlockSteps; ++s) {
        const int step = b * kBlockSteps + s;
        decoder.operand(vectors[step / Codes::kVectorSteps], step % Codes::kVectorSteps, a[s]);
      }
      float open[kTokenBlocks][4];
      hopper::pin(open);
      hopper::begin_products();
#pragma unroll
      for (int s = 0; s < kBlockSteps; ++s) {
        const int step = b * kBlockSteps + s;
        hopper::multiply_registers_and_rows<T>(
            open, a[s], hopper::advance(x, step / 4 * kHalfBytes + step % 4 * 32), s > 0);
      }
      hopper::commit_products();
      hopper::wait_for_products<0>();
      hopper::pin(open);
#pragma unroll
      for (int t = 0; t < kTokenBlocks; ++t) {
        add_scaled(sums[t], open[t], scales.scales[b]);
        if constexpr (kMinima) {
          const float* x_sums = &block.shared.x_sums[stage][b * kBlockSteps][t * 8 + lane % 4 * 2];
          subtract_minima(sums[t], *reinterpret_cast<const float2*>(x_sums), scales.minima[b]);
        }
      }
    }
    __syncwarp();
  }

  __device__ KPart part() const { return {block.args.split, block.rank}; }
  __device__ auto place() const {
    return [threads = block.args.groups * kWarpgroup](int i) { return i * threads + threadIdx.x; };
  }
  template <typename Out>
  __device__ void write(const ProductOut& out, const float4* exchange) {
    const ProductWriter<Out, false> writer(out, (block.row_tile + warp) * Layout::kTileRows);
    receive_sums(sums, exchange, part(), place(), [&](int b) { writer.write(sums[b], block.token + b * 8); });
  }
  __device__ void finish(const ProductOut& out, float4* exchange) {
    const int row = (block.row_tile + warp) * Layout::kTileRows + static_cast<int>(threadIdx.x) % 32 / 4;
    if (block.args.matrix.row_scales != nullptr && block.row_tile + warp < block.args.row_tiles) {
      const float2 scale =
          make_float2(block.args.matrix.row_scales[row], block.args.matrix.row_scales[row + 8]);
#pragma unroll
      for (float(&values)[4] : sums) {
        values[0] *= scale.x;
        values[1] *= scale.x;
        values[2] *= scale.y;
        values[3] *= scale.y;
      }
    }
    if (block.args.split > 1) {
      hopper::sync_cluster();  // all rings are empty
      send_sums(sums, exchange, part(), place());
      hopper::sync_cluster();
    }
    block.args.out_is_f32 ? write<float>(out, exchange) : write<T>(out, exchange);
  }
};

#endif

template <typename T, CodeKind kCode, bool kMinima, int kBlockSteps>
__global__ __launch_bounds__(kMaxThreads,
                             1) void quantized_matmul_kernel(const __grid_constant__ BatchedArgs args,
                                                             const __grid_constant__ ProductOut out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t ring[];  // swizzling goes by address: 1,024 bytes repeat
  __shared__ Shared shared;
  admit_next_kernel();
  const Layout& layout = args.matrix.layout;
  if (threadIdx.x == 0) {
    for (int s = 0; s < args.stages; ++s) {
      hopper::init_barrier(&shared.full[s], 8);  // each copying warp's part of the weight, and of x
      hopper::init_barrier(&shared.free[s], static_cast<unsigned>(args.groups) * 4);
    }
    hopper::publish_barriers();
  }
  if (layout.scale == ScaleKind::kByte || layout.minimum == ScaleKind::kByte) shared.bytes.load(args.matrix);
  __syncthreads();
  const Block block{args, ring, shared};
  if (static_cast<int>(threadIdx.x) >= args.groups * kWarpgroup) {
    hopper::give_registers<kCopyingRegisters>();
    Copier<T, kMinima>(block).run();
    if (args.split > 1) {
      hopper::sync_cluster();
      hopper::sync_cluster();
    }
  } else {
    hopper::take_registers<kMultiplyingRegisters>();
    wait_for_kernels();
    Consumer<T, kCode, kMinima, kBlockSteps> consumer{block};
    consumer.multiply();
    consumer.finish(out, reinterpret_cast<float4*>(ring));
  }
#else
  __trap();
#endif
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// How many clusters of so many blocks the current device runs at a time, each block alone on a
// multiprocessor: less than there are multiprocessors for, since a cluster lies in one part of the device.
int clusters_at_a_time(const LaunchContext& context, int split) {
  static std::array<std::atomic<int>, kMaxSplit + 1> counts;  // of the first device asked
  if (counts[static_cast<std::size_t>(split)] == 0) {
    const auto kernel = quantized_matmul_kernel<__nv_bfloat16, CodeKind::kInt4, false, Layout::kSteps>;
    const int bytes = context.shared_bytes / 2 + 1024;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "quantized_matmul");
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(split), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>(split), 1, 1};
    config.blockDim = kMaxThreads;
    config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int count = 0;
    check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "quantized_matmul");
    counts[static_cast<std::size_t>(split)] = std::max(count, 1);
  }
  return counts[static_cast<std::size_t>(split)];
}

// How many warpgroups a block has and how many blocks share k, so that the device is done first. In units of
// 80 ns, as timed on an H200: a tile of columns takes 3 for each warpgroup and 4, a block's begin and end 52.
void choose_cut(const LaunchContext& context, BatchedArgs& args, int token_blocks) {
  int least = 0;
  for (int groups = 1; groups <= kMaxGroups; ++groups) {
    const int blocks = ceil_div(args.row_tiles, groups * kGroupTiles) * token_blocks;
    for (int split = 1; split <= std::min(kMaxSplit, args.col_tiles); ++split) {
      const int time = ceil_div(blocks, clusters_at_a_time(context, split)) *
                       (ceil_div(args.col_tiles, split) * (3 * groups + 4) + 52);
      if (least != 0 && time >= least) continue;
      least = time;
      args.groups = groups;
      args.split = split;
    }
  }
}

template <typename T>
void launch_batched(const LaunchContext& context, BatchedArgs args) {
  const int token_blocks = ceil_div(args.tokens, kTokens);
  choose_cut(context, args, token_blocks);
  const int stage_bytes = kXBytes + args.groups * kGroupTiles * args.matrix.layout.tile_bytes;
  constexpr int kReserved = 24 << 10;  // what the kernel has in shared memory besides
  args.stages = std::min(
      {kMaxStages, (context.shared_bytes - kReserved) / stage_bytes, ceil_div(args.col_tiles, args.split)});
  const int bytes =
      std::max(args.stages * stage_bytes, exchange_bytes(kTokenBlocks, args.split, args.groups * kWarpgroup));
  const dim3 grid(static_cast<unsigned>(args.split), static_cast<unsigned>(token_blocks),
                  static_cast<unsigned>(ceil_div(args.row_tiles, args.groups * kGroupTiles)));
  dispatch_codes(args.matrix.layout, [&]<CodeKind kCode, bool kMinima>() {
    dispatch_block_steps(args.matrix.layout, [&]<int kBlockSteps>() {
      const auto kernel = quantized_matmul_kernel<T, kCode, kMinima, kBlockSteps>;
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "quantized_matmul");
      launch_clusters(context, "quantized_matmul", kernel, grid, grid.x,
                      dim3(static_cast<unsigned>((args.groups + 1) * kWarpgroup)),
                      static_cast<std::size_t>(bytes), args, ProductOut(args, args.n));
    });
  });
}

}  // namespace

void quantized_batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const QuantizedMatrix& matrix, const Tensor& bias) {
  const BatchedArgs args(out, x, matrix, bias);
  if (args.tokens == 0 || args.n == 0) return;
  x.dtype() == DType::kBF16 ? launch_batched<__nv_bfloat16>(context, args)
                            : launch_batched<__half>(context, args);
}

}  // namespace quire::cuda
