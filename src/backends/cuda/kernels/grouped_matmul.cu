// Products of many weights, each with the rows of x that go through it: see grouped_matmul in experts.h. All
// row-major. Must move every weight that has a row once, and do 2 · pairs · n · k operations (twice, gated).
//
// Blocks of threads, one a multiprocessor, go over all tiles: 128 rows of a weight by kTokens rows of x. The
// weight is the product's left operand, so a tile may have few tokens. How the tiles are spread over the
// experts each block works out from the offsets on the device, and the launch is the same for any. One warp
// copies slices of 64 columns to a ring in shared memory, on into the next tile while this one is multiplied
// and written. Rows past an expert's last are another's, or zeros: they are multiplied, and not written.
#include <algorithm>

#include "backends/cuda/kernels/experts.cuh"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/product_tile.cuh"
#include "backends/cuda/kernels/scan.cuh"
#include "backends/cuda/kernels/tensor_map.h"

namespace quire::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreads = kConsumers * kWarpgroup + 32;
constexpr int kTileRows = kConsumers * 64;  // of the weight
constexpr int kDepth = 64;                  // columns of a slice: rows of 128 bytes, as swizzling wants them
constexpr int kRowBytes = kDepth * 2;
constexpr int kMaxRingBytes = 192 << 10;

constexpr int stage_bytes_of(int tokens) { return (kTileRows + tokens) * kRowBytes; }
constexpr int stages_of(int tokens) { return kMaxRingBytes / stage_bytes_of(tokens); }

struct Params {
  void* out;
  std::int64_t out_stride;
  const int* offsets;
  int num_experts;
  int n;          // columns of out
  int row_tiles;  // of an expert
  int slices;     // of k
  ExpertGate gate;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kTokens>
struct Shared : RingBarriers<stages_of(kTokens)> {
  int begins[kMaxExperts + 1];       // of the experts' pairs
  int first_tiles[kMaxExperts + 1];  // tiles of tokens before each expert's
};

struct Tile {
  int expert;
  int row_tile;
  int pair;    // the first
  int tokens;  // of them that are the expert's
};

// Which tiles there are: by expert, then by rows of its weight, so that tiles which run at the same time read
// the same weight.
template <int kTokens>
class Tiles {
 public:
  // By all threads: counts the experts' tiles.
  __device__ Tiles(const Params& p, Shared<kTokens>& shared) : p_(p), shared_(shared) {
    for (int e = static_cast<int>(threadIdx.x); e <= p.num_experts; e += kThreads)
      shared.begins[e] = p.offsets[e];
    __syncthreads();
    if (threadIdx.x < 32) add_up();
    __syncthreads();
  }

  __device__ int count() const { return shared_.first_tiles[p_.num_experts] * p_.row_tiles; }
  __device__ Tile operator[](int index) const {
    int low = 0, high = p_.num_experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (shared_.first_tiles[middle] * p_.row_tiles <= index ? low : high) = middle;
    }
    const int first = shared_.first_tiles[low];
    const int token_tiles = shared_.first_tiles[low + 1] - first;
    const int inside = index - first * p_.row_tiles;
    const int pair = shared_.begins[low] + inside % token_tiles * kTokens;
    return {low, inside / token_tiles, pair, min(kTokens, shared_.begins[low + 1] - pair)};
  }

 private:
  // By one warp.
  __device__ void add_up() const {
    const int lane = static_cast<int>(threadIdx.x);
    int before = 0;
    if (lane == 0) shared_.first_tiles[0] = 0;
    for (int base = 0; base < p_.num_experts; base += 32) {
      const int e = base + lane;
      int sum = 0;
      if (e < p_.num_experts) sum = (shared_.begins[e + 1] - shared_.begins[e] + kTokens - 1) / kTokens;
      sum = inclusive_sum_of_warp(sum);
      if (e < p_.num_experts) shared_.first_tiles[e + 1] = before + sum;
      before += __shfl_sync(~0U, sum, 31);
    }
  }

  const Params& p_;
  Shared<kTokens>& shared_;
};

// Copies the slices of the block's tiles to the ring; by one thread.
template <int kTokens, bool kGated>
__device__ void copy_tiles(const Params& p, const ProductMaps& maps, const Tiles<kTokens>& tiles,
                           std::uint8_t* ring, Shared<kTokens>& shared) {
  RingStage at;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count(); i += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles[i];
    for (int slice = 0; slice < p.slices; ++slice, at.next(stages_of(kTokens))) {
      hopper::wait(&shared.free[at.place], at.parity ^ 1);
      std::uint8_t* to = ring + at.place * stage_bytes_of(kTokens);
      std::uint64_t* full = &shared.full[at.place];
      hopper::arrive_expecting(full, stage_bytes_of(kTokens));
      if constexpr (kGated) {  // 8 rows of the gate, the 8 of up that belong to them, and so on
        const int group = tile.expert * (p.n / 4) + tile.row_tile * (kTileRows / 16);
        hopper::copy_box(to, maps.weight, slice * kDepth, 0, 0, group, full);
      } else {
        hopper::copy_box(to, maps.weight, slice * kDepth, tile.expert * p.n + tile.row_tile * kTileRows, 0, 0,
                         full);
      }
      hopper::copy_box(to + kTileRows * kRowBytes, maps.x, slice * kDepth, tile.pair, 0, full);
    }
  }
}

// One warpgroup: 64 rows of a weight by kTokens tokens.
template <typename T, int kTokens, bool kGated>
struct Consumer {
  const Params& p;
  const Tiles<kTokens>& tiles;
  std::uint8_t* ring;
  Shared<kTokens>& shared;
  int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  int lane = static_cast<int>(threadIdx.x % 32);
  RingStage at{};
  float sums[kTokens / 8][4];

  __device__ void release(int place) const {
    if (lane == 0) hopper::arrive(&shared.free[place]);
  }

  __device__ void multiply() {
    constexpr int kStageBytes = stage_bytes_of(kTokens);
    const std::uint64_t weight = hopper::by_rows(shared_address(ring) + group * 64 * kRowBytes);
    const std::uint64_t x = hopper::by_rows(shared_address(ring) + kTileRows * kRowBytes);
#pragma unroll
    for (auto& block : sums) block[0] = block[1] = block[2] = block[3] = 0;
    int before = -1;
    for (int slice = 0; slice < p.slices; ++slice, at.next(stages_of(kTokens))) {
      hopper::wait(&shared.full[at.place], at.parity);
      const std::uint64_t a = hopper::advance(weight, at.place * kStageBytes);
      const std::uint64_t b = hopper::advance(x, at.place * kStageBytes);
      hopper::multiply_rows<T>(sums, a, b, true);
      hopper::wait_for_products<1>();
      if (before >= 0) release(before);
      before = at.place;
    }
    hopper::wait_for_products<0>();
    hopper::pin(sums);
    release(before);
  }

  // 8 columns of out from `column` on by 8 tokens from `token` on, of which a thread holds two of one column.
  __device__ void write_block(const Tile& tile, float first, float second, int column, int token) const {
    const std::uint32_t pair = transpose(pack(first, second, T()));
    column += lane % 4 * 2;
    token += lane / 4;
    if (column >= p.n || token >= tile.tokens) return;  // n is even
    T* to = static_cast<T*>(p.out) + (tile.pair + token) * p.out_stride + column;
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  }
  __device__ void write(const Tile& tile) const {
    const int row =
        tile.row_tile * kTileRows + group * 64 + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
#pragma unroll
    for (int b = 0; b < kTokens / 8; ++b) {
      if (b * 8 >= tile.tokens) break;
      const float(&s)[4] = sums[b];
      if constexpr (kGated) {
        const int column = min(row / 2 + lane / 4, p.n - 1);
        write_block(tile, gated(p.gate, s[0], s[2], tile.expert, column),
                    gated(p.gate, s[1], s[3], tile.expert, column), row / 2, b * 8);
      } else {
        write_block(tile, s[0], s[1], row, b * 8);
        write_block(tile, s[2], s[3], row + 8, b * 8);
      }
    }
  }

  __device__ void run() {
    for (int i = static_cast<int>(blockIdx.x); i < tiles.count(); i += static_cast<int>(gridDim.x)) {
      multiply();
      write(tiles[i]);
    }
  }
};

#endif

template <typename T, int kTokens, bool kGated>
__global__ __launch_bounds__(kThreads, 1) void grouped_matmul_kernel(const __grid_constant__ ProductMaps maps,
                                                                     const Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t ring[];  // swizzling goes by address: 1,024 bytes repeat
  __shared__ Shared<kTokens> shared;
  admit_next_kernel();
  if (threadIdx.x == 0) shared.init(stages_of(kTokens), kConsumers * 4);
  wait_for_kernels();
  const Tiles<kTokens> tiles(p, shared);
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    if (threadIdx.x % 32 == 0) copy_tiles<kTokens, kGated>(p, maps, tiles, ring, shared);
  } else {
    Consumer<T, kTokens, kGated>{p, tiles, ring, shared}.run();
  }
#else
  __trap();
#endif
}

template <typename T, int kTokens, bool kGated>
void launch_tile(const LaunchContext& context, const ProductMaps& maps, const Params& params, int pairs) {
  constexpr int kBytes = stages_of(kTokens) * stage_bytes_of(kTokens);
  constexpr auto kernel = grouped_matmul_kernel<T, kTokens, kGated>;
  allow_shared_bytes<kernel>(kBytes);
  const int tiles = (pairs / kTokens + std::min(params.num_experts, pairs)) * params.row_tiles;
  launch(context, "grouped_matmul", kernel, std::min(context.num_sms, tiles), kThreads, kBytes, maps, params);
}

}  // namespace

void grouped_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
                    const PairGroups& groups) {
  const auto pairs = static_cast<int>(out.dim(0));
  const std::int64_t n = out.dim(1), num_experts = groups.offsets.dim(0) - 1;
  const bool gated = weight.dim(0) == 2 * num_experts * n;
  const Params params{.out = out.data(),
                      .out_stride = out.stride(0),
                      .offsets = groups.offsets.data_as<const int>(),
                      .num_experts = static_cast<int>(num_experts),
                      .n = static_cast<int>(n),
                      .row_tiles = ceil_div(gated ? 2 * n : n, kTileRows),
                      .slices = ceil_div(x.dim(1), kDepth),
                      .gate = groups.gate};
  const ProductMaps maps{map_weight(weight, kTileRows, gated ? n : 0), map_rows(x, groups.tile_tokens)};
  dispatch_operand(x.dtype(), [&]<typename T>() {
    const auto run = [&]<int kTokens>() {
      gated ? launch_tile<T, kTokens, true>(context, maps, params, pairs)
            : launch_tile<T, kTokens, false>(context, maps, params, pairs);
    };
    require(dispatch<32, 64, 128>(groups.tile_tokens, run), "grouped_matmul: tokens of a tile");
  });
}

}  // namespace quire::cuda
