#pragma once

#include <cuda.h>

#include "base/tensor.h"

namespace quire::cuda {

// As make_tensor_map; `num_dims` sizes and boxes, one stride less.
CUtensorMap encode_tensor_map(const Tensor& tensor, unsigned num_dims, const cuuint64_t* sizes,
                              const cuuint64_t* strides, const cuuint32_t* box);

// What Hopper's tensor copies must know of a tensor of 16-bit values, or of bytes: sizes and boxes from the
// innermost dimension on, strides in bytes from the second on. What lies outside is read as zeros. A box's
// rows of 128 bytes are swizzled as the products of hopper.cuh want them.
template <unsigned kNumDims>
CUtensorMap make_tensor_map(const Tensor& tensor, const cuuint64_t (&sizes)[kNumDims],
                            const cuuint64_t (&strides)[kNumDims - 1], const cuuint32_t (&box)[kNumDims]) {
  return encode_tensor_map(tensor, kNumDims, sizes, strides, box);
}

}  // namespace quire::cuda
