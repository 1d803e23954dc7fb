#include "backends/cuda/matmul.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/error.h"

namespace quire::cuda {
namespace {

constexpr int kCandidates = 8;  // that tune() measures

void check_library(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    fail("cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
  }
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
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
  explicit Problem(const Shape& shape) {
    const auto matrix = [](cublasLtMatrixLayoutOpaque_t& layout, DType dtype, std::int64_t rows,
                           std::int64_t columns, std::int64_t stride) {
      check_library(cublasLtMatrixLayoutInit(&layout, data_type(dtype), static_cast<std::uint64_t>(rows),
                                             static_cast<std::uint64_t>(columns), stride),
                    "a matrix");
    };
    matrix(weight, shape.dtype, shape.k, shape.n, shape.k);
    matrix(x, shape.dtype, shape.k, shape.tokens, shape.x_stride);
    matrix(out, shape.out_dtype, shape.n, shape.tokens, shape.out_stride);
    check_library(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_library(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                 sizeof(transposed)),
                  "a transposed matrix");
  }

  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t weight{};
  cublasLtMatrixLayoutOpaque_t x{};
  cublasLtMatrixLayoutOpaque_t out{};
};

namespace {

// The library's proposals, best first; empty where it has none.
template <typename Problem>
std::vector<cublasLtMatmulAlgo_t> propose(cublasLtHandle_t handle, Problem& problem, int alignment,
                                          std::size_t workspace_bytes) {
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
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &problem.operation, &problem.weight, &problem.x, &problem.out,
                                     &problem.out, &preference, kCandidates, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return algorithms;
  check_library(status, "the choice of an algorithm");
  for (int i = 0; i < count; ++i) {
    if (results[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back(results[static_cast<std::size_t>(i)].algo);
    }
  }
  return algorithms;
}

}  // namespace

LibraryMatmul::LibraryMatmul(const Tensor& workspace) : workspace_(workspace) {
  check_library(cublasLtCreate(&handle_), "start");
}

LibraryMatmul::~LibraryMatmul() { cublasLtDestroy(handle_); }

LibraryMatmul::Shape LibraryMatmul::shape_of(const Tensor& out, const Tensor& x, const Tensor& weight) {
  return {x.dim(0),      weight.dim(0),  weight.dim(1), x.stride(0),
          out.stride(0), weight.dtype(), out.dtype(),   common_alignment(out, x, weight)};
}

const LibraryMatmul::Algorithm& LibraryMatmul::algorithm(const Shape& shape) {
  const auto found = algorithms_.find(shape);
  if (found != algorithms_.end()) return found->second;
  Problem problem(shape);
  const auto proposals = propose(handle_, problem, shape.alignment, workspace_.bytes());
  return algorithms_.emplace(shape, proposals.empty() ? Algorithm() : proposals.front()).first->second;
}

bool LibraryMatmul::supports(const Tensor& out, const Tensor& x, const Tensor& weight) {
  return algorithm(shape_of(out, x, weight)).has_value();
}

void LibraryMatmul::run(const LaunchContext& context, const Problem& problem,
                        const cublasLtMatmulAlgo_t& algorithm, const Tensor& out, const Tensor& x,
                        const Tensor& weight) {
  const float one = 1;
  const float zero = 0;
  auto& p = const_cast<Problem&>(problem);  // descriptors are read, but passed as pointers to non-const
  check_library(cublasLtMatmul(handle_, &p.operation, &one, weight.data(), &p.weight, x.data(), &p.x, &zero,
                               out.data(), &p.out, out.data(), &p.out, &algorithm, workspace_.data(),
                               workspace_.bytes(), context.stream),
                "a product");
}

void LibraryMatmul::multiply(const LaunchContext& context, const Tensor& out, const Tensor& x,
                             const Tensor& weight, const Tensor& bias) {
  const Shape shape = shape_of(out, x, weight);
  const Algorithm& chosen = algorithm(shape);
  if (!chosen)
    fail("cuBLASLt cannot multiply {} by {} to {}", x.describe(), weight.describe(), out.describe());
  run(context, Problem(shape), *chosen, out, x, weight);
  if (bias.defined()) add_bias(context, out, bias);
}

float LibraryMatmul::time(const LaunchContext& context, const Problem& problem,
                          const cublasLtMatmulAlgo_t& algorithm, const Tensor& out, const Tensor& x,
                          std::span<const Tensor> weights) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  run(context, problem, algorithm, out, x,
      weights.back());  // what it loads when it first runs is not counted
  check(cudaEventRecord(begin, context.stream), "an event");
  for (const Tensor& weight : weights) run(context, problem, algorithm, out, x, weight);
  check(cudaEventRecord(end, context.stream), "an event");
  check(cudaEventSynchronize(end), "matrix products");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "a time");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds;
}

float LibraryMatmul::tune(const LaunchContext& context, const Tensor& out, const Tensor& x,
                          std::span<const Tensor> weights) {
  const Shape shape = shape_of(out, x, weights.front());
  Problem problem(shape);
  const auto proposals = propose(handle_, problem, shape.alignment, workspace_.bytes());
  if (proposals.empty()) return 1;
  std::vector<float> times;
  for (const cublasLtMatmulAlgo_t& proposal : proposals) {
    times.push_back(time(context, problem, proposal, out, x, weights));
  }
  const auto fastest = std::min_element(times.begin(), times.end());
  algorithms_[shape] = proposals[static_cast<std::size_t>(fastest - times.begin())];
  return *fastest / times.front();
}

void linear(const LaunchContext& context, LibraryMatmul* library, const Tensor& out, const Tensor& x,
            const Tensor& weight, const Tensor& bias) {
  if (library == nullptr || weight.dtype() == DType::kF32) {
    fixed_order_matmul(context, out, x, weight, bias);
  } else if (x.dim(0) <= kMaxMatvecTokens) {
    matvec(context, out, x, weight, bias);
  } else if (library->supports(out, x, weight)) {
    library->multiply(context, out, x, weight, bias);
  } else {
    fixed_order_matmul(context, out, x, weight, bias);
  }
}

}  // namespace quire::cuda
