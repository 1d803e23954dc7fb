// Products x · weightᵀ of a quantised weight [n, k] for some dozens to hundreds of tokens, on Hopper: out
// [tokens, n]. Must move the weight's tiles once and do 2·tokens·n·k operations; x comes from the L2 cache.
//
// A first kernel packs x as the second has it in shared memory: in tiles of 128 columns by 64 tokens, where
// the columns of a step lie in the order that the codes have (quantized.h), and for minima with sums of x. In
// the second a block computes 64 rows of the weight for each of its 1 to 3 warpgroups by 64 tokens; two more
// warps copy tiles of both to a ring in shared memory, the weight's as they lie, its first ones before the
// kernel in front has ended. A warpgroup makes operands of its codes in registers, which wgmma takes as its
// left ones; sums of a block of columns are multiplied by its scale in float32, as in quantized_matvec.cu.
// Where a product has few tiles, a cluster of blocks shares one, each taking a part of k (split_product.cuh).
//
// On an H200 that reads 4,510 GB/s, codes of 4 bits by 128, at 32 / 64 / 128 tokens: 24576 × 4096, whose
// blocks share no k, in 32 / 34 / 61 us (bf16: 51 / 53 / 56), 6144 × 4096 in 14 / 14 / 22 (16 / 18 / 17). A
// tile of columns takes a block of 1, 2 or 3 warpgroups 0.4, 0.5 or 0.7 us, where wgmma alone takes 0.13 for
// each: a warpgroup's eight products wait for each other, and making its operands takes as long as they do.
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
constexpr int kCopyingWarps = 2;
constexpr int kMaxThreads = kMaxGroups * kWarpgroup + kCopyingWarps * 32;
constexpr int kTokens = 64;
constexpr int kTokenBlocks = kTokens / 8;
constexpr int kHalfBytes = kTokens * 128;  // of x: 64 columns, in rows of 128 bytes, swizzled
constexpr int kXBytes = 2 * kHalfBytes;    // of a tile of columns
constexpr int kSumsBytes = Layout::kSteps * kTokens * int{sizeof(float)};
constexpr int kMaxStages = 8;
constexpr int kMaxCluster = 8;  // blocks

// x as the product's stages take it: for each block of tokens, and each tile of columns in it, kXBytes of
// values, and where there are minima float [step][token], sums of the steps that the product takes with it.
// Of each four columns the first two come first, the others 8 columns on (quantized.h).
struct PackedInput {
  std::uint8_t* data;
  int col_tiles;
  int bytes;  // of a tile of columns

  __host__ __device__ std::uint8_t* tile(int token_block, int col_tile) const {
    return data + (std::int64_t{token_block} * col_tiles + col_tile) * bytes;
  }
};

constexpr int kPackTokens = 16;  // of a block of threads

// Blocks of threads: tiles of columns × kPackTokens. A thread packs a token's step. Beyond the last token,
// and beyond the last column, there are zeros.
template <typename T>
__global__ __launch_bounds__(kPackTokens* Layout::kSteps) void pack_input_kernel(
    const T* x, std::int64_t x_stride, int tokens, int k, int block_steps, PackedInput out) {
  admit_next_kernel();
  wait_for_kernels();
  const int step = static_cast<int>(threadIdx.x) % Layout::kSteps;
  const int token =
      static_cast<int>(blockIdx.y) * kPackTokens + static_cast<int>(threadIdx.x) / Layout::kSteps;
  const int col_tile = static_cast<int>(blockIdx.x);
  const int column = col_tile * Layout::kTileColumns + step * Layout::kStepColumns;
  uint4 halves[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (token < tokens && column + half * 8 < k)
      halves[half] = *reinterpret_cast<const uint4*>(x + token * x_stride + column + half * 8);
  const auto [low, high] = halves;
  const int row = token % kTokens;
  std::uint8_t* tile = out.tile(token / kTokens, col_tile);
  std::uint8_t* to = tile + step / 4 * kHalfBytes + row * 128;
  const int chunk = step % 4 * 2;
  *reinterpret_cast<uint4*>(to + (chunk ^ row % 8) * 16) = make_uint4(low.x, low.z, high.x, high.z);
  *reinterpret_cast<uint4*>(to + ((chunk + 1) ^ row % 8) * 16) = make_uint4(low.y, low.w, high.y, high.w);
  if (out.bytes == kXBytes) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Layout::kStepColumns; ++i)
    sum += static_cast<float>(reinterpret_cast<const T*>(halves)[i]);
  for (int other = 1; other < block_steps; other *= 2) sum += __shfl_xor_sync(~0U, sum, other);
  reinterpret_cast<float*>(tile + kXBytes)[step * kTokens + row] = sum;
}

struct BatchedArgs : LinearArgs {
  int stage_bytes(int warpgroups) const {
    return packed.bytes + warpgroups * kGroupTiles * matrix.layout.tile_bytes;
  }

  QuantizedMatrix matrix;
  int row_tiles;
  int col_tiles;
  PackedInput packed;
  int groups = 1;  // warpgroups that multiply
  int split = 1;   // blocks along k
  int stages = 1;
  bool out_is_f32 = false;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Shared : RingBarriers<kMaxStages> {
  ByteValues bytes;
  std::uint64_t turns[kMaxGroups];  // of the warpgroups that multiply
};

// A block's place in the product, and what lies where in its ring.
struct Block {
  const BatchedArgs& args;
  std::uint8_t* ring;
  Shared& shared;
  int rank = static_cast<int>(blockIdx.x);
  int token_block = static_cast<int>(blockIdx.y);
  int row_tile = static_cast<int>(blockIdx.z) * args.groups * kGroupTiles;  // the first
  int begin = args.col_tiles * rank / args.split;
  int count = args.col_tiles * (rank + 1) / args.split - begin;  // of tiles of columns

  __device__ KPart part() const { return {args.split, rank}; }
  __device__ std::uint8_t* x(int stage) const { return ring + stage * args.packed.bytes; }
  __device__ std::uint8_t* weight(int stage, int tile) const {
    return ring + args.stages * args.packed.bytes +
           (stage * args.groups * kGroupTiles + tile) * args.matrix.layout.tile_bytes;
  }
};

// What a copying warp does: it fills every kCopyingWarps-th stage from `first` on, each lane a row of tiles,
// the first one x. Weights of the first round do not wait for the kernel in front.
__device__ void copy_stages(const Block& block, int first) {
  const BatchedArgs& args = block.args;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tile_bytes = args.matrix.layout.tile_bytes;
  const int tiles = min(args.groups * kGroupTiles, args.row_tiles - block.row_tile);
  const auto copy_weight = [&](int stage, int i) {
    std::uint64_t* full = &block.shared.full[stage];
    if (lane == 0)
      hopper::arrive_expecting(full, static_cast<unsigned>(args.packed.bytes + tiles * tile_bytes));
    __syncwarp();
    if (lane >= tiles) return;
    const std::int64_t tile = std::int64_t{block.row_tile + lane} * args.col_tiles + block.begin + i;
    hopper::copy_bytes(block.weight(stage, lane), args.matrix.tiles + tile * tile_bytes,
                       static_cast<unsigned>(tile_bytes), full);
  };
  for (int i = first; i < min(block.count, args.stages); i += kCopyingWarps) copy_weight(i, i);
  wait_for_kernels();
  for (int i = first; i < block.count; i += kCopyingWarps) {
    const int stage = i % args.stages;
    if (i >= args.stages) {
      hopper::wait(&block.shared.free[stage], static_cast<unsigned>(i / args.stages - 1) % 2);
      copy_weight(stage, i);
    }
    if (lane == 0)
      hopper::copy_bytes(block.x(stage), args.packed.tile(block.token_block, block.begin + i),
                         static_cast<unsigned>(args.packed.bytes), &block.shared.full[stage]);
  }
  __syncwarp();
}

// One warpgroup that multiplies: 64 rows of the weight by kTokens tokens. A block of columns has its products
// started at once; while the tensor cores have them, other warpgroups make operands, for which they take
// turns (left to themselves they would all do the one, then all the other), and this one does where it waits
// for small blocks.
template <typename T, CodeKind kCode, bool kMinima, int kBlockSteps>
struct Consumer {
  using Codes = Decoder<T, kCode>;
  using Operands = std::uint32_t[kBlockSteps][4];
  static constexpr int kBlocks = Layout::kSteps / kBlockSteps;
  static constexpr bool kTakesTurns = kBlocks == 1;
  static constexpr int kBuffers = kTakesTurns ? 1 : 2;

  const Block& block;
  int warp = static_cast<int>(threadIdx.x) / 32;  // its row of tiles
  int lane = static_cast<int>(threadIdx.x) % 32;
  Codes decoder{block.args.matrix};
  uint4 vectors[Codes::kVectors];  // a tile's codes
  Operands operands[kBuffers];
  float sums[kTokenBlocks][4] = {};

  __device__ void multiply() {
    RingStage at;
    for (int i = 0; i < block.count; ++i, at.next(block.args.stages)) {
      hopper::wait(&block.shared.full[at.place], at.parity);
      add_stage(at.place, static_cast<unsigned>(i) % 2);
      __syncwarp();
      if (lane == 0) hopper::arrive(&block.shared.free[at.place]);
    }
  }

  // A warpgroup's turn begins when the one before it ends its own.
  __device__ void begin_turn(unsigned parity) const {
    const int group = warp / kGroupTiles;
    hopper::wait(&block.shared.turns[group], group == 0 ? parity ^ 1 : parity);
  }
  __device__ void end_turn() const {
    const int next = warp / kGroupTiles + 1;
    if (lane == 0) hopper::arrive(&block.shared.turns[next == block.args.groups ? 0 : next]);
  }

  __device__ void decode(int b) {
#pragma unroll
    for (int s = 0; s < kBlockSteps; ++s) {
      const int step = b * kBlockSteps + s;
      decoder.operand(vectors[step / Codes::kVectorSteps], step % Codes::kVectorSteps,
                      operands[b % kBuffers][s]);
    }
  }

  __device__ void add_stage(int stage, unsigned parity) {
    const std::uint8_t* tile = block.weight(stage, warp);
#pragma unroll
    for (int v = 0; v < Codes::kVectors; ++v)
      vectors[v] = reinterpret_cast<const uint4*>(tile)[v * 32 + lane];
    const BlockScales<kBlocks, kMinima> scales(block.args.matrix.layout, tile, lane / 4,
                                               block.shared.bytes.scale, block.shared.bytes.minimum);
    const std::uint64_t lane_rows = hopper::by_rows(shared_address(block.x(stage)));
    const std::uint64_t x_rows =  // in registers of the warp
        lane_rows >> 32 << 32 | __shfl_sync(~0U, static_cast<std::uint32_t>(lane_rows), 0);
    decode(0);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float open[kTokenBlocks][4];
      if constexpr (kTakesTurns) begin_turn(parity);
      hopper::pin(open);
      hopper::begin_products();
#pragma unroll
      for (int s = 0; s < kBlockSteps; ++s) {
        const int step = b * kBlockSteps + s;
        hopper::multiply_registers_and_rows<T>(open, operands[b % kBuffers][s],
                                               hopper::advance(x_rows, step / 4 * kHalfBytes + step % 4 * 32),
                                               s > 0);
      }
      hopper::commit_products();
      if constexpr (kTakesTurns) end_turn();
      if (b + 1 < kBlocks) decode(b + 1);
      hopper::wait_for_products<0>();
      hopper::pin(open);
#pragma unroll
      for (int t = 0; t < kTokenBlocks; ++t) {
        add_scaled(sums[t], open[t], scales.scales[b]);
        if constexpr (kMinima) {
          const auto* x_sums = reinterpret_cast<const float2*>(block.x(stage) + kXBytes);
          subtract_minima(sums[t], x_sums[(b * kBlockSteps * kTokens + t * 8) / 2 + lane % 4],
                          scales.minima[b]);
        }
      }
    }
  }

  __device__ auto place() const {
    return [threads = block.args.groups * kWarpgroup](int i) { return i * threads + threadIdx.x; };
  }
  template <typename Out>
  __device__ void write(const ProductOut& out, const float4* exchange) {
    const ProductWriter<Out, false> writer(out, (block.row_tile + warp) * Layout::kTileRows);
    receive_sums(sums, exchange, block.part(), place(),
                 [&](int b) { writer.write(sums[b], block.token_block * kTokens + b * 8); });
  }
  __device__ void finish(const ProductOut& out, float4* exchange) {
    const int row = (block.row_tile + warp) * Layout::kTileRows + lane / 4;
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
    send_sums(sums, exchange, block.part(), place());
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
    for (std::uint64_t& turn : shared.turns) hopper::init_barrier(&turn, 4);
    shared.init(args.stages, args.groups * 4);
  }
  if (layout.scale == ScaleKind::kByte || layout.minimum == ScaleKind::kByte) shared.bytes.load(args.matrix);
  __syncthreads();
  const Block block{args, ring, shared};
  const int copying_warp = static_cast<int>(threadIdx.x) / 32 - args.groups * 4;
  if (copying_warp >= 0) {
    copy_stages(block, copying_warp);
    wait_for_sums(block.part());
  } else {
    wait_for_kernels();
    Consumer<T, kCode, kMinima, kBlockSteps> consumer{block};
    consumer.multiply();
    consumer.finish(out, reinterpret_cast<float4*>(ring));
  }
#else
  __trap();
#endif
}

// How many clusters of so many blocks the current device runs at a time, each block alone on a
// multiprocessor: less than there are multiprocessors for, since a cluster lies in one part of the device.
int clusters_at_a_time(const LaunchContext& context, int blocks) {
  static std::array<std::atomic<int>, kMaxCluster + 1> counts;  // of the first device asked
  auto& kept = counts[static_cast<std::size_t>(blocks)];
  if (kept == 0) {
    const auto kernel = quantized_matmul_kernel<__nv_bfloat16, CodeKind::kInt4, false, Layout::kSteps>;
    const int bytes = context.shared_bytes / 2 + 1024;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "quantized_matmul");
    kept = max_active_clusters(kernel, blocks, kMaxThreads, bytes);
  }
  return kept;
}

// For how many stages a block of so many warpgroups has memory.
int max_stages(const LaunchContext& context, const BatchedArgs& args, int groups) {
  constexpr int kReserved = 4 << 10;  // what the kernel has in shared memory besides
  return std::min(kMaxStages, (context.shared_bytes - kReserved) / args.stage_bytes(groups));
}

// How many warpgroups a block has and how many blocks share k, so that the device is done first. In units of
// 80 ns, as timed on an H200. Each copying warp needs a stage: one that went round on another's would take
// the phase before the one that it waits for.
void choose_cut(const LaunchContext& context, BatchedArgs& args, int token_blocks) {
  constexpr int kTileTime[kMaxGroups + 1] = {0, 5, 6, 9};  // of a tile of columns, by warpgroups
  int least = 0;
  for (int groups = 1; groups <= kMaxGroups; ++groups) {
    if (groups > 1 && max_stages(context, args, groups) < kCopyingWarps) break;
    const int blocks = ceil_div(args.row_tiles, groups * kGroupTiles) * token_blocks;
    for (int split = 1; split <= std::min(kMaxCluster, args.col_tiles); ++split) {
      const int time = ceil_div(blocks, clusters_at_a_time(context, split)) *
                       (ceil_div(args.col_tiles, split) * kTileTime[groups] + 52 + 6 * split);
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
  args.stages = std::min(max_stages(context, args, args.groups), ceil_div(args.col_tiles, args.split));
  const int bytes = std::max(args.stages * args.stage_bytes(args.groups),
                             exchange_bytes(kTokenBlocks, args.split, args.groups * kWarpgroup));
  const dim3 grid(args.split, token_blocks, ceil_div(args.row_tiles, args.groups * kGroupTiles));
  dispatch_codes(args.matrix.layout, [&]<CodeKind kCode, bool kMinima>() {
    dispatch_block_steps(args.matrix.layout, [&]<int kBlockSteps>() {
      launch(context, "quantized_matmul", pack_input_kernel<T>,
             dim3(args.col_tiles, token_blocks * kTokens / kPackTokens), kPackTokens * Layout::kSteps, 0,
             static_cast<const T*>(args.x), args.x_stride, args.tokens, args.k, kBlockSteps, args.packed);
      const auto kernel = quantized_matmul_kernel<T, kCode, kMinima, kBlockSteps>;
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "quantized_matmul");
      launch_clusters(context, "quantized_matmul", kernel, grid, args.split,
                      args.groups * kWarpgroup + kCopyingWarps * 32, bytes, args, ProductOut(args));
    });
  });
}

}  // namespace

std::size_t quantized_batched_workspace_bytes(std::int64_t tokens, const QuantizedLayout& layout) {
  return static_cast<std::size_t>((tokens + kTokens - 1) / kTokens * layout.col_tiles()) *
         (kXBytes + kSumsBytes);
}

void quantized_batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const QuantizedMatrix& matrix, const Tensor& bias, const Tensor& workspace) {
  const Layout& layout = matrix.layout;
  const int sums_bytes = layout.minimum == ScaleKind::kNone ? 0 : kSumsBytes;
  BatchedArgs args{{out, x, matrix.tile_tensor(), bias},
                   matrix,
                   layout.row_tiles(),
                   layout.col_tiles(),
                   {workspace.data_as<std::uint8_t>(), layout.col_tiles(), kXBytes + sums_bytes}};
  args.out_is_f32 = out.dtype() == DType::kF32;
  if (args.tokens == 0 || args.n == 0) return;
  dispatch_operand(x.dtype(), [&]<typename T>() { launch_batched<T>(context, args); });
}

}  // namespace quire::cuda
