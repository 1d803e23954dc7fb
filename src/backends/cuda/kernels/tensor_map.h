#pragma once

#include <cuda.h>

#include "base/tensor.h"

namespace quire::cuda {

// As make_tensor_map; `rank` sizes and boxes, one stride less.
CUtensorMap encode_tensor_map(const Tensor& tensor, unsigned rank, const cuuint64_t* sizes,
                              const cuuint64_t* strides, const cuuint32_t* box);

// What Hopper's tensor copies must know of a tensor of 16-bit values: sizes and boxes from the innermost
// dimension on, strides in bytes from the second on. What lies outside is read as zeros. A box's rows of 128
// bytes are swizzled as the products of hopper.cuh want them.
template <unsigned kRank>
CUtensorMap make_tensor_map(const Tensor& tensor, const cuuint64_t (&sizes)[kRank],
                            const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  return encode_tensor_map(tensor, kRank, sizes, strides, box);
}

}  // namespace quire::cuda
