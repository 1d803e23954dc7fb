#include "backends/cuda/kernels/tensor_map.h"

#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {

// The driver's function is looked up: the program starts without a driver.
CUtensorMap make_tensor_map(const Tensor& tensor, std::initializer_list<std::int64_t> sizes,
                            std::initializer_list<std::int64_t> strides, std::initializer_list<int> box) {
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
  const CUresult result = encode(&map, type, static_cast<cuuint32_t>(sizes.size()), tensor.data(),
                                 reinterpret_cast<const cuuint64_t*>(sizes.begin()),
                                 reinterpret_cast<const cuuint64_t*>(strides.begin()),
                                 reinterpret_cast<const cuuint32_t*>(box.begin()), kSteps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "a tensor map");
  return map;
}

CUtensorMap map_rows(const Tensor& matrix, int box_rows) {
  const int size = static_cast<int>(size_of(matrix.dtype()));
  const std::int64_t rows = matrix.dim(0), row = matrix.stride(0) * size;
  return make_tensor_map(matrix, {matrix.dim(1), rows, 1}, {row, rows * row}, {128 / size, box_rows, 1});
}

CUtensorMap map_weight(const Tensor& weight, int box_rows, std::int64_t gate_rows) {
  const int size = static_cast<int>(size_of(weight.dtype()));
  const std::int64_t rows = weight.dim(0), columns = weight.dim(1), row = columns * size;
  if (gate_rows == 0)
    return make_tensor_map(weight, {columns, rows, 1, 1}, {row, rows * row, rows * row},
                           {128 / size, box_rows, 1, 1});
  // The last 8 of a gate are gate_rows from the end.
  return make_tensor_map(weight, {columns, 8, 2, (rows - gate_rows) / 8}, {row, gate_rows * row, 8 * row},
                         {128 / size, 8, 2, box_rows / 16});
}

}  // namespace quire::cuda
