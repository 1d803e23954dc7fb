// out [tokens, n] = x [tokens, k] · weight [n, k]ᵀ + bias for 1 to 8 tokens and a weight of codes of 8 bits
// (W8a8Matrix), and the gated pair activation(gate) · up. Must move the weight once; x and out are small.
//
// 8 warps of a block own a range of the weight's rows, 16 rows a unit, or 8 where there are few, and split k
// among them. A warp copies its part of the weight to a ring in shared memory that only it uses; the copies
// begin before the kernel in front has ended. Meanwhile 8 more warps round the only token's x to codes in
// shared memory, or copy those of several tokens, which a kernel in front has rounded: so that x, which every
// block needs whole, is there when the ring is. Products are by tensor cores, 16 rows of the weight by 8
// tokens: E4M3 as float16, which holds every code, with sums in float32; i8 with sums in int32. The warps'
// sums are added in shared memory, in one order.
//
// Where the weight has scales of blocks they are copied with it, and sums of 64 or 128 columns are scaled.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/w8a8.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;  // that multiply
constexpr int kMatvecBarrier = 2;      // of theirs
constexpr int kUnitRows = 16;
constexpr int kUnitColumns = 256;
constexpr int kRowVectors = kUnitColumns / 16;  // of 16 bytes
constexpr int kStepColumns = 64;
constexpr int kSteps = kUnitColumns / kStepColumns;
constexpr int kCodeVectors = kUnitRows * kRowVectors;
constexpr int kScaleVectors = kSteps * kUnitRows / 4;  // of a unit: f32 [steps][rows]
constexpr int kPassUnits = 4;                          // at most, whose sums are in shared memory at a time
constexpr int kRing = 4;
constexpr int kLongRing = 6;  // where a warp has more units than two rings; what fits in one would be slower
constexpr int kSmallRing = 2;
constexpr int kMaxTokens = 8;

// Rows of x are read where there is one token alone.
struct W8a8Args : LinearArgs {
  const std::uint8_t* x_codes;  // or null; of all tokens, as round_input gives them
  const float* x_scales;
  bool out_is_f32;
  bool is_gated;  // the weight's rows from n on are up's
  W8a8Matrix matrix;
  int block_rows_log2 = 0;
  int block_log2 = 31;     // of the columns that share a scale of the weight, where they are in blocks
  int unit_rows_log2 = 4;  // columns of out that a unit computes
  int warp_columns = 0;    // of k, of each warp
  int ring_units = kRing;
  int pass_units_log2 = 0;
  int x_pitch = 0;  // bytes between two tokens of x in shared memory

  __host__ __device__ int partial_pitch() const { return (kUnitRows << pass_units_log2) + 4; }
};

// What a block computes.
struct BlockUnits {
  __device__ explicit BlockUnits(const W8a8Args& args) {
    const unsigned units = (args.n + (1U << args.unit_rows_log2) - 1) >> args.unit_rows_log2;
    const auto first = static_cast<int>(units * blockIdx.x / gridDim.x);  // below 2^32: n is below 2^24
    const auto end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
    begin = first << args.unit_rows_log2;
    count = end - first;
    end_column = min(end << args.unit_rows_log2, args.n);
  }

  int begin;  // column of out
  int count;
  int end_column;
};

// Where a vector of a unit's row lies: odd rows are turned, so that two rows lie in different banks.
__device__ inline int place(int row, int vector) { return row * kRowVectors + (vector ^ (row % 2 * 4)); }

__device__ inline void copy_async_4(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(inside ? 4 : 0)
               : "memory");
}

// The oldest of so many is there.
__device__ inline void wait_for_unit(int ring_units) {
  if (ring_units == kLongRing) return wait_for_copies<kLongRing - 1>();
  if (ring_units == kRing) return wait_for_copies<kRing - 1>();
  wait_for_copies<kSmallRing - 1>();
}

// Copies a warp's units to its ring: along k, then down the rows.
template <bool kBlocks>
class UnitCopier {
 public:
  static constexpr int kVectors = kCodeVectors + (kBlocks ? kScaleVectors : 0);

  __device__ UnitCopier(const W8a8Args& args, const BlockUnits& units, int first_column, int end_column,
                        uint4* ring)
      : args_(args), units_(units), column_(first_column), end_column_(end_column), ring_(ring) {}

  // The next unit, if there is one, to this place of the ring.
  __device__ void copy_next(int slot) {
    if (unit_ < units_.count) {
      copy(ring_ + slot * kVectors);
      step_ += kUnitColumns;
      if (step_ >= args_.warp_columns) {
        step_ = 0;
        ++unit_;
      }
    }
    commit_copies();
  }

 private:
  // Half a warp copies a row of the unit.
  __device__ void copy(uint4* unit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / kRowVectors;
    const int vector = lane % kRowVectors;
    const int column = column_ + step_ + vector * 16;
    const int first = units_.begin + (unit_ << args_.unit_rows_log2);  // of out, and of the lower 8 rows
    const bool is_inside = column < end_column_;
    const int lower_left = is_inside ? units_.end_column - first - row : 0;
    // Of the unit's other 8 rows: up's, or the 8 that follow, or none.
    const int upper = args_.is_gated ? args_.n : 8;
    const int upper_left = args_.is_gated ? lower_left : args_.unit_rows_log2 == 4 ? lower_left - 8 : 0;
    const std::int64_t stride = args_.matrix.stride;
    const std::uint8_t* from = args_.matrix.codes + (first + row) * stride + column;
    uint4* to = unit + place(row, vector);
#pragma unroll
    for (int i = 0; i < 8; i += 2, from += 2 * stride) {
      copy_async_16(to + i * kRowVectors, from, i < lower_left);
      copy_async_16(to + (i + 8) * kRowVectors, from + upper * stride, i < upper_left);
    }
    if constexpr (kBlocks) {
      auto* scales = reinterpret_cast<float*>(unit + kCodeVectors);
#pragma unroll
      for (int i = lane; i < kSteps * kUnitRows; i += 32) {
        const int block = (column_ + step_ + i / kUnitRows * kStepColumns) >> args_.block_log2;
        const int r = first + i % 8 + (i % kUnitRows < 8 ? 0 : upper);
        copy_async_4(scales + i,
                     args_.matrix.scales + (r >> args_.block_rows_log2) * args_.matrix.scale_stride + block,
                     r < args_.matrix.rows && block < args_.matrix.num_blocks);
      }
    }
  }

  const W8a8Args& args_;
  const BlockUnits& units_;
  int column_;
  int end_column_;
  uint4* ring_;
  int unit_ = 0;
  int step_ = 0;  // columns along k
};

// x [tokens, x_pitch], and its scales [tokens, blocks of columns], in shared memory.
struct SharedInput {
  std::uint8_t* values;
  float* scales;

  // By the block's kRoundThreads threads that do not multiply.
  template <typename Codes, typename T>
  __device__ void fill(const W8a8Args& args) const {
    const int thread = static_cast<int>(threadIdx.x) - kThreads;
    const W8a8Matrix& matrix = args.matrix;
    if (args.x_codes == nullptr) {
      return round_row<Codes, true>(
          static_cast<const T*>(args.x), matrix, thread, scales, 1,
          [&](int column, uint2 eight) { Codes::store_input(values + column * Codes::kInputBytes, eight); });
    }
    for (int token = thread / 32; token < args.tokens; token += kRoundThreads / 32) {
      const std::uint8_t* codes = args.x_codes + token * std::int64_t{matrix.stride};
#pragma unroll 8
      for (int column = thread % 32 * kPiece; column < matrix.stride; column += 32 * kPiece) {
        Codes::store_input(values + token * args.x_pitch + column * Codes::kInputBytes,
                           *reinterpret_cast<const uint2*>(codes + column));
      }
      for (int block = thread % 32; block < matrix.num_blocks; block += 32)
        scales[token * matrix.num_blocks + block] = args.x_scales[block * args.tokens + token];
    }
  }
};

// A warp's sums of a unit: of rows g and g + 8, and of tokens 2t and 2t + 1 (multiply_add), in two chains.
template <typename Codes, bool kBlocks>
struct UnitSums {
  typename Codes::Sum values[2][4] = {};

  // += the ring's unit, whose first column of k is `begin`, times x.
  __device__ void add(const W8a8Args& args, const SharedInput& x, const uint4* unit, int begin) {
    typename Codes::Sum open[2][4] = {};  // of a block of columns, where there are any
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int column = begin + step * kStepColumns + t * 16;
      const uint4 low = unit[place(g, step * 4 + t)];
      const uint4 high = unit[place(g + 8, step * 4 + t)];
      uint4 b[Codes::kInputBytes] = {};
      if (g < args.tokens && column < args.matrix.stride) {
#pragma unroll
        for (int i = 0; i < Codes::kInputBytes; ++i)
          b[i] = reinterpret_cast<const uint4*>(x.values + g * args.x_pitch + column * Codes::kInputBytes)[i];
      }
      Codes::multiply(kBlocks ? open : values, low, high, b);
      if constexpr (kBlocks) {
        if (step % 2 == 0 && args.block_log2 > 6) continue;
        close(args, x, reinterpret_cast<const float*>(unit + kCodeVectors) + step * kUnitRows + g,
              min((begin + step * kStepColumns) >> args.block_log2, args.matrix.num_blocks - 1), open);
      }
    }
  }
  // Writes them to [token][row of the pass].
  __device__ void keep(const W8a8Args& args, typename Codes::Sum* to) const {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = token_of(i);
      if (token < args.tokens) to[token * args.partial_pitch() + g + i / 2 * 8] = values[0][i] + values[1][i];
    }
  }

 private:
  __device__ static int token_of(int i) { return static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }
  // Adds a block's sums, times the scales of its rows and of x, and clears them.
  __device__ void close(const W8a8Args& args, const SharedInput& x, const float* rows, int block,
                        float (&open)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = min(token_of(i), args.tokens - 1);
      const float scale = x.scales[token * args.matrix.num_blocks + block] * rows[i / 2 * 8];
      values[0][i] += (open[0][i] + open[1][i]) * scale;
      open[0][i] = open[1][i] = 0;
    }
  }
};

// A thread's part of what follows each pass: it adds the warps' sums [warp][token][row of the pass] and
// writes one column of out, of some tokens.
template <typename Sum, typename T, bool kBlocks>
class W8a8Writer {
 public:
  __device__ W8a8Writer(const W8a8Args& args, const BlockUnits& units, const Sum* partial,
                        const float* x_scales)
      : args_(args),
        x_scales_(x_scales),
        rows_log2_(args.pass_units_log2 + args.unit_rows_log2),
        end_column_(units.end_column) {
    const int row = static_cast<int>(threadIdx.x) & ((1 << rows_log2_) - 1);
    const int unit = row >> args.unit_rows_log2;
    token_ = static_cast<int>(threadIdx.x) >> rows_log2_;
    from_ = partial + unit * kUnitRows + (row & ((1 << args.unit_rows_log2) - 1));
    column_ = units.begin + row;
    load_scales();
  }
  __device__ void write_pass() {
    for (int token = token_; token < args_.tokens && column_ < end_column_; token += kThreads >> rows_log2_) {
      const float x_scale = kBlocks ? 1.0F : x_scales_[token];
      float value = scaled_sum(sum(token, 0), scale_, x_scale, bias_);
      if (args_.is_gated)
        value = activated(value, args_.activation) * scaled_sum(sum(token, 8), up_scale_, x_scale, 0.0F);
      const std::int64_t at = token * args_.out_stride + column_;
      if (args_.out_is_f32) {
        static_cast<float*>(args_.out)[at] = value;
      } else {
        static_cast<T*>(args_.out)[at] = narrow<T>(value);
      }
    }
    column_ += 1 << rows_log2_;
    load_scales();
  }

 private:
  __device__ void load_scales() {
    if (column_ >= end_column_) return;
    if (args_.bias != nullptr) bias_ = args_.bias[column_];
    if constexpr (!kBlocks) {
      scale_ = args_.matrix.scales[column_];
      if (args_.is_gated) up_scale_ = args_.matrix.scales[column_ + args_.n];
    }
  }
  __device__ float sum(int token, int row) const {
    const Sum* from = from_ + token * args_.partial_pitch() + row;
    const int stride = args_.tokens * args_.partial_pitch();
    Sum sums[2] = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sums[warp % 2] += from[warp * stride];
    return static_cast<float>(sums[0] + sums[1]);
  }

  const W8a8Args& args_;
  const float* x_scales_;
  int rows_log2_;
  int end_column_;
  int token_;
  int column_;
  const Sum* from_;
  float bias_ = 0;
  float scale_ = 1;
  float up_scale_ = 1;
};

// Longer than 60 lines: the order of copying, waiting and multiplying is one whole.
template <typename Codes, typename T, bool kBlocks>
__global__ __launch_bounds__(kThreads + kRoundThreads,
                             1) void w8a8_matvec_kernel(const __grid_constant__ W8a8Args args) {
  using Copier = UnitCopier<kBlocks>;
  using Sum = typename Codes::Sum;
  extern __shared__ uint4 shared[];
  admit_next_kernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_column = min(warp * args.warp_columns, args.matrix.stride);
  const int end_column = min(first_column + args.warp_columns, args.matrix.stride);
  const BlockUnits units(args);
  uint4* ring = shared + warp * args.ring_units * Copier::kVectors;
  auto* partial = reinterpret_cast<Sum*>(shared + kWarps * args.ring_units * Copier::kVectors);
  auto* x = reinterpret_cast<std::uint8_t*>(partial + kWarps * args.tokens * args.partial_pitch());
  const SharedInput input{x, reinterpret_cast<float*>(x + args.tokens * args.x_pitch)};

  if (warp >= kWarps) {
    wait_for_kernels();
    input.fill<Codes, T>(args);
    __syncthreads();
    return;
  }
  // One unit at a time under way while x is not there: more would keep it waiting.
  Copier copier(args, units, first_column, end_column, ring);
  copier.copy_next(0);
  W8a8Writer<Sum, T, kBlocks> writer(args, units, partial, input.scales);
  for (int slot = 1; slot < args.ring_units - 1; ++slot) {
    wait_for_copies<0>();
    copier.copy_next(slot);
  }
  wait_for_kernels();
  __syncthreads();  // x is there
  copier.copy_next(args.ring_units - 1);

  int slot = 0;
  const int pass_units = 1 << args.pass_units_log2;
  for (int pass = 0; pass < units.count; pass += pass_units) {
    const int end = min(pass + pass_units, units.count);
    Sum* keep_to = partial + warp * args.tokens * args.partial_pitch();
    for (int unit = pass; unit < end; ++unit, keep_to += kUnitRows) {
      UnitSums<Codes, kBlocks> sums;
      for (int column = 0; column < args.warp_columns; column += kUnitColumns) {
        wait_for_unit(args.ring_units);
        __syncwarp();  // the other lanes' copies too
        sums.add(args, input, ring + slot * Copier::kVectors, first_column + column);
        __syncwarp();  // all have read the unit
        copier.copy_next(slot);
        slot = slot + 1 == args.ring_units ? 0 : slot + 1;
      }
      sums.keep(args, keep_to);
    }
    sync_threads(kMatvecBarrier, kThreads);
    writer.write_pass();
    if (end < units.count) sync_threads(kMatvecBarrier, kThreads);
  }
}

int ring_bytes(const W8a8Args& args) {
  const int vectors = kCodeVectors + (args.block_log2 < 31 ? kScaleVectors : 0);
  return kWarps * args.ring_units * vectors * int{sizeof(uint4)};
}

// Sets how a block uses its warps and its memory; gives the bytes, or 0 where they do not suffice.
int plan_block(const LaunchContext& context, W8a8Args& args) {
  const W8a8Matrix& matrix = args.matrix;
  const auto log2 = [](unsigned n) { return std::countr_zero(n); };
  if (matrix.block_cols < matrix.cols) {
    args.block_log2 = log2(matrix.block_cols);
    args.block_rows_log2 = log2(matrix.block_rows);
  }
  const int x_bytes = matrix.is_float() ? E4m3Codes::kInputBytes : Int8Codes::kInputBytes;
  args.x_pitch = ceil_div(matrix.stride * x_bytes, 128) * 128 + 64 / (x_bytes * x_bytes);  // a token's banks
  args.warp_columns = ceil_div(ceil_div(matrix.stride, kWarps), 128) * 128;  // warps share no line
  const bool is_small = !args.is_gated && args.n <= context.num_sms * 8;
  args.unit_rows_log2 = is_small || args.is_gated ? 3 : 4;
  const int units = ceil_div(args.n, 1 << args.unit_rows_log2);
  const int block_units = ceil_div(units, std::min(units, context.num_sms));
  args.pass_units_log2 = log2(std::bit_ceil(static_cast<unsigned>(std::min(block_units, kPassUnits))));
  const auto bytes = [&] {
    return ring_bytes(args) + args.tokens * (kWarps * args.partial_pitch() + matrix.num_blocks) * 4 +
           args.tokens * args.x_pitch;
  };
  const int limit = context.shared_bytes - 1024;
  const int warp_units = block_units * ceil_div(args.warp_columns, kUnitColumns);
  if (!args.is_gated && warp_units > 2 * kRing) args.ring_units = kLongRing;
  if (bytes() > limit) args.ring_units = kRing;
  while (bytes() > limit && args.pass_units_log2 > 0) --args.pass_units_log2;
  if (bytes() > limit) args.ring_units = kSmallRing;
  if (bytes() > limit) return 0;
  return bytes();
}

template <typename Codes, typename T, bool kBlocks>
void launch_w8a8(const LaunchContext& context, const W8a8Args& args, int bytes) {
  const auto kernel = w8a8_matvec_kernel<Codes, T, kBlocks>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "w8a8_matvec");
  const int units = ceil_div(args.n, 1 << args.unit_rows_log2);
  launch(context, "w8a8_matvec", kernel, std::min(units, context.num_sms), kThreads + kRoundThreads, bytes,
         args);
}

}  // namespace

bool w8a8_matvec_supports(const LaunchContext& context, const Tensor& x, const W8a8Matrix& matrix) {
  const bool has_steps = matrix.block_cols >= matrix.cols || matrix.block_cols % kStepColumns == 0;
  if (x.dtype() == DType::kF32 || x.dim(0) > kMaxTokens || !splits_into(x, kPiece) || !has_steps)
    return false;
  W8a8Args args{{x, x, matrix.code_tensor(DType::kU8), {}}, nullptr, nullptr, false, false, matrix};
  return plan_block(context, args) != 0;
}

void w8a8_matvec(const LaunchContext& context, const Tensor& out, const Tensor& x,
                 const RoundedInput& rounded, const W8a8Matrix& matrix, const Tensor& bias, Gate gate) {
  W8a8Args args{{out, x, matrix.code_tensor(DType::kU8), bias, gate},
                rounded.codes.data_as<const std::uint8_t>(),
                rounded.scales.data_as<const float>(),
                out.dtype() == DType::kF32,
                gate.has_value(),
                matrix};
  if (args.n == 0) return;
  const int bytes = plan_block(context, args);
  const auto run = [&]<typename T>() {
    if (!matrix.is_float()) {
      launch_w8a8<Int8Codes, T, false>(context, args, bytes);
    } else if (args.block_log2 < 31) {
      launch_w8a8<E4m3Codes, T, true>(context, args, bytes);
    } else {
      launch_w8a8<E4m3Codes, T, false>(context, args, bytes);
    }
  };
  x.dtype() == DType::kBF16 ? run.template operator()<BFloat16>() : run.template operator()<Float16>();
}

}  // namespace quire::cuda
