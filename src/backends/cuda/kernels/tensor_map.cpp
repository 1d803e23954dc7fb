#include "backends/cuda/kernels/tensor_map.h"

#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {

// The driver's function is looked up: the program starts without a driver.
CUtensorMap encode_tensor_map(const Tensor& tensor, unsigned num_dims, const cuuint64_t* sizes,
                              const cuuint64_t* strides, const cuuint32_t* box) {
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
  const CUresult result = encode(&map, type, num_dims, tensor.data(), sizes, strides, box, kSteps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "a tensor map");
  return map;
}

}  // namespace quire::cuda
