#pragma once

#include "backends/cuda/kernels/quantized_tile.cuh"

// Values of quantised matrices one by one, in float32, for what must not be fast.
namespace quire::cuda {

// Where a lane's 8 codes of a step lie, and what they are: registers 0 and 2 are of row g, 1 and 3 of g + 8.
struct StepCodes {
  std::uint32_t words[2];

  __device__ StepCodes(const QuantizedLayout& layout, const std::uint8_t* tile, int step, int lane) {
    if (layout.is_4_bits()) {
      words[0] = *reinterpret_cast<const std::uint32_t*>(tile + step / 4 * 512 + lane * 16 + step % 4 * 4);
      words[1] = 0;
    } else {
      const uint2 pair = *reinterpret_cast<const uint2*>(tile + step / 2 * 512 + lane * 16 + step % 2 * 8);
      words[0] = pair.x;
      words[1] = pair.y;
    }
  }
  // The code of row g + 8 * half at the lane's column i of 4.
  __device__ int code(const QuantizedLayout& layout, int half, int i) const {
    const int a = half + i / 2 * 2;  // the register
    if (!layout.is_4_bits()) return words[i / 2] >> (half * 8 + i % 2 * 16) & 0xFF;
    const int nibble = layout.code == CodeKind::kTable4 ? 2 * a + i % 2 : a + i % 2 * 4;
    return words[0] >> (nibble * 4) & 0xF;
  }
};

// One row's scale and minimum at a step of a tile.
struct RowScale {
  float scale;
  float minimum = 0;

  __device__ RowScale(const QuantizedMatrix& matrix, const std::uint8_t* tile, std::int64_t row, int step) {
    const QuantizedLayout& layout = matrix.layout;
    const int g = static_cast<int>(row % 8);
    const bool second = row % QuantizedLayout::kTileRows >= 8;
    const BlockScales<1, true> pairs(layout, tile, g, matrix.values->scale, matrix.values->minimum, step);
    scale = second ? pairs.scales[0].y : pairs.scales[0].x;
    minimum = second ? pairs.minima[0].y : pairs.minima[0].x;
    if (matrix.row_scales != nullptr) scale *= matrix.row_scales[row];
  }
};

__device__ inline const std::uint8_t* tile_of(const QuantizedMatrix& matrix, std::int64_t row, int column) {
  return matrix.tiles + row / QuantizedLayout::kTileRows * matrix.layout.row_bytes() +
         std::int64_t{column / QuantizedLayout::kTileColumns} * matrix.layout.tile_bytes;
}

// Four neighbours of a row, from column on, a multiple of 4.
__device__ inline float4 four_values(const QuantizedMatrix& matrix, std::int64_t row, int column) {
  const std::uint8_t* tile = tile_of(matrix, row, column);
  const int step = column % QuantizedLayout::kTileColumns / QuantizedLayout::kStepColumns;
  const int lane = static_cast<int>(row % 8) * 4 + column % QuantizedLayout::kStepColumns / 4;
  const StepCodes codes(matrix.layout, tile, step, lane);
  const RowScale scale(matrix, tile, row, step);
  const int half = row % QuantizedLayout::kTileRows >= 8 ? 1 : 0;
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = matrix.values->code[codes.code(matrix.layout, half, i)];
    values[i] = fmaf(scale.scale, value, -scale.minimum);
  }
  return make_float4(values[0], values[1], values[2], values[3]);
}

}  // namespace quire::cuda
