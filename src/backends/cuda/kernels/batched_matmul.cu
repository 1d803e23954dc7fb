// Products x · weightᵀ for batches that tensor cores need but that do not fill the card, and in a fixed order
// for any: out [tokens, n], or activation(gate) * up of a weight whose first half of rows is the gate's, the
// second up's. All row-major. Must move n·k elements of the weight once and do 2·tokens·n·k operations; x
// comes from the L2 cache.
//
// A block computes a tile of 64 rows of the weight for each of its warpgroups by kTokens tokens: the weight
// is the product's left operand and so the tokens need not be a multiple of 64. One warp copies slices of 64
// columns of both to a ring in shared memory; it fetches the weight's first slices before the kernel in front
// has ended. Where a product has few tiles, a cluster of blocks shares one, each taking a part of k: they
// send their sums to each other's shared memory, where each adds an equal share of them, from the first part
// to the last. In a fixed order the parts follow from the weight alone, so that a token's row has the same
// bits whatever the number of tokens.
//
// Of E4M3, whose products tensor cores sum with some 14 bits (DeepSeek-AI, "DeepSeek-V3 technical report",
// 2024), each slice is summed on its own and added in float32; the sums are scaled as they are written.
//
// On an H200, a layer of Qwen3-0.6B (31.5 MB of weights: 7.2 us at 4.4 TB/s), its products with three norms
// between them in a graph of 28 layers: 22.4 us at 32 tokens (cuBLASLt: 29.7), 27.8 at 64 (30.8), 28.2 at 96
// (32.3), 30.9 at 128 (32.6), 32.5 at 144 (34.2). Without the norms, 1.3 us each, that is 39 % of the
// bandwidth at 32 tokens and 27 % at 128: most of the rest is kernels waiting for those in front. Of 8B 112
// us at 32 tokens (120) and 117 at 64 (123), as its weights fill the card by themselves. Beyond 144 tokens,
// of 8B 64, cuBLASLt is faster.
#include <algorithm>

#include "backends/cuda/kernels/batched_plan.h"
#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/split_product.cuh"
#include "backends/cuda/kernels/tensor_map.h"
#include "backends/cuda/kernels/w8a8.h"

namespace quire::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kGroupRows = BatchedPlan::kGroupRows;
constexpr int kRowBytes = BatchedPlan::kRowBytes;
constexpr int kMaxThreads = BatchedPlan::kMaxGroups * kWarpgroup + 32;

struct Params : ProductOut {
  const float* row_scales;    // of codes: of the weight
  const float* token_scales;  // and of x
  int slices;                 // of k
  int depth;                  // columns of a slice
  int groups;
  int stages;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using Barriers = RingBarriers<BatchedPlan::kMaxStages>;

// A block's place in the product.
template <int kTokens>
struct Tile : KPart {
  __device__ explicit Tile(const Params& p)
      : KPart{static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x)},
        begin(p.slices * rank / split),
        end(p.slices * (rank + 1) / split),
        token(static_cast<int>(blockIdx.y) * kTokens),
        group(static_cast<int>(blockIdx.z) * p.groups) {}

  int begin, end;  // slices of k
  int token;       // the first
  int group;       // the first, of 64 rows of the weight
};

// Copies the slices of the block's tile to the ring; by one thread.
template <int kTokens, bool kGated>
__device__ void copy_tile(const Params& p, const ProductMaps& maps, const Tile<kTokens>& tile,
                          std::uint8_t* ring, Barriers& barriers) {
  const int weight_bytes = p.groups * kGroupRows * kRowBytes;
  const int stage_bytes = weight_bytes + kTokens * kRowBytes;
  const auto copy_weight = [&](int place, int slice) {
    std::uint8_t* to = ring + place * stage_bytes;
    std::uint64_t* full = &barriers.full[place];
    hopper::arrive_expecting(full, static_cast<unsigned>(stage_bytes));
    if constexpr (kGated) {  // 8 rows of the gate, the 8 of up that belong to them, and so on
      hopper::copy_box(to, maps.weight, slice * p.depth, 0, 0, tile.group * (kGroupRows / 16), full);
    } else {
      hopper::copy_box(to, maps.weight, slice * p.depth, tile.group * kGroupRows, 0, 0, full);
    }
  };
  const auto copy_x = [&](int place, int slice) {
    hopper::copy_box(ring + place * stage_bytes + weight_bytes, maps.x, slice * p.depth, tile.token, 0,
                     &barriers.full[place]);
  };
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

// What a thread's sums of codes are times: scales of its rows of the weight and of its tokens.
template <bool kGated>
class CodeScales {
 public:
  // row: as ProductWriter's.
  __device__ CodeScales(const Params& p, int row) : p_(p) {
    for (int half = 0; half < 2; ++half) {
      const int of = row + lane() / 4 + (kGated ? 0 : half * 8);
      if (of < p.n) of_rows_[half] = p.row_scales[of + (kGated ? half * p.n : 0)];
    }
  }

  __device__ void scale(float (&sums)[4], int first_token) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = min(first_token + lane() % 4 * 2 + i % 2, p_.tokens - 1);
      sums[i] *= of_rows_[i / 2] * p_.token_scales[token];
    }
  }

 private:
  const Params& p_;
  float of_rows_[2] = {};
};
struct NoScales {
  __device__ NoScales(const Params&, int) {}
  __device__ void scale(float (&)[4], int) const {}
};

// One warpgroup: 64 rows of the weight by kTokens tokens.
template <typename T, typename Out, int kTokens, bool kGated>
struct Consumer {
  static constexpr int kBlocks = kTokens / 8;
  static constexpr bool kCodes = std::is_same_v<T, __nv_fp8_e4m3>;

  const Params& p;
  const Tile<kTokens>& tile;
  std::uint8_t* ring;
  Barriers& barriers;
  int group = of_warp(static_cast<int>(threadIdx.x) / kWarpgroup);
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
      if constexpr (kCodes) {
        float slice[kBlocks][4];
        hopper::multiply_rows<T>(slice, a, b, false);
        hopper::wait_for_products<0>();
        hopper::pin(slice);
        if (threadIdx.x % 32 == 0) hopper::arrive(&barriers.free[at.place]);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[block][j] += slice[block][j];
        continue;
      }
      hopper::multiply_rows<T>(sums, a, b, true);
      hopper::wait_for_products<1>();
      if (i > tile.begin && threadIdx.x % 32 == 0) hopper::arrive(&barriers.free[before]);
      before = at.place;
    }
    hopper::wait_for_products<0>();
    hopper::pin(sums);
  }

  // As receive_sums, but from the first part of k to the last.
  __device__ void receive_and_write(const float4* exchange) {
    const int slots = ceil_div(kBlocks, tile.split);
    const int warp_row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
    const int row = (tile.group + group) * kGroupRows + warp_row;
    const int first_column = kGated ? row / 2 : row;
    const std::conditional_t<kCodes, CodeScales<kGated>, NoScales> scales(p, first_column);
    const ProductWriter<Out, kGated> writer(p, first_column);
    for_sums<kBlocks>(tile, [&](int b, int owner, int slot) {
      if (owner != tile.rank) return;
      float whole[4] = {};
      // Counted, since a remainder for each part makes the first token of 8B's shape 2 ms later.
      int sender = tile.split - 1 - owner;
      for (int rank = 0; rank < tile.split; ++rank, ++sender) {
        float4 part = make_float4(sums[b][0], sums[b][1], sums[b][2], sums[b][3]);
        if (rank == owner)
          sender = -1;
        else
          part = exchange[place(sender * slots + slot)];
        whole[0] += part.x;
        whole[1] += part.y;
        whole[2] += part.z;
        whole[3] += part.w;
      }
      scales.scale(whole, tile.token + b * 8);
      writer.write(whole, tile.token + b * 8);
    });
  }
  // Of a thread's part of one block of sums.
  __device__ int place(int block) const {
    return block * p.groups * kWarpgroup + static_cast<int>(threadIdx.x);
  }
};

#endif

template <typename T, typename Out, int kTokens, bool kGated>
__global__ __launch_bounds__(kMaxThreads,
                             1) void batched_matmul_kernel(const __grid_constant__ ProductMaps maps,
                                                           const Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t ring[];  // swizzling goes by address: 1,024 bytes repeat
  __shared__ Barriers barriers;
  admit_next_kernel();
  if (threadIdx.x == 0) barriers.init(p.stages, p.groups * 4);
  __syncthreads();
  const Tile<kTokens> tile(p);
  auto* exchange = reinterpret_cast<float4*>(ring);
  if (static_cast<int>(threadIdx.x) >= p.groups * kWarpgroup) {
    if (threadIdx.x % 32 == 0) copy_tile<kTokens, kGated>(p, maps, tile, ring, barriers);
    __syncwarp();
    wait_for_sums(tile);
  } else {
    wait_for_kernels();
    Consumer<T, Out, kTokens, kGated> consumer{p, tile, ring, barriers};
    consumer.multiply();
    send_sums(consumer.sums, exchange, tile, [&](int block) { return consumer.place(block); });
    consumer.receive_and_write(exchange);
  }
#else
  __trap();
#endif
}

template <typename T, typename Out, int kTokens, bool kGated>
void launch_tile(const LaunchContext& context, const Params& params, const ProductMaps& maps, int split) {
  constexpr auto kernel = batched_matmul_kernel<T, Out, kTokens, kGated>;
  allow_shared_bytes<kernel>(BatchedPlan::kMaxSharedBytes);
  const int rows = params.groups * kGroupRows, threads = params.groups * kWarpgroup;
  const int shared =
      std::max(params.stages * (rows + kTokens) * kRowBytes, exchange_bytes(kTokens / 8, split, threads));
  const dim3 grid(split, ceil_div(params.tokens, kTokens), ceil_div(kGated ? 2 * params.n : params.n, rows));
  launch_clusters(context, "batched_matmul", kernel, grid, split, threads + 32, shared, maps, params);
}

template <typename T, typename Out, bool kGated>
void launch_tokens(const LaunchContext& context, const Params& params, const ProductMaps& maps,
                   const BatchedPlan& plan) {
  const auto run = [&]<int kTokens>() {
    launch_tile<T, Out, kTokens, kGated>(context, params, maps, plan.split);
  };
  constexpr int kWidest = sizeof(T) > 1 ? BatchedPlan::kWideTileTokens : BatchedPlan::kCodeTileTokens;
  dispatch<32, 48, BatchedPlan::kTileTokens, kWidest>(plan.tile_tokens, run);
}

// Of codes: what sums of them are times.
struct Scales {
  const float* of_rows = nullptr;
  const float* of_tokens = nullptr;
};

// Of a weight and x of one type.
void multiply(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
              const Tensor& bias, const Scales& scales, SumOrder order, Gate gate) {
  if (out.numel() == 0) return;
  const LinearArgs args(out, x, weight, bias, gate);
  const auto rows = static_cast<int>(weight.dim(0));
  const int depth = kRowBytes / static_cast<int>(size_of(x.dtype()));
  const int slices = (args.k + depth - 1) / depth;
  const bool of_codes = x.dtype() == DType::kU8;
  const BatchedPlan plan = plan_batched_matmul(args.tokens, rows, slices, order, of_codes);
  const ProductMaps maps{map_weight(weight, plan.groups * kGroupRows, gate ? args.n : 0),
                         map_rows(x, plan.tile_tokens)};
  const Params params{ProductOut(args), scales.of_rows, scales.of_tokens, slices, depth,
                      plan.groups,      plan.stages};
  const auto launch_types = [&]<typename T, typename Out>() {
    if constexpr (sizeof(Out) == 2)
      if (gate) return launch_tokens<T, Out, true>(context, params, maps, plan);
    launch_tokens<T, Out, false>(context, params, maps, plan);
  };
  if (!of_codes) return dispatch_linear(x.dtype(), out.dtype(), launch_types);
  dispatch_out(out.dtype(), [&]<typename Out>() { launch_types.template operator()<__nv_fp8_e4m3, Out>(); });
}

}  // namespace

bool has_batched_matmul(const Tensor& x, const Tensor& weight, bool gated) {
  return is_hopper() && size_of(x.dtype()) == 2 && x.dim(1) % (kRowBytes / 2) == 0 && x.stride(0) % 8 == 0 &&
         has_vector_rows(x) && has_vector_rows(weight) && weight.contiguous() &&
         (!gated || weight.dim(0) % 16 == 0);
}

void batched_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, SumOrder order, Gate gate) {
  multiply(context, out, x, weight, bias, {}, order, gate);
}

bool w8a8_has_batched_matmul(const W8a8Matrix& matrix, bool gated) {
  return is_hopper() && matrix.is_float() && matrix.block_cols == matrix.cols &&
         (!gated || matrix.rows % 16 == 0);
}

void w8a8_batched_matmul(const LaunchContext& context, const Tensor& out, const RoundedInput& x,
                         const W8a8Matrix& matrix, const Tensor& bias, Gate gate) {
  multiply(context, out, x.codes, matrix.code_tensor(DType::kU8), bias,
           {matrix.scales, x.scales.data_as<const float>()}, SumOrder::kFree, gate);
}

}  // namespace quire::cuda
