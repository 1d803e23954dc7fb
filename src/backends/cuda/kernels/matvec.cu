// out [tokens, n] = x [tokens, k] · weight [n, k]ᵀ + bias for 1 to 16 tokens, and the gated pair silu(gate) ·
// up. Must move n·k elements of the weight once; x and out are small. Both are row-major.
//
// A block of 8 warps owns a range of the weight's rows, 8 rows a group, and splits k among its warps. A warp
// copies its part of the weight to a ring in shared memory that only it uses, in units of 4 KiB: 96 KiB a
// block are under way. The copies begin before the kernel in front has ended (the weight does not depend on
// it), and where the block's part is no longer than the ring, nothing but x is missing when it has. Products
// are by tensor cores with tokens in the place of their 8 or 16 rows: for one token most of their work is
// idle, but it takes fewer instructions than multiply-adds. The warps' sums are added in shared memory, in
// one order.
#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/mma.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kGroupRows = 8;      // of the weight: the columns of one tensor-core product
constexpr int kUnitVectors = 256;  // 16-byte vectors of a unit
constexpr int kRing = 3;           // units of a warp's ring
constexpr int kPrefetchUnits = 5;  // of a warp, brought to the L2 cache behind the ring before x is there

// How a warp walks its rows and columns. A unit is kUnitGroups groups by kUnitColumns columns. The groups of
// one pass share each x that was loaded, of kXUnits units of columns at a time.
template <int kTokenTilesOf>  // 8 tokens each
struct Wide {                 // two or more groups a block
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr int kUnitGroups = 2;
  static constexpr int kUnitColumns = 128;
  static constexpr int kPassGroups = 8 / kTokenTiles;
  static constexpr int kXUnits = XU;
};
template <int kTokenTilesOf>
struct Tall {  // one group a block
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr int kUnitGroups = 1;
  static constexpr int kUnitColumns = 256;
  static constexpr int kPassGroups = 1;
  static constexpr int kXUnits = XU;
};

struct MatvecArgs : LinearArgs {
  using LinearArgs::LinearArgs;
  int warp_columns = 0;  // of k, of each warp
  int ring_units = 0;    // min(kRing, a warp's units)
};

// What a block computes: groups of the weight's rows, the gate's and up's rows in turn where kGated.
template <bool kGated>
struct BlockRows {
  __device__ explicit BlockRows(const LinearArgs& args) {
    const std::int64_t groups = (args.n + kGroupRows - 1) / kGroupRows;
    begin = static_cast<int>(groups * blockIdx.x / gridDim.x) * kGroupRows;
    const int end = static_cast<int>(groups * (blockIdx.x + 1) / gridDim.x) * kGroupRows;
    num_groups = (end - begin) / kGroupRows * (kGated ? 2 : 1);
  }
  // The column of out that row `row` of group `group` belongs to.
  __device__ int column(int group, int row) const {
    return begin + (kGated ? group / 2 : group) * kGroupRows + row;
  }
  // The row of the weight, of n columns of out.
  __device__ std::int64_t weight_row(int group, int row, int n) const {
    return column(group, row) + (kGated && group % 2 == 1 ? n : 0);
  }

  int begin;
  int num_groups;
};

// The units of a warp in the order in which they are read.
template <typename Shape>
struct Cursor {
  int pass = 0;   // first group of the pass
  int unit = 0;   // of columns
  int group = 0;  // of the block

  __device__ void advance(int num_groups, int num_units) {
    group += Shape::kUnitGroups;
    if (group < min(pass + Shape::kPassGroups, num_groups)) return;
    if (++unit == num_units) {
      unit = 0;
      pass += Shape::kPassGroups;
    }
    group = pass;
  }
};

// Where vector `vector` of a unit's row lies: odd rows are turned, so that two rows lie in different banks.
template <typename Shape>
__device__ int place(int row, int vector) {
  return row * (Shape::kUnitColumns / 8) + (vector ^ (row % 2 * 4));
}

// One warp's view of the weight.
template <typename Shape, typename T, bool kGated>
struct WarpReader {
  static constexpr int kRowVectors = Shape::kUnitColumns / 8;
  static constexpr int kRows = Shape::kUnitGroups * kGroupRows;

  const MatvecArgs& args;
  BlockRows<kGated> rows;
  int first_column;
  int end_column;
  uint4* ring;

  // Calls function(row, address, inside) for a lane's part of a unit whose rows are cut in kParts pieces.
  template <int kParts, typename Function>
  __device__ void for_each_part(const Cursor<Shape>& at, const Function& function) const {
    const int lane = threadIdx.x % 32;
    const int part = lane % kParts;
    const int column = first_column + at.unit * Shape::kUnitColumns + part * (Shape::kUnitColumns / kParts);
#pragma unroll
    for (int i = 0; i < kRows * kParts / 32; ++i) {
      const int row = i * (32 / kParts) + lane / kParts;
      const int group = at.group + row / kGroupRows;
      const bool inside =
          group < rows.num_groups && rows.column(group, row % kGroupRows) < args.n && column < end_column;
      const std::int64_t offset = rows.weight_row(group, row % kGroupRows, args.n) * args.k + column;
      function(row, part, static_cast<const T*>(args.weight) + offset, inside);
    }
  }
  __device__ void copy(const Cursor<Shape>& at, int slot) const {
    uint4* to = ring + slot * kUnitVectors;
    for_each_part<kRowVectors>(at, [&](int row, int part, const T* from, bool inside) {
      copy_async_16(to + place<Shape>(row, part), inside ? from : args.weight, inside);
    });
  }
  __device__ void prefetch(const Cursor<Shape>& at) const {
    for_each_part<kRowVectors / 8>(at, [](int, int, const T* from, bool inside) {  // lines of 128 bytes
      if (inside) asm volatile("prefetch.global.L2 [%0];" : : "l"(from));
    });
  }
};

// A lane's part of x: as the rows of a tensor-core product, in the order of k that the weight is read in.
template <typename Shape>
struct Activations {
  static constexpr int kSteps = Shape::kUnitColumns / 32;
  uint4 values[Shape::kXUnits][kSteps][Shape::kTokenTiles];

  template <typename T>
  __device__ void load(const LinearArgs& args, int first_column, int end_column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int unit = 0; unit < Shape::kXUnits; ++unit) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int tile = 0; tile < Shape::kTokenTiles; ++tile) {
          const int token = tile * 8 + lane / 4;
          const int column = first_column + unit * Shape::kUnitColumns + step * 32 + lane % 4 * 8;
          values[unit][step][tile] = make_uint4(0, 0, 0, 0);
          if (token < args.tokens && column < end_column) {
            values[unit][step][tile] = *reinterpret_cast<const uint4*>(static_cast<const T*>(args.x) +
                                                                       token * args.x_stride + column);
          }
        }
      }
    }
  }
};

// sums of a unit's groups += x · its rows. Products that follow each other go to different sums.
template <typename Shape, typename T>
__device__ void multiply_unit(float (*sums)[4],
                              const uint4 (&x)[Shape::kUnitColumns / 32][Shape::kTokenTiles],
                              const uint4* unit) {
  constexpr int kChains = 4 / Shape::kUnitGroups;
  const int lane = threadIdx.x % 32;
  float chains[Shape::kUnitGroups][kChains - 1][4] = {};
#pragma unroll
  for (int step = 0; step < Shape::kUnitColumns / 32; ++step) {
    const uint4 low = x[step][0];
    const uint4 high = Shape::kTokenTiles == 2 ? x[step][Shape::kTokenTiles - 1] : make_uint4(0, 0, 0, 0);
    const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
    const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int group = 0; group < Shape::kUnitGroups; ++group) {
      const uint4 b = unit[place<Shape>(group * kGroupRows + lane / 4, step * 4 + lane % 4)];
      const int chain = step * 2 % kChains;
      multiply_add<T>(chain == 0 ? sums[group] : chains[group][(chain + kChains - 1) % kChains], first, b.x,
                      b.y);
      multiply_add<T>(chains[group][chain], second, b.z, b.w);
    }
  }
#pragma unroll
  for (int group = 0; group < Shape::kUnitGroups; ++group) {
#pragma unroll
    for (int chain = 0; chain < kChains - 1; ++chain) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[group][i] += chains[group][chain][i];
    }
  }
}

// Adds the warps' sums of one pass, [warp][token][row of the pass], and writes them out.
template <typename Shape, typename Out, bool kGated>
__device__ void reduce_pass(const MatvecArgs& args, const BlockRows<kGated>& rows, int pass,
                            const float* partial) {
  constexpr int kPassRows = Shape::kPassGroups * kGroupRows;
  constexpr int kOutRows = kGated ? kPassRows / 2 : kPassRows;
  const auto sum_of = [&](int token, int row) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += partial[(warp * args.tokens + token) * kPassRows + row];
    return sum;
  };
  for (int i = threadIdx.x; i < args.tokens * kOutRows; i += kThreads) {
    const int token = i / kOutRows;
    const int row = i % kOutRows;
    const int group = pass + row / kGroupRows * (kGated ? 2 : 1);
    const int column = rows.column(group, row % kGroupRows);
    if (group >= rows.num_groups || column >= args.n) continue;
    float value;
    if constexpr (kGated) {
      const float gate = sum_of(token, row / kGroupRows * 2 * kGroupRows + row % kGroupRows);
      const float up = sum_of(token, (row / kGroupRows * 2 + 1) * kGroupRows + row % kGroupRows);
      value = gate / (1.0F + __expf(-gate)) * up;
    } else {
      value = sum_of(token, row);
      if (args.bias != nullptr) value += args.bias[column];
    }
    static_cast<Out*>(args.out)[token * args.out_stride + column] = round_to<Out>(value);
  }
}

// Longer than 60 lines: the pipeline's order, copy, wait, read, copy again, is one whole.
template <typename Shape, typename T, typename Out, bool kGated>
__global__ __launch_bounds__(kThreads, MINB) void matvec_kernel(MatvecArgs args) {
  constexpr int kPassRows = Shape::kPassGroups * kGroupRows;
  extern __shared__ uint4 shared[];
  cudaTriggerProgrammaticLaunchCompletion();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first_column = min(warp * args.warp_columns, args.k);
  const WarpReader<Shape, T, kGated> reader{args, BlockRows<kGated>(args), first_column,
                                            min(first_column + args.warp_columns, args.k),
                                            shared + warp * args.ring_units * kUnitVectors};
  auto* partial = reinterpret_cast<float*>(shared + kWarps * args.ring_units * kUnitVectors);
  const int num_groups = reader.rows.num_groups;
  const int num_units = (args.warp_columns + Shape::kUnitColumns - 1) / Shape::kUnitColumns;

  Cursor<Shape> ahead;
  for (int i = 0; i < kRing; ++i) {
    if (ahead.pass < num_groups) {
      reader.copy(ahead, i);
      ahead.advance(num_groups, num_units);
    }
    commit_copies();
  }
  Cursor<Shape> far = ahead;
  for (int i = 0; i < kPrefetchUnits && far.pass < num_groups; ++i) {
    reader.prefetch(far);
    far.advance(num_groups, num_units);
  }
  cudaGridDependencySynchronize();

  int slot = 0;
  for (int pass = 0; pass < num_groups; pass += Shape::kPassGroups) {
    float sums[Shape::kPassGroups][4] = {};
    for (int first_unit = 0; first_unit < num_units; first_unit += Shape::kXUnits) {
      Activations<Shape> x;
      x.template load<T>(args, first_column + first_unit * Shape::kUnitColumns, reader.end_column);
#pragma unroll
      for (int unit = 0; unit < Shape::kXUnits; ++unit) {
        if (first_unit + unit >= num_units) break;
#pragma unroll
        for (int group = 0; group < Shape::kPassGroups; group += Shape::kUnitGroups) {
          if (pass + group >= num_groups) break;
          wait_for_copies<kRing - 1>();
          __syncwarp();  // the other lanes' copies too
          multiply_unit<Shape, T>(sums + group, x.values[unit], reader.ring + slot * kUnitVectors);
          __syncwarp();  // all have read the unit
          if (ahead.pass < num_groups) {
            reader.copy(ahead, slot);
            ahead.advance(num_groups, num_units);
          }
          commit_copies();
          slot = slot + 1 == kRing ? 0 : slot + 1;
        }
      }
    }
#pragma unroll
    for (int group = 0; group < Shape::kPassGroups; ++group) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTokenTiles; ++tile) {
        const int token = tile * 8 + lane / 4;
        if (token >= args.tokens) continue;
        *reinterpret_cast<float2*>(partial + (warp * args.tokens + token) * kPassRows + group * kGroupRows +
                                   lane % 4 * 2) =
            make_float2(sums[group][tile * 2], sums[group][tile * 2 + 1]);
      }
    }
    __syncthreads();
    reduce_pass<Shape, Out>(args, reader.rows, pass, partial);
    if (pass + Shape::kPassGroups < num_groups) __syncthreads();
  }
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <typename Shape, typename T, typename Out, bool kGated>
void launch_matvec(const LaunchContext& context, MatvecArgs args) {
  const int groups = ceil_div(args.n, kGroupRows);
  const int grid = std::min(groups, context.num_sms);
  constexpr int kLine = 64;  // columns of 128 bytes: warps share no line
  args.warp_columns = ceil_div(ceil_div(args.k, kWarps), kLine) * kLine;
  const int block_groups = ceil_div(groups, grid) * (kGated ? 2 : 1);
  const int units =
      ceil_div(block_groups, Shape::kUnitGroups) * ceil_div(args.warp_columns, Shape::kUnitColumns);
  args.ring_units = std::min(kRing, units);
  const std::size_t ring_bytes = std::size_t{kWarps} * args.ring_units * kUnitVectors * sizeof(uint4);
  const std::size_t partial_bytes =
      std::size_t{kWarps} * args.tokens * Shape::kPassGroups * kGroupRows * sizeof(float);
  const std::size_t bytes = ring_bytes + partial_bytes;
  const auto kernel = matvec_kernel<Shape, T, Out, kGated>;
  if (bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "matvec");
  }
  launch(context, "matvec", kernel, grid, kThreads, bytes, args);
}

}  // namespace

void matvec(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
            const Tensor& bias) {
  if (weight.dtype() == DType::kF32 || !has_vector_rows(x) || !has_vector_rows(weight)) {
    fixed_order_matmul(context, out, x, weight, bias);
    return;
  }
  const MatvecArgs args(out, x, weight, bias);
  if (args.tokens == 0 || args.n == 0) return;
  const bool tall = args.n <= context.num_sms * kGroupRows;
  dispatch_linear(weight.dtype(), out.dtype(), [&]<typename T, typename Out>() {
    if (args.tokens <= 8) {
      tall ? launch_matvec<Tall<1>, T, Out, false>(context, args)
           : launch_matvec<Wide<1>, T, Out, false>(context, args);
    } else {
      tall ? launch_matvec<Tall<2>, T, Out, false>(context, args)
           : launch_matvec<Wide<2>, T, Out, false>(context, args);
    }
  });
}

void gated_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight) {
  MatvecArgs args(out, x, weight, Tensor());
  args.n /= 2;
  if (args.tokens == 0 || args.n == 0) return;
  dispatch_linear(weight.dtype(), weight.dtype(), [&]<typename T, typename Out>() {
    args.tokens <= 8 ? launch_matvec<Wide<1>, T, T, true>(context, args)
                     : launch_matvec<Wide<2>, T, T, true>(context, args);
  });
}

}  // namespace quire::cuda
