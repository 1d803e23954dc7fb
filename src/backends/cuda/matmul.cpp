#include "backends/cuda/matmul.h"

#include <algorithm>

#include "base/error.h"

namespace quire::cuda {
namespace {

void check_library(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    fail("cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
  }
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kU8:
      return CUDA_R_8F_E4M3;
    case DType::kI8:
      return CUDA_R_8I;
    case DType::kI32:
      return CUDA_R_32I;
    default:
      return CUDA_R_16F;
  }
}

// The largest power of two up to 16 that divides every address.
int common_alignment(const Tensor& out, const Tensor& x, const Tensor& weight) {
  const auto address = reinterpret_cast<std::uintptr_t>(out.data()) |
                       reinterpret_cast<std::uintptr_t>(x.data()) |
                       reinterpret_cast<std::uintptr_t>(weight.data()) | 16U;
  return static_cast<int>(address & -address);
}

}  // namespace

// What the library wants to know of a product. It counts by columns: outᵀ [n, tokens] = weight · xᵀ, where a
// row-major matrix is its own transpose.
struct LibraryMatmul::Problem {
  Problem(const Shape& shape, const MatmulScales& scales) {
    const auto matrix = [](cublasLtMatrixLayoutOpaque_t& layout, DType dtype, std::int64_t rows,
                           std::int64_t columns, std::int64_t stride) {
      check_library(cublasLtMatrixLayoutInit(&layout, data_type(dtype), static_cast<std::uint64_t>(rows),
                                             static_cast<std::uint64_t>(columns), stride),
                    "a matrix");
    };
    matrix(weight, shape.dtype, shape.k, shape.n, shape.k);
    matrix(x, shape.dtype, shape.k, shape.tokens, shape.x_stride);
    matrix(out, shape.out_dtype, shape.n, shape.tokens, shape.out_stride);
    const bool is_integer = shape.dtype == DType::kI8;
    check_library(cublasLtMatmulDescInit(&operation, is_integer ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                         is_integer ? CUDA_R_32I : CUDA_R_32F),
                  "a product");
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      check_library(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)),
                    "what a product is");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (shape.dtype != DType::kU8) return;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
        std::int32_t{scales.in_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                      : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
        std::int32_t{scales.in_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                      : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.weight);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
  }

  // The library's first choice; none where it cannot compute the product.
  Algorithm choose(cublasLtHandle_t handle, int alignment, std::size_t workspace_bytes) {
    cublasLtMatmulPreferenceOpaque_t preference{};
    check_library(cublasLtMatmulPreferenceInit(&preference), "a preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_library(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
                    "a preference");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, static_cast<std::uint32_t>(alignment));
    }
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &operation, &weight, &x, &out, &out,
                                                                 &preference, 1, &result, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
    check_library(status, "the choice of an algorithm");
    if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result.algo;
  }

  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t weight{};
  cublasLtMatrixLayoutOpaque_t x{};
  cublasLtMatrixLayoutOpaque_t out{};
};

LibraryMatmul::LibraryMatmul(const Tensor& workspace) : workspace_(workspace) {
  check_library(cublasLtCreate(&handle_), "start");
}

LibraryMatmul::~LibraryMatmul() { cublasLtDestroy(handle_); }

bool LibraryMatmul::multiply(const LaunchContext& context, const Tensor& out, const Tensor& x,
                             const Tensor& weight, const Tensor& bias, const MatmulScales& scales) {
  const Shape shape = {.tokens = x.dim(0),
                       .n = weight.dim(0),
                       .k = weight.dim(1),
                       .x_stride = x.stride(0),
                       .out_stride = out.stride(0),
                       .dtype = weight.dtype(),
                       .out_dtype = out.dtype(),
                       .alignment = common_alignment(out, x, weight),
                       .in_blocks = scales.in_blocks};
  Problem p(shape, scales);
  auto known = algorithms_.find(shape);
  if (known == algorithms_.end())
    known = algorithms_.emplace(shape, p.choose(handle_, shape.alignment, workspace_.bytes())).first;
  const Algorithm& chosen = known->second;
  if (!chosen) return false;
  const float one = 1;
  const std::int32_t integer_one = 1;
  const std::int32_t zero = 0;  // of both types
  const void* alpha = &one;
  if (shape.dtype == DType::kI8) alpha = &integer_one;
  check_library(cublasLtMatmul(handle_, &p.operation, alpha, weight.data(), &p.weight, x.data(), &p.x, &zero,
                               out.data(), &p.out, out.data(), &p.out, &*chosen, workspace_.data(),
                               workspace_.bytes(), context.stream),
                "a product");
  if (bias.defined()) add_bias(context, out, bias);
  return true;
}

namespace {

// Where cuBLASLt is slower: batches that do not fill the card.
bool prefers_batched_matmul(const Tensor& x, const Tensor& weight, bool gated) {
  constexpr std::int64_t kMaxTokens = 64;
  constexpr std::int64_t kMaxWeights = 12288 * 4096;  // for each of a gated pair
  constexpr std::int64_t kMaxTokensOfSmall = 144;
  constexpr std::int64_t kSmallWeights = 4096 * 1024;
  const std::int64_t tokens = x.dim(0), weights = weight.numel() / (gated ? 2 : 1);
  const bool is_faster =
      tokens <= kMaxTokens ? weights <= kMaxWeights : tokens <= kMaxTokensOfSmall && weights <= kSmallWeights;
  return is_faster && has_batched_matmul(x, weight, gated);
}

// By a kernel of ours that takes it and, of any order, is the fastest; false: there is none, and nothing was
// done.
bool own_linear(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
                const Tensor& bias, SumOrder order, Gate gate) {
  const bool any_order = order == SumOrder::kFree;
  if (any_order && matvec_supports(context, x, weight)) {
    matvec(context, out, x, weight, bias, gate);
  } else if (any_order ? prefers_batched_matmul(x, weight, gate.has_value())
                       : has_batched_matmul(x, weight, gate.has_value())) {
    batched_matmul(context, out, x, weight, bias, order, gate);
  } else {
    return false;
  }
  return true;
}

// As many rows of the weight at a time as the workspace takes, in 16 bits, by the library.
void multiply_dequantized(const LaunchContext& context, LibraryMatmul& library, const Tensor& out,
                          const Tensor& x, const QuantizedMatrix& weight, const Tensor& bias,
                          const Tensor& workspace) {
  const std::int64_t cols = weight.layout.cols;
  const std::int64_t row_bytes = cols * static_cast<std::int64_t>(size_of(x.dtype()));
  const std::int64_t step = static_cast<std::int64_t>(workspace.bytes()) /
                            (row_bytes * QuantizedLayout::kTileRows) * QuantizedLayout::kTileRows;
  QUIRE_CHECK(step > 0, "rows of {} bytes", row_bytes);
  for (std::int64_t row = 0; row < weight.layout.rows; row += step) {
    const std::int64_t count = std::min(step, weight.layout.rows - row);
    const Tensor rows(workspace.data(), x.dtype(), {count, cols}, DeviceKind::kCuda);
    const Tensor part = out.columns(row, count);
    const Tensor part_bias = bias.defined() ? bias.rows(row, count) : bias;
    dequantize_rows(context, rows, weight, row);
    if (!library.multiply(context, part, x, rows, part_bias))
      fixed_order_matmul(context, part, x, rows, part_bias);
  }
}

}  // namespace

void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const Tensor& weight, const Tensor& bias, const Tensor& /*workspace*/) {
  const SumOrder order = library == nullptr ? SumOrder::kFixed : SumOrder::kFree;
  if (own_linear(context, out, x, weight, bias, order, {})) return;
  const bool by_library = library != nullptr && weight.dtype() != DType::kF32;
  if (!by_library || !library->multiply(context, out, x, weight, bias))
    fixed_order_matmul(context, out, x, weight, bias);
}

bool fused_gated_linear(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const Tensor& weight, Activation activation, SumOrder order,
                        const Tensor& /*workspace*/) {
  return own_linear(context, out, x, weight, {}, order, activation);
}

void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const QuantizedMatrix& weight, const Tensor& bias, const Tensor& workspace) {
  // From there on the library makes up for the detour.
  const std::int64_t max_batched_tokens = weight.layout.block_log2 == 3 ? 256 : 128;
  if (library == nullptr || !quantized_products_support(x)) {
    quantized_fixed_order_matmul(context, out, x, weight, bias);
  } else if (x.dim(0) <= kMaxQuantizedMatvecTokens) {
    quantized_matvec(context, out, x, weight, bias);
  } else if (x.dim(0) <= max_batched_tokens && is_hopper() &&
             quantized_batched_workspace_bytes(x.dim(0), weight.layout) <= workspace.bytes()) {
    quantized_batched_matmul(context, out, x, weight, bias, workspace);
  } else {
    multiply_dequantized(context, *library, out, x, weight, bias, workspace);
  }
}

bool fused_gated_linear(const LaunchContext& context, const Tensor& out, const Tensor& x,
                        const QuantizedMatrix& weight, Activation activation, SumOrder order,
                        const Tensor& /*workspace*/) {
  if (order == SumOrder::kFixed || !quantized_products_support(x) || x.dim(0) > kMaxQuantizedMatvecTokens ||
      weight.layout.rows % (2 * QuantizedLayout::kTileRows) != 0) {
    return false;
  }
  quantized_matvec(context, out, x, weight, {}, activation);
  return true;
}

}  // namespace quire::cuda
