// Products x · weightᵀ for batches that tensor cores need but that do not fill the card: out [tokens, n], or
// activation(gate) * up of a weight whose first half of rows is the gate's, the second up's. All row-major.
// Must move n·k elements of the weight once and do 2·tokens·n·k operations; x comes from the L2 cache.
//
// A block computes a tile of 64 rows of the weight for each of its warpgroups by kTokens tokens: the weight
// is the product's left operand and so the tokens need not be a multiple of 64. One warp copies slices of 64
// columns of both to a ring in shared memory; it fetches the weight's first slices before the kernel in front
// has ended. Where a product has few tiles, a cluster of blocks shares one, each taking a part of k: they
// send their sums to each other's shared memory, where each adds an equal share of them, always in one order.
//
// On an H200, a layer of Qwen3-0.6B (31.5 MB of weights: 7.2 us at 4.4 TB/s) with its products and three
// norms between them, in a graph of 28 layers: 22 us at 32 tokens (cuBLASLt: 33), 28 at 96 (35), 31 at 128
// (35), 34 at 192 (39). Without the norms, 1.3 us each, that is 40 % of the bandwidth at 32 tokens and 27 %
// at 128: most of the rest is kernels waiting for those in front. From 224 tokens on cuBLASLt is as fast; so
// it is for weights of 8B models from 64 tokens on, which fill the card by themselves.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <optional>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/product_tile.cuh"
#include "backends/cuda/kernels/split_product.cuh"
#include "backends/cuda/kernels/tensor_map.h"

namespace quire::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kGroupRows = 64;  // of the weight, of a warpgroup
constexpr int kMaxGroups = 2;
constexpr int kDepth = 64;  // columns of a slice: rows of 128 bytes, as swizzling wants them
constexpr int kRowBytes = kDepth * 2;
constexpr int kMaxStages = 9;
constexpr int kMaxSharedBytes = 112 << 10;  // so that a block of the next product fits beside it
constexpr int kMaxThreads = kMaxGroups * kWarpgroup + 32;

// How a product is cut.
struct Plan {
  int tile_tokens;
  int groups;  // warpgroups of a block
  int split;   // blocks along k
  int stages;
};

struct Maps {
  CUtensorMap weight;
  CUtensorMap x;
};

struct Params {
  ProductOut out;
  int slices;  // of k
  int groups;
  int stages;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Barriers {
  std::uint64_t full[kMaxStages];
  std::uint64_t free[kMaxStages];
};

// A block's place in the product.
template <int kTokens>
struct Tile {
  __device__ explicit Tile(const Params& p)
      : split(static_cast<int>(gridDim.x)),
        rank(static_cast<int>(blockIdx.x)),
        begin(p.slices * rank / split),
        end(p.slices * (rank + 1) / split),
        token(static_cast<int>(blockIdx.y) * kTokens),
        group(static_cast<int>(blockIdx.z) * p.groups) {}

  int split;
  int rank;
  int begin, end;  // slices of k
  int token;       // the first
  int group;       // the first, of 64 rows of the weight
};

template <int kTokens, bool kGated>
struct Producer {
  const Params& p;
  const Maps& maps;
  const Tile<kTokens>& tile;
  std::uint8_t* ring;
  Barriers& barriers;

  __device__ int weight_bytes() const { return p.groups * kGroupRows * kRowBytes; }
  __device__ std::uint8_t* stage(int place) const {
    return ring + place * (weight_bytes() + kTokens * kRowBytes);
  }
  __device__ void copy_weight(int place, int slice) const {
    std::uint64_t* full = &barriers.full[place];
    hopper::arrive_expecting(full, static_cast<unsigned>(weight_bytes() + kTokens * kRowBytes));
    if constexpr (kGated) {  // 8 rows of the gate, the 8 of up that belong to them, and so on
      hopper::copy_box(stage(place), maps.weight, slice * kDepth, 0, 0, tile.group * (kGroupRows / 16), full);
    } else {
      hopper::copy_box(stage(place), maps.weight, slice * kDepth, tile.group * kGroupRows, 0, 0, full);
    }
  }
  __device__ void copy_x(int place, int slice) const {
    hopper::copy_box(stage(place) + weight_bytes(), maps.x, slice * kDepth, tile.token, 0,
                     &barriers.full[place]);
  }

  __device__ void run() const {
    const int count = tile.end - tile.begin;
    const int early = min(count, p.stages);
    for (int i = 0; i < early; ++i) copy_weight(i, tile.begin + i);
    wait_for_kernels();
    for (int i = 0; i < early; ++i) copy_x(i, tile.begin + i);
    RingStage at;
    for (int i = early; i < count; ++i, at.next(p.stages)) {
      hopper::wait(&barriers.free[at.place], at.parity);
      copy_weight(at.place, tile.begin + i);
      copy_x(at.place, tile.begin + i);
    }
  }
};

// One warpgroup: 64 rows of the weight by kTokens tokens.
template <typename T, typename Out, int kTokens, bool kGated>
struct Consumer {
  static constexpr int kBlocks = kTokens / 8;

  const Params& p;
  const Tile<kTokens>& tile;
  std::uint8_t* ring;
  Barriers& barriers;
  int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  float sums[kBlocks][4] = {};

  __device__ void multiply() {
    const int stage_bytes = (p.groups * kGroupRows + kTokens) * kRowBytes;
    const std::uint64_t weight = hopper::by_rows(shared_address(ring) + group * kGroupRows * kRowBytes);
    const std::uint64_t x = hopper::by_rows(shared_address(ring) + p.groups * kGroupRows * kRowBytes);
    RingStage at;
    int before = 0;
    for (int i = tile.begin; i < tile.end; ++i, at.next(p.stages)) {
      hopper::wait(&barriers.full[at.place], at.parity);
      const std::uint64_t a = hopper::advance(weight, at.place * stage_bytes);
      const std::uint64_t b = hopper::advance(x, at.place * stage_bytes);
      hopper::pin(sums);
      hopper::begin_products();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
        hopper::multiply_shared<T>(sums, hopper::advance(a, step * 32), hopper::advance(b, step * 32), true);
      }
      hopper::commit_products();
      hopper::wait_for_products<1>();
      if (i > tile.begin && threadIdx.x % 32 == 0) hopper::arrive(&barriers.free[before]);
      before = at.place;
    }
    hopper::wait_for_products<0>();
    hopper::pin(sums);
  }

  __device__ void write(const float4* exchange) {
    const int warp_row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
    const int row = (tile.group + group) * kGroupRows + warp_row;
    const ProductWriter<Out, kGated> writer(p.out, kGated ? row / 2 : row);
    receive_sums(sums, exchange, tile.split, tile.rank, p.groups * kWarpgroup,
                 [&](int block) { writer.write(sums[block], tile.token + block * 8); });
  }
};

#endif

template <typename T, typename Out, int kTokens, bool kGated>
__global__ __launch_bounds__(kMaxThreads, 1) void batched_matmul_kernel(const __grid_constant__ Maps maps,
                                                                        const Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t ring[];  // swizzling goes by address: 1,024 bytes repeat
  __shared__ Barriers barriers;
  admit_next_kernel();
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; ++s) {
      hopper::init_barrier(&barriers.full[s], 1);
      hopper::init_barrier(&barriers.free[s], static_cast<unsigned>(p.groups) * 4);
    }
    hopper::publish_barriers();
  }
  __syncthreads();
  const Tile<kTokens> tile(p);
  auto* exchange = reinterpret_cast<float4*>(ring);
  if (static_cast<int>(threadIdx.x) >= p.groups * kWarpgroup) {
    if (threadIdx.x % 32 == 0) Producer<kTokens, kGated>{p, maps, tile, ring, barriers}.run();
    __syncwarp();
    if (tile.split > 1) {
      hopper::sync_cluster();
      hopper::sync_cluster();
    }
  } else {
    wait_for_kernels();
    Consumer<T, Out, kTokens, kGated> consumer{p, tile, ring, barriers};
    consumer.multiply();
    if (tile.split > 1) {
      hopper::sync_cluster();  // all rings are empty
      send_sums(consumer.sums, exchange, tile.split, tile.rank, p.groups * kWarpgroup);
      hopper::sync_cluster();
    }
    consumer.write(exchange);
  }
#else
  __trap();
#endif
}

// Of the weight in boxes of a slice, and of x. Where gated a box holds 8 rows of the gate, then the 8 of up
// that belong to them, and so on.
CUtensorMap weight_map(const Tensor& weight, bool gated, int groups) {
  const auto rows = static_cast<cuuint64_t>(weight.dim(0)), k = static_cast<cuuint64_t>(weight.dim(1));
  const auto box_rows = static_cast<cuuint32_t>(groups * kGroupRows);
  if (!gated) {
    return make_tensor_map(weight, {k, rows, 1, 1}, {k * 2, rows * k * 2, rows * k * 2},
                           {kDepth, box_rows, 1, 1});
  }
  return make_tensor_map(weight, {k, 8, 2, rows / 16}, {k * 2, rows / 2 * k * 2, 8 * k * 2},
                         {kDepth, 8, 2, box_rows / 16});
}

CUtensorMap x_map(const Tensor& x, int tile_tokens) {
  const auto tokens = static_cast<cuuint64_t>(x.dim(0)), k = static_cast<cuuint64_t>(x.dim(1));
  const auto stride = static_cast<cuuint64_t>(x.stride(0)) * 2;
  return make_tensor_map(x, {k, tokens, 1}, {stride, tokens * stride},
                         {kDepth, static_cast<cuuint32_t>(tile_tokens), 1});
}

template <typename T, typename Out, int kTokens, bool kGated>
void launch_plan(const LaunchContext& context, const LinearArgs& args, const Maps& maps, const Plan& plan) {
  constexpr auto kernel = batched_matmul_kernel<T, Out, kTokens, kGated>;
  allow_shared_bytes<kernel>(kMaxSharedBytes);
  const int columns = kGated ? args.n / 2 : args.n;
  const Params params{.out = ProductOut(args, columns),
                      .slices = args.k / kDepth,
                      .groups = plan.groups,
                      .stages = plan.stages};
  const int rows = plan.groups * kGroupRows;
  const int received = exchange_bytes(kTokens / 8, plan.split, plan.groups * kWarpgroup);
  const int shared = std::max(plan.stages * (rows + kTokens) * kRowBytes, received);
  const auto ceil_div = [](int a, int b) { return static_cast<unsigned>((a + b - 1) / b); };
  const dim3 grid(static_cast<unsigned>(plan.split), ceil_div(args.tokens, kTokens), ceil_div(args.n, rows));
  launch_clusters(context, "batched_matmul", kernel, grid, grid.x,
                  dim3(static_cast<unsigned>(plan.groups * kWarpgroup + 32)),
                  static_cast<std::size_t>(shared), maps, params);
}

template <typename T, typename Out, bool kGated>
void launch_tokens(const LaunchContext& context, const LinearArgs& args, const Maps& maps, const Plan& plan) {
  switch (plan.tile_tokens) {
    case 32:
      return launch_plan<T, Out, 32, kGated>(context, args, maps, plan);
    case 48:
      return launch_plan<T, Out, 48, kGated>(context, args, maps, plan);
    default:
      return launch_plan<T, Out, 64, kGated>(context, args, maps, plan);
  }
}

// Found by timing the products of a layer in a graph, at 17 to 256 tokens: narrow tiles of tokens and many
// blocks beat wide tiles that are split; a split pays where k is long, and never beyond 4.
Plan make_plan(int tokens, int rows, int k) {
  constexpr int kMaxTileTokens = 64;
  constexpr int kSplitSlices = 16;    // of k: more of them are split
  constexpr int kSplitBlocks = 192;   // at most, by splitting
  constexpr int kSingleBlocks = 264;  // two for each of 132 multiprocessors: more are merged
  const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
  const int token_tiles = ceil_div(tokens, kMaxTileTokens);
  const int blocks = ceil_div(rows, kGroupRows) * token_tiles;
  const int slices = k / kDepth;
  Plan plan{};
  plan.tile_tokens = std::max(ceil_div(ceil_div(tokens, token_tiles), 16) * 16, 32);
  plan.groups = blocks > kSingleBlocks ? kMaxGroups : 1;
  plan.split = slices > kSplitSlices ? std::clamp(kSplitBlocks / blocks, 1, 4) : 1;
  const int stage_bytes = (plan.groups * kGroupRows + plan.tile_tokens) * kRowBytes;
  plan.stages = std::min({kMaxStages, ceil_div(slices, plan.split), kMaxSharedBytes / stage_bytes});
  return plan;
}

void multiply(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
              const Tensor& bias, std::optional<Activation> gate) {
  if (out.numel() == 0) return;
  const bool gated = gate.has_value();
  LinearArgs args(out, x, weight, bias);
  if (gated) args.activation = terms_of(*gate);
  const Plan plan = make_plan(args.tokens, args.n, args.k);
  const Maps maps{weight_map(weight, gated, plan.groups), x_map(x, plan.tile_tokens)};
  dispatch_linear(x.dtype(), out.dtype(), [&]<typename T, typename Out>() {
    if constexpr (sizeof(Out) == 2) {
      if (gated) return launch_tokens<T, Out, true>(context, args, maps, plan);
    }
    launch_tokens<T, Out, false>(context, args, maps, plan);
  });
}

}  // namespace

bool has_batched_matmul(const Tensor& x, const Tensor& weight, bool gated) {
  return is_hopper() && size_of(x.dtype()) == 2 && x.dim(1) % kDepth == 0 && x.stride(0) % 8 == 0 &&
         has_vector_rows(x) && has_vector_rows(weight) && weight.contiguous() &&
         (!gated || weight.dim(0) % 16 == 0);
}

void batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
                    const Tensor& bias) {
  multiply(context, out, x, weight, bias, {});
}

void gated_batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                          const Tensor& weight, Activation activation) {
  multiply(context, out, x, weight, Tensor(), activation);
}

}  // namespace quire::cuda
