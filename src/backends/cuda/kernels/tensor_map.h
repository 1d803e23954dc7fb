#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

#include "base/tensor.h"

namespace quire::cuda {

// What Hopper's tensor copies must know of a tensor of 16-bit values, or of bytes: sizes and boxes from the
// innermost dimension on, strides in bytes from the second on. What lies outside is read as zeros. A box's
// rows of 128 bytes are swizzled as the products of hopper.cuh want them.
CUtensorMap make_tensor_map(const Tensor& tensor, std::initializer_list<std::int64_t> sizes,
                            std::initializer_list<std::int64_t> strides, std::initializer_list<int> box);
// Of a row-major matrix, in boxes of so many rows.
CUtensorMap map_rows(const Tensor& matrix, int box_rows);
// Of a weight, for copies in four dimensions, the last two of one element. Where gate_rows is not 0, the
// weight holds gates of so many rows, each in front of its up, and a box 8 rows of a gate, the 8 of up that
// belong to them, and so on.
CUtensorMap map_weight(const Tensor& weight, int box_rows, std::int64_t gate_rows);

// Both operands of a product.
struct ProductMaps {
  CUtensorMap weight;
  CUtensorMap x;
};

}  // namespace quire::cuda
