// out [tokens, n] = x [tokens, k] · weight [n, k]ᵀ + bias for 1 to 16 tokens, and the gated pair
// activation(gate) · up. Must move n·k elements of the weight once; x and out are small. Both are row-major.
//
// A block of 8 warps owns a range of the weight's rows, 8 rows a group, and splits k among its warps. A warp
// copies its part of the weight to a ring in shared memory that only it uses, 16 KiB a warp, or 8. The copies
// begin before the kernel in front has ended (the weight does not depend on it), and where the block's part
// is no longer than its rings, nothing but x is missing when it has. Products are by tensor cores with the
// tokens as their 8 or 16 rows: for one token most of their work is idle, but it takes fewer instructions
// than multiply-adds would. The warps' sums are added in shared memory, in one order.
//
// Blocks of a long product ask for more than half of a multiprocessor's memory, so that none holds two of
// them while another has none: what ran before decides where blocks land, and half of the card stood idle.
//
// On an H200 that reads 4,661 GB/s, bf16, products in a graph one after the other, each with a weight of its
// own (bench/cuda/linear_bench.cpp), at 1 / 8 tokens: 24576 × 4096 at 92 / 88 % of that, 151936 × 1024 at 93
// / 88 %, 4096 × 12288 at 88 / 85 %, 6144 × 1024 at 85 / 78 % (3.19 µs), 4096 × 1024 at 75 / 66 % (2.41 µs),
// 1024 × 3072 at 52 / 43 % (2.57 µs), 1024 × 2048 at 38 / 32 % (2.34 µs). What the small ones lose is the way
// from one kernel to the next, 0.5 µs, and then x's, 0.4 to 0.6 µs.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/linear.h"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/mma.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kGroupRows = 8;  // of the weight: the columns of one tensor-core product
constexpr int kUnitColumns = 128;
constexpr int kRowVectors = kUnitColumns / 8;  // 16-byte vectors of a unit's row
constexpr int kSteps = kUnitColumns / 32;      // of two products each
constexpr unsigned kPassRows = 64;             // at most, whose sums are in shared memory at a time

// A unit of a warp's work is kGroups groups by kUnitColumns columns of the weight; tokens come in tiles of 8.
// kRingGroups: groups by kUnitColumns columns that a warp's ring holds.
template <int kTokenTilesOf, int kGroupsOf, int kRingGroups>
struct Unit {
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr int kGroups = kGroupsOf;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kVectors = kRows * kRowVectors;
  static constexpr int kRing = kRingGroups / kGroups;  // units
  // Units under way at a time while the kernel in front runs. More would keep it waiting for its x.
  static constexpr int kAhead = 2 / kGroups;
  static constexpr int kXUnits = kGroups == 1 ? 4 : 2;  // units along k whose x is held in registers
};

struct MatvecArgs : LinearArgs {
  using LinearArgs::LinearArgs;
  int warp_columns = 0;    // of k, of each warp
  int ring_units = 0;      // what a warp uses of its ring
  int pass_rows_log2 = 0;  // rows whose sums are in shared memory at a time
};

// What a block computes: groups of the weight's rows, the gate's and up's rows in turn where kGated.
template <bool kGated>
struct BlockRows {
  __device__ explicit BlockRows(const LinearArgs& args) {
    const std::int64_t groups = (args.n + kGroupRows - 1) / kGroupRows;
    begin = static_cast<int>(groups * blockIdx.x / gridDim.x) * kGroupRows;
    const int end = static_cast<int>(groups * (blockIdx.x + 1) / gridDim.x) * kGroupRows;
    num_groups = (end - begin) / kGroupRows * (kGated ? 2 : 1);
    end_column = min(end, args.n);
  }
  // The column of out that row `row` of group `group` belongs to.
  __device__ int column(int group, int row) const {
    return begin + (kGated ? group / 2 : group) * kGroupRows + row;
  }

  int begin;
  int end_column;
  int num_groups;
};

// Where a vector of a unit's row lies: odd rows are turned, so that two rows lie in different banks.
__device__ inline int place(int row, int vector) { return row * kRowVectors + (vector ^ (row % 2 * 4)); }

// Copies a warp's units to its ring, in the order in which they are multiplied: along k, then down the rows.
template <typename Unit, typename T, bool kGated>
class WeightCopier {
 public:
  __device__ WeightCopier(const MatvecArgs& args, const BlockRows<kGated>& rows, int first_column,
                          int end_column, uint4* ring)
      : args_(args),
        rows_(rows),
        column_(first_column + lane_vector() * 8),
        end_column_(end_column),
        ring_(ring) {}

  // The next unit, if there is one, to this place of the ring.
  __device__ void copy_next(int slot) {
    if (group_ < rows_.num_groups) {
      copy(ring_ + slot * Unit::kVectors);
      step_ += kUnitColumns;
      if (step_ >= args_.warp_columns) {
        step_ = 0;
        group_ += Unit::kGroups;
      }
    }
    commit_copies();
  }

 private:
  // Half a warp copies a row of the unit.
  __device__ static int lane_vector() { return threadIdx.x % kRowVectors; }
  __device__ static int lane_row() { return threadIdx.x % 32 / kRowVectors; }

  __device__ void copy(uint4* unit) const {
    uint4* to = unit + place(lane_row(), lane_vector());
    const int column = column_ + step_;
#pragma unroll
    for (int g = 0; g < Unit::kGroups; ++g) {
      const int group = group_ + g;
      const int row = rows_.column(group, lane_row());  // of out; of the weight in the gate's half
      const bool is_up = kGated && group % 2 == 1;
      const T* from =
          static_cast<const T*>(args_.weight) + std::int64_t{row + (is_up ? args_.n : 0)} * args_.k + column;
      const int rows_left = group < rows_.num_groups && column < end_column_ ? args_.n - row : 0;
#pragma unroll
      for (int i = 0; i < kGroupRows; i += 2, from += 2 * std::int64_t{args_.k})
        copy_async_16(to + (g * kGroupRows + i) * kRowVectors, from, i < rows_left);
    }
  }

  const MatvecArgs& args_;
  const BlockRows<kGated>& rows_;
  int column_;  // of this lane
  int end_column_;
  uint4* ring_;
  int group_ = 0;
  int step_ = 0;  // columns along k
};

// A lane's part of kUnitColumns of x as the left factor of the products, in the order of k in which the
// weight is read: of 8 values in a row of x, the first four meet a lane's first two registers of the weight,
// the others the last two. One tile of tokens stands in both halves of the factor, with the first four values
// as its rows 0 to 7 and the others as its rows 8 to 15.
template <typename Unit>
struct Activations {
  uint4 values[kSteps][Unit::kTokenTiles];

  // row: the lane's first token at the lane's first column; columns: how many there are.
  template <typename T>
  __device__ void load(const LinearArgs& args, const T* row, int columns) {
    const int token = threadIdx.x % 32 / 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 low = load_vector(row + step * 32, token < args.tokens && step * 32 < columns);
      if constexpr (Unit::kTokenTiles == 1) {
        values[step][0] = make_uint4(low.x, low.z, low.y, low.w);
      } else {
        const uint4 high =
            load_vector(row + 8 * args.x_stride + step * 32, token + 8 < args.tokens && step * 32 < columns);
        values[step][0] = make_uint4(low.x, high.x, low.y, high.y);
        values[step][1] = make_uint4(low.z, high.z, low.w, high.w);
      }
    }
  }

 private:
  template <typename T>
  __device__ static uint4 load_vector(const T* from, bool inside) {
    return inside ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  }
};

// Where a lane's vectors of the warp's ring lie: those of a unit's even steps, and of its odd ones.
template <typename Unit>
struct RingView {
  const uint4* even;
  const uint4* odd;

  __device__ explicit RingView(const uint4* ring)
      : even(ring + place(threadIdx.x % 32 / 4, threadIdx.x % 4)),
        odd(ring + place(threadIdx.x % 32 / 4, threadIdx.x % 4 + 4)) {}
  __device__ uint4 vector(int slot, int step, int group) const {
    const int offset = slot * Unit::kVectors + step / 2 * 8 + group * kGroupRows * kRowVectors;
    return (step % 2 == 0 ? even : odd)[offset];
  }
};

// A warp's sums of a unit's rows, as tensor cores hold them: two products of 16 tokens by 8 rows a group. Of
// one tile of tokens only the half counts where x met its part of the weight.
template <typename Unit>
struct Sums {
  float values[Unit::kGroups][2][4] = {};

  // += x · the unit's rows.
  template <typename T>
  __device__ void add(const Activations<Unit>& x, const RingView<Unit>& ring, int slot) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4& low = x.values[step][0];
      const uint4& high = x.values[step][Unit::kTokenTiles - 1];
      const std::uint32_t first[4] = {low.x, low.y, low.z, low.w};
      const std::uint32_t second[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int group = 0; group < Unit::kGroups; ++group) {
        const uint4 b = ring.vector(slot, step, group);
        multiply_add<T>(values[group][0], first, b.x, b.y);
        multiply_add<T>(values[group][1], second, b.z, b.w);
      }
    }
  }
  // Writes them to [token][row of the pass], where `to` is the lane's first place.
  __device__ void keep(float* to, int tokens, int pass_rows_log2) const {
#pragma unroll
    for (int tile = 0; tile < Unit::kTokenTiles; ++tile) {
      if (tile * 8 + static_cast<int>(threadIdx.x) % 32 / 4 >= tokens) continue;
#pragma unroll
      for (int group = 0; group < Unit::kGroups; ++group) {
        const auto& a = values[group][0];
        const auto& b = values[group][1];
        const float2 pair = Unit::kTokenTiles == 1
                                ? make_float2(a[0] + b[2], a[1] + b[3])
                                : make_float2(a[tile * 2] + b[tile * 2], a[tile * 2 + 1] + b[tile * 2 + 1]);
        *reinterpret_cast<float2*>(to + (tile * 8 << pass_rows_log2) + group * kGroupRows) = pair;
      }
    }
  }
};

// A thread's part of what follows each pass: it adds the warps' sums [warp][token][row of the pass] and
// writes one column of out, of some tokens.
template <typename Out, bool kGated>
class PassWriter {
 public:
  __device__ PassWriter(const MatvecArgs& args, const BlockRows<kGated>& rows, const float* partial)
      : args_(args), rows_log2_(args.pass_rows_log2 - (kGated ? 1 : 0)), end_column_(rows.end_column) {
    const int row = threadIdx.x % (1 << rows_log2_);
    const int sum_row = kGated ? row / kGroupRows * 2 * kGroupRows + row % kGroupRows : row;
    token_ = threadIdx.x >> rows_log2_;
    column_ = rows.begin + row;
    from_ = partial + (token_ << args.pass_rows_log2) + sum_row;
    to_ = static_cast<Out*>(args.out) + token_ * args.out_stride + column_;
    load_bias();
  }
  __device__ void write_pass() {
    if (column_ < end_column_) {
      const int token_step = kThreads >> rows_log2_;
      const float* from = from_;
      Out* to = to_;
#pragma unroll 1
      for (int token = token_; token < args_.tokens; token += token_step) {
        float value = sum(from) + bias_;
        if constexpr (kGated) value = activated(value, args_.activation) * sum(from + kGroupRows);
        *to = static_cast<Out>(value);
        from += token_step << args_.pass_rows_log2;
        to += token_step * args_.out_stride;
      }
    }
    column_ += 1 << rows_log2_;
    to_ += 1 << rows_log2_;
    load_bias();
  }

 private:
  __device__ void load_bias() {
    bias_ = args_.bias != nullptr && column_ < end_column_ ? args_.bias[column_] : 0.0F;
  }
  __device__ float sum(const float* from) const {
    const int stride = args_.tokens << args_.pass_rows_log2;
    float sums[2] = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sums[warp % 2] += from[warp * stride];
    return sums[0] + sums[1];
  }

  const MatvecArgs& args_;
  int rows_log2_;
  int end_column_;
  int token_;
  int column_;
  const float* from_;
  Out* to_;
  float bias_;
};

// Longer than 60 lines: the order of copying, waiting and multiplying is one whole.
template <typename Unit, typename T, typename Out, bool kGated>
__global__ __launch_bounds__(kThreads, 2) void matvec_kernel(MatvecArgs args) {
  extern __shared__ uint4 shared[];
  admit_next_kernel();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first_column = min(warp * args.warp_columns, args.k);
  const int end_column = min(first_column + args.warp_columns, args.k);
  const BlockRows<kGated> rows(args);
  uint4* ring = shared + warp * args.ring_units * Unit::kVectors;
  auto* partial = reinterpret_cast<float*>(shared + kWarps * args.ring_units * Unit::kVectors);

  WeightCopier<Unit, T, kGated> copier(args, rows, first_column, end_column, ring);
  for (int slot = 0; slot < Unit::kAhead; ++slot) copier.copy_next(slot);
  const T* x_row = static_cast<const T*>(args.x) + lane / 4 * args.x_stride + first_column + lane % 4 * 8;
  const int x_columns = end_column - first_column - lane % 4 * 8;
  const RingView<Unit> view(ring);
  float* kept = partial + ((warp * args.tokens + lane / 4) << args.pass_rows_log2) + lane % 4 * 2;
  PassWriter<Out, kGated> writer(args, rows, partial);
  for (int slot = Unit::kAhead; slot < Unit::kRing; ++slot) {
    wait_for_copies<Unit::kAhead - 1>();
    copier.copy_next(slot);
  }
  wait_for_kernels();

  Activations<Unit> x[Unit::kXUnits];
#pragma unroll
  for (int i = 0; i < Unit::kXUnits; ++i)
    x[i].load(args, x_row + i * kUnitColumns, x_columns - i * kUnitColumns);
  constexpr int kXColumns = Unit::kXUnits * kUnitColumns;
  int slot = 0;
  const int pass_groups = (1 << args.pass_rows_log2) / kGroupRows;
  for (int pass = 0; pass < rows.num_groups; pass += pass_groups) {
    const int end = min(pass + pass_groups, rows.num_groups);
    float* keep_to = kept;
    for (int group = pass; group < end; group += Unit::kGroups, keep_to += Unit::kRows) {
      Sums<Unit> sums;
      for (int block = 0; block < args.warp_columns; block += kXColumns) {
#pragma unroll
        for (int i = 0; i < Unit::kXUnits; ++i) {
          const int column = block + i * kUnitColumns;
          if (column >= args.warp_columns) break;
          wait_for_copies<Unit::kRing - 1>();
          __syncwarp();  // the other lanes' copies too
          sums.template add<T>(x[i], view, slot);
          __syncwarp();                         // all have read the unit
          if (args.warp_columns > kXColumns) {  // else x stays
            const int next = column + kXColumns < args.warp_columns ? column + kXColumns : i * kUnitColumns;
            x[i].load(args, x_row + next, x_columns - next);
          }
          copier.copy_next(slot);
          slot = slot + 1 == Unit::kRing ? 0 : slot + 1;
        }
      }
      sums.keep(keep_to, args.tokens, args.pass_rows_log2);
    }
    __syncthreads();
    writer.write_pass();
    if (end < rows.num_groups) __syncthreads();
  }
}

// Where a block can have the memory for it, the ring is large.
constexpr int kLargeRing = 8;
constexpr int kSmallRing = 4;
constexpr int ring_bytes_of(int groups) { return kWarps * groups * kGroupRows * kUnitColumns * 2; }
constexpr int kLeastPassRows = 2 * kGroupRows;

// Bytes of the warps' sums of a pass.
int partial_bytes(int tokens, int rows) { return kWarps * tokens * rows * int{sizeof(float)}; }

bool fits(const LaunchContext& context, int tokens, int ring_groups) {
  return ring_bytes_of(ring_groups) + partial_bytes(tokens, kLeastPassRows) <= context.shared_bytes;
}

template <typename Unit, typename T, typename Out, bool kGated>
void launch_matvec(const LaunchContext& context, MatvecArgs args) {
  const int groups = ceil_div(args.n, kGroupRows);
  const int grid = std::min(groups, context.num_sms);
  constexpr int kLine = 64;  // columns of 128 bytes: warps share no line
  args.warp_columns = ceil_div(ceil_div(args.k, kWarps), kLine) * kLine;
  const int units = ceil_div(ceil_div(groups, grid) * (kGated ? 2 : 1), Unit::kGroups);  // along the rows
  args.ring_units = std::min(Unit::kRing, units * ceil_div(args.warp_columns, kUnitColumns));
  const int ring_bytes = kWarps * args.ring_units * Unit::kVectors * int{sizeof(uint4)};
  const unsigned rows_that_fit = (context.shared_bytes - ring_bytes) / partial_bytes(args.tokens, 1);
  const unsigned pass_rows = std::min(
      {kPassRows, std::bit_floor(rows_that_fit), std::bit_ceil(static_cast<unsigned>(units * Unit::kRows))});
  args.pass_rows_log2 = std::countr_zero(pass_rows);
  int bytes = ring_bytes + partial_bytes(args.tokens, static_cast<int>(pass_rows));
  // Blocks of a long product must not share a multiprocessor while another has none: more than half of its
  // memory for each. A short one gains more from lying beside the next kernel's block.
  const bool is_long = args.ring_units == Unit::kRing || args.tokens > 8;
  if (is_long) bytes = std::max(bytes, context.shared_bytes / 2 + 1024);
  const auto kernel = matvec_kernel<Unit, T, Out, kGated>;
  if (bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "matvec");
  launch(context, "matvec", kernel, grid, kThreads, bytes, args);
}

template <int kTokenTiles, int kGroups, bool kGated, typename T, typename Out>
void launch_ring(const LaunchContext& context, const MatvecArgs& args) {
  if (fits(context, args.tokens, kLargeRing))
    return launch_matvec<Unit<kTokenTiles, kGroups, kLargeRing>, T, Out, kGated>(context, args);
  launch_matvec<Unit<kTokenTiles, kGroups, kSmallRing>, T, Out, kGated>(context, args);
}

}  // namespace

bool matvec_supports(const LaunchContext& context, const Tensor& x, const Tensor& weight) {
  const auto tokens = static_cast<int>(x.dim(0));
  return weight.dtype() != DType::kF32 && tokens <= kMaxMatvecTokens && has_vector_rows(x) &&
         has_vector_rows(weight) && fits(context, tokens, kSmallRing);
}

void matvec(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
            const Tensor& bias, Gate gate) {
  const MatvecArgs args(out, x, weight, bias, gate);
  if (args.tokens == 0 || args.n == 0) return;
  const bool one_group = args.n <= context.num_sms * kGroupRows;  // a block
  dispatch_linear(weight.dtype(), out.dtype(), [&]<typename T, typename Out>() {
    if constexpr (sizeof(Out) == 2) {
      if (gate) {
        return args.tokens > 8 ? launch_ring<2, 2, true, T, Out>(context, args)
                               : launch_ring<1, 2, true, T, Out>(context, args);
      }
    }
    if (args.tokens > 8) {
      launch_ring<2, 2, false, T, Out>(context, args);
    } else if (one_group) {
      launch_ring<1, 1, false, T, Out>(context, args);
    } else {
      launch_ring<1, 2, false, T, Out>(context, args);
    }
  });
}

}  // namespace quire::cuda
