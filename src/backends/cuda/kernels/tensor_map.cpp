#include "backends/cuda/kernels/tensor_map.h"

#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {

// The driver's function is looked up: the program starts without a driver.
CUtensorMap make_tensor_map(const Tensor& tensor, std::initializer_list<cuuint64_t> sizes,
                            std::initializer_list<cuuint64_t> strides,
                            std::initializer_list<cuuint32_t> box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                           &found),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const CUtensorMapDataType type = tensor.dtype() == DType::kU8     ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : tensor.dtype() == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                    : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, static_cast<cuuint32_t>(sizes.size()), tensor.data(), sizes.begin(), strides.begin(),
             box.begin(), kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "a tensor map");
  return map;
}

CUtensorMap map_rows(const Tensor& matrix, int box_rows) {
  const cuuint64_t size = size_of(matrix.dtype()), row = static_cast<cuuint64_t>(matrix.stride(0)) * size;
  const auto rows = static_cast<cuuint64_t>(matrix.dim(0)), columns = static_cast<cuuint64_t>(matrix.dim(1));
  return make_tensor_map(matrix, {columns, rows, 1}, {row, rows * row},
                         {static_cast<cuuint32_t>(128 / size), static_cast<cuuint32_t>(box_rows), 1});
}

CUtensorMap map_weight(const Tensor& weight, int box_rows, std::int64_t gate_rows) {
  const auto rows = static_cast<cuuint64_t>(weight.dim(0)), columns = static_cast<cuuint64_t>(weight.dim(1));
  const auto taken = static_cast<cuuint32_t>(box_rows);
  const cuuint64_t size = size_of(weight.dtype()), row = columns * size;
  const auto depth = static_cast<cuuint32_t>(128 / size);
  if (gate_rows == 0)
    return make_tensor_map(weight, {columns, rows, 1, 1}, {row, rows * row, rows * row},
                           {depth, taken, 1, 1});
  const auto half = static_cast<cuuint64_t>(gate_rows);  // the last 8 of a gate are so far from the end
  return make_tensor_map(weight, {columns, 8, 2, (rows - half) / 8}, {row, half * row, 8 * row},
                         {depth, 8, 2, taken / 16});
}

}  // namespace quire::cuda
