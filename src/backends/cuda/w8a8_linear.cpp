#include "backends/cuda/w8a8_linear.h"

#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/batched_plan.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

constexpr int kLibraryBlock = 128;  // rows and columns that share a scale where the library takes blocks

int up_to_multiple(std::int64_t n, int of) { return static_cast<int>((n + of - 1) / of * of); }

bool has_library_blocks(std::span<const WeightGroup> parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const WeightGroup& part) {
    const bool ends_block = &part == &parts.back() || part.rows % kLibraryBlock == 0;
    return part.format.block_rows % kLibraryBlock == 0 && ends_block;
  });
}

std::size_t code_bytes(const W8a8Matrix& matrix) {
  return static_cast<std::size_t>(matrix.rows) * static_cast<std::size_t>(matrix.stride);
}
std::size_t num_scales(const W8a8Matrix& matrix) {
  return static_cast<std::size_t>((matrix.rows + matrix.block_rows - 1) / matrix.block_rows) *
         static_cast<std::size_t>(matrix.scale_stride);
}

}  // namespace

W8a8Matrix w8a8_matrix(const void* device, std::span<const WeightGroup> parts) {
  const MatrixShape shape = shape_of(parts);
  const LinearFormat& format = parts.front().format;
  const std::int64_t block_cols = std::min(format.block_cols, shape.cols);
  check_input_columns(format, shape.cols, parts.front().name());
  W8a8Matrix matrix;
  matrix.input = format.input;
  matrix.rows = static_cast<int>(shape.rows);
  matrix.cols = static_cast<int>(shape.cols);
  matrix.stride = up_to_multiple(shape.cols, 16);
  matrix.block_cols = static_cast<int>(block_cols);
  matrix.num_blocks = static_cast<int>((shape.cols + block_cols - 1) / block_cols);
  const bool is_whole = block_cols == shape.cols;
  const bool has_codes = matrix.is_float() ? format.code == CodeType::kE4m3
                                           : format.code == CodeType::kInt && format.bits == 8 &&
                                                 format.code_offset == 128 && is_whole;
  const bool has_block = is_whole || (block_cols >= 16 && block_cols <= 256 &&
                                      std::has_single_bit(static_cast<std::uint64_t>(block_cols)));
  if (!has_codes || !has_block || format.offset != OffsetType::kNone) {
    fail(
        "{}: products of {} codes in blocks of {} columns with activations of 8 bits are not supported on "
        "CUDA; --weight-only takes it",
        parts.front().name(), matrix.is_float() ? "E4M3" : "int8", block_cols);
  }
  if (!is_whole) {
    if (block_cols == kLibraryBlock && has_library_blocks(parts)) matrix.block_rows = kLibraryBlock;
    matrix.scale_stride = matrix.block_rows == 1 ? matrix.num_blocks : up_to_multiple(matrix.num_blocks, 4);
  }
  matrix.codes = static_cast<const std::uint8_t*>(device);
  matrix.scales = reinterpret_cast<const float*>(matrix.codes + code_bytes(matrix));
  return matrix;
}

std::size_t w8a8_bytes(const W8a8Matrix& matrix) {
  return code_bytes(matrix) + num_scales(matrix) * sizeof(float);
}

WeightTensorPtr w8a8_codes(const QuantizedRows& rows, const W8a8Matrix& matrix) {
  const auto read = [codes = rows.codes, is_float = matrix.is_float()](std::int64_t row, const Tensor& dst) {
    std::fill_n(dst.data_as<std::uint8_t>(), dst.numel(), std::uint8_t{0});
    for (std::int64_t i = 0; i < dst.dim(0); ++i) {
      const Tensor to = dst.rows(i, 1).columns(0, codes->cols());
      codes->read_rows(row + i, to);
      // Integers are stored with 128 added.
      if (!is_float)
        std::for_each_n(to.data_as<std::uint8_t>(), to.numel(), [](std::uint8_t& code) { code ^= 0x80U; });
    }
  };
  return make_weight_tensor(rows.codes->name(), DType::kU8, {matrix.rows, matrix.stride}, read);
}

std::vector<float> w8a8_scales(const QuantizedRows& rows, const W8a8Matrix& matrix) {
  std::vector<float> scales(num_scales(matrix));
  float* to = scales.data();
  for (int row = 0; row < matrix.rows; row += matrix.block_rows, to += matrix.scale_stride)
    read_block_scales(rows, row, 1, to, nullptr);
  return scales;
}

namespace {

// Where codes of x, their scales and a library's sums lie in the workspace.
struct ChunkLayout {
  const W8a8Matrix& matrix;
  bool has_sums;

  std::int64_t num_tokens(const Tensor& workspace) const {
    const std::int64_t token_bytes =
        matrix.stride + 4 * (std::int64_t{matrix.num_blocks} + (has_sums ? matrix.rows : 0));
    const std::int64_t tokens = (workspace.numel() - 32) / token_bytes;
    return tokens < 128 ? tokens : tokens / 128 * 128;
  }
  // Of that many.
  RoundedInput input(const Tensor& workspace, std::int64_t tokens) const {
    auto* codes = workspace.data_as<std::uint8_t>();
    return {
        Tensor(codes, DType::kU8, {tokens, matrix.stride}, DeviceKind::kCuda),
        Tensor(codes + tokens * matrix.stride, DType::kF32, {matrix.num_blocks, tokens}, DeviceKind::kCuda)};
  }
  Tensor sums(const Tensor& workspace, std::int64_t tokens) const {
    const std::int64_t at = up_to_multiple(tokens * (matrix.stride + 4 * matrix.num_blocks), 16);
    return Tensor(workspace.data_as<std::uint8_t>() + at, DType::kI32, {tokens, matrix.rows},
                  DeviceKind::kCuda);
  }
};

// Whether batched_matmul is faster than the library, as timed: for one tile of 64 tokens always; for up to
// two of 96 where the library's tiles leave multiprocessors without work, as rows are few and sums long, and
// for gated pairs, but where two tiles of 64 take them.
bool prefers_batched_matmul(std::int64_t tokens, const W8a8Matrix& matrix, bool gated) {
  constexpr std::int64_t kTile = BatchedPlan::kTileTokens, kWideTile = BatchedPlan::kCodeTileTokens;
  constexpr int kFewRows = 4096, kLongSums = 3072, kLongGatedSums = 2048;
  if (!w8a8_has_batched_matmul(matrix, gated) || tokens > 2 * kWideTile) return false;
  if (tokens <= kTile) return true;
  if (matrix.rows <= kFewRows) return matrix.cols >= kLongSums;
  return gated && matrix.cols >= kLongGatedSums && (tokens <= kWideTile || tokens > 2 * kTile);
}

// False where the library cannot compute it. sums: i32 [tokens, rows] for integers.
bool multiply_by_library(const LaunchContext& context, LibraryMatmul& library, const Tensor& out,
                         const RoundedInput& x, const Tensor& sums, const W8a8Matrix& matrix,
                         const Tensor& bias) {
  const DType type = matrix.is_float() ? DType::kU8 : DType::kI8;
  const Tensor codes(x.codes.data(), type, {x.codes.dim(0), matrix.stride}, DeviceKind::kCuda);
  const Tensor weight = matrix.code_tensor(type);
  if (!matrix.is_float()) {
    if (!library.multiply(context, sums, codes, weight, {})) return false;
    scale_sums(context, out, sums, x, matrix, bias);
    return true;
  }
  const bool in_blocks = matrix.block_cols < matrix.cols;
  if (in_blocks && matrix.block_rows != kLibraryBlock) return false;
  const MatmulScales scales{matrix.scales, x.scales.data_as<const float>(), in_blocks};
  return library.multiply(context, out, codes, weight, bias, scales);
}

}  // namespace

void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const W8a8Matrix& matrix, const Tensor& bias, const Tensor& workspace) {
  const bool is_fast = library != nullptr && x.dtype() != DType::kF32;
  const ChunkLayout layout{matrix, is_fast && !matrix.is_float()};
  const std::int64_t step = layout.num_tokens(workspace);
  QUIRE_CHECK(step > 0, "{} columns", matrix.cols);
  // Sums of integers are exact in any order.
  const bool by_matvec =
      (library != nullptr || !matrix.is_float()) && w8a8_matvec_supports(context, x, matrix);
  if (by_matvec && x.dim(0) == 1) return w8a8_matvec(context, out, x, {}, matrix, bias);
  for (std::int64_t token = 0; token < x.dim(0); token += step) {
    const std::int64_t count = std::min(step, x.dim(0) - token);
    const RoundedInput input = layout.input(workspace, count);
    const Tensor part = out.rows(token, count);
    round_input(context, input, x.rows(token, count), matrix);
    if (by_matvec) {
      w8a8_matvec(context, part, x.rows(token, count), input, matrix, bias);
    } else if (is_fast && prefers_batched_matmul(x.dim(0), matrix, false)) {
      w8a8_batched_matmul(context, part, input, matrix, bias);
    } else if (!is_fast || !multiply_by_library(context, *library, part, input, layout.sums(workspace, count),
                                                matrix, bias)) {
      w8a8_fixed_order_matmul(context, part, input, matrix, bias);
    }
  }
}

bool fused_gated_linear(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const W8a8Matrix& matrix, Activation activation, SumOrder order,
                        const Tensor& workspace) {
  if (order == SumOrder::kFixed) return false;
  const bool by_matvec = w8a8_matvec_supports(context, x, matrix);
  const bool by_batches = x.dtype() != DType::kF32 && prefers_batched_matmul(x.dim(0), matrix, true);
  const ChunkLayout layout{matrix, false};
  if ((!by_matvec && !by_batches) || x.dim(0) > layout.num_tokens(workspace)) return false;
  if (by_matvec && x.dim(0) == 1) {
    w8a8_matvec(context, out, x, {}, matrix, {}, activation);
    return true;
  }
  const RoundedInput input = layout.input(workspace, x.dim(0));
  round_input(context, input, x, matrix);
  if (by_matvec) {
    w8a8_matvec(context, out, x, input, matrix, {}, activation);
  } else {
    w8a8_batched_matmul(context, out, input, matrix, {}, activation);
  }
  return true;
}

}  // namespace quire::cuda
