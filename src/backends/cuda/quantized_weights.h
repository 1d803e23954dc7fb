#pragma once

#include <span>
#include <vector>

#include "backends/cuda/kernels/quantized.h"
#include "ops/ops.h"

namespace quire::cuda {

// How the matrix of groups that are alike lies in the device's memory. Error that names it where its format
// is not supported.
QuantizedLayout quantized_layout(std::span<const WeightGroup> parts);
// Bytes of that: the tiles, the rows' scales, and what codes stand for.
std::size_t quantized_bytes(const QuantizedLayout& layout);

// The tiles, u8 [rows of tiles, layout.row_bytes()], which are packed as they are read.
WeightTensorPtr quantized_tiles(QuantizedRows matrix, const QuantizedLayout& layout);
// What lies behind them.
std::vector<std::byte> quantized_tail(const QuantizedRows& matrix, const QuantizedLayout& layout);
// What kernels see of a matrix whose tiles begin at `device`.
QuantizedMatrix quantized_matrix(const void* device, const QuantizedLayout& layout,
                                 const LinearFormat& format);

}  // namespace quire::cuda
