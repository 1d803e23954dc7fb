#include "backends/cuda/quantized_weights.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace quire::cuda {
namespace {

constexpr int kTileRows = QuantizedLayout::kTileRows;
constexpr int kTileColumns = QuantizedLayout::kTileColumns;
constexpr int kStepColumns = QuantizedLayout::kStepColumns;

ScaleKind kind_of(ScaleType type) {
  if (type == ScaleType::kNone) return ScaleKind::kNone;
  if (type == ScaleType::kF32) return ScaleKind::kF32;
  return type == ScaleType::kF16 ? ScaleKind::kF16 : ScaleKind::kByte;
}

int bytes_of(ScaleKind kind) {
  return kind == ScaleKind::kNone ? 0 : kind == ScaleKind::kByte ? 1 : kind == ScaleKind::kF16 ? 2 : 4;
}

std::size_t tiles_bytes(const QuantizedLayout& layout) {
  return static_cast<std::size_t>(layout.row_tiles() * layout.row_bytes());
}
std::size_t row_scale_bytes(const QuantizedLayout& layout) {
  return layout.has_row_scales ? static_cast<std::size_t>(layout.row_tiles() * kTileRows) * sizeof(float) : 0;
}

// Scales and minima are read as float32, with all that belongs to them worked in.
bool is_folded(const QuantizedLayout& layout, const LinearFormat& format) {
  return format.super_cols != 0 && !layout.has_supers && !layout.has_row_scales;
}

CodeKind code_kind(const LinearFormat& format, const std::string& name) {
  if (format.code == CodeType::kE4m3) return CodeKind::kE4m3;
  if (format.code == CodeType::kTable)
    return format.table == kE2m1Table ? CodeKind::kE2m1 : CodeKind::kTable4;
  const bool is_4_bits = format.bits <= 4;
  // What is added to codes of 8 bits must be exact in bfloat16.
  if (format.code_offset < 0 || format.code_offset > (is_4_bits ? 16 : 254) ||
      (!is_4_bits && format.code_offset % 2 != 0))
    fail("{}: codes of {} bits less {} are not supported on CUDA", name, format.bits, format.code_offset);
  return is_4_bits ? CodeKind::kInt4 : CodeKind::kInt8;
}

// Packs the codes of a row of tiles.
class TilePacker {
 public:
  TilePacker(const QuantizedLayout& layout, std::byte* tiles) : layout_(layout), tiles_(tiles) {}

  // Of row `row` of the tiles.
  void put_codes(int row, const std::uint8_t* codes) const {
    const int half = row / 8;
    for (int col = 0; col < layout_.cols; ++col) {
      const int in_tile = col % kTileColumns;
      const int step = in_tile / kStepColumns;
      const int lane = row % 8 * 4 + in_tile % kStepColumns / 4;
      const int element = in_tile % 4;
      const int place = half + element / 2 * 2;  // a register of the operand
      auto* tile =
          reinterpret_cast<std::uint8_t*>(tiles_) + std::int64_t{col / kTileColumns} * layout_.tile_bytes;
      if (layout_.is_4_bits()) {
        const int nibble =
            layout_.code == CodeKind::kTable4 ? 2 * place + element % 2 : place + element % 2 * 4;
        std::uint8_t& byte = tile[step / 4 * 512 + lane * 16 + step % 4 * 4 + nibble / 2];
        byte = static_cast<std::uint8_t>(byte | codes[col] << (nibble % 2 * 4));
      } else {
        tile[step / 2 * 512 + lane * 16 + step % 2 * 8 + element / 2 * 4 + half + element % 2 * 2] =
            codes[col];
      }
    }
  }
  // values: of `count` rows, of elements of `size` bytes, one for each `block_cols` columns; to blocks of
  // `packed_cols` of each tile, from `at` on.
  void put_values(int count, const void* values, int size, std::int64_t block_cols, int packed_cols,
                  int at) const {
    const std::int64_t num_blocks = (layout_.cols + block_cols - 1) / block_cols;
    for (int row = 0; row < count; ++row) {
      const std::byte* from = static_cast<const std::byte*>(values) + row * num_blocks * size;
      for (int col = 0; col < layout_.cols; col += packed_cols) {
        const int block = col % kTileColumns / packed_cols;
        std::byte* to = tiles_ + std::int64_t{col / kTileColumns} * layout_.tile_bytes + at +
                        std::ptrdiff_t{block * kTileRows + row % 8 * 2 + row / 8} * size;
        std::memcpy(to, from + col / block_cols * size, static_cast<std::size_t>(size));
      }
    }
  }

 private:
  const QuantizedLayout& layout_;
  std::byte* tiles_;
};

// A row of tiles.
void pack_row(const QuantizedRows& matrix, const QuantizedLayout& layout, std::int64_t row_tile,
              std::byte* tiles) {
  std::memset(tiles, 0, static_cast<std::size_t>(layout.row_bytes()));
  const std::int64_t first = row_tile * kTileRows;
  const auto count = static_cast<int>(std::min<std::int64_t>(kTileRows, matrix.rows - first));
  const TilePacker packer(layout, tiles);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * matrix.cols));
  matrix.codes->read_rows(first, Tensor(codes.data(), DType::kU8, {count, matrix.cols}));
  for (int row = 0; row < count; ++row) packer.put_codes(row, codes.data() + row * matrix.cols);
  const LinearFormat& format = matrix.format;
  const int packed = kStepColumns << layout.block_log2;
  if (is_folded(layout, format)) {
    std::vector<float> scales(static_cast<std::size_t>(count * matrix.num_blocks())), minima(scales.size());
    read_block_scales(matrix, first, count, scales.data(), minima.data());
    packer.put_values(count, scales.data(), 4, format.block_cols, packed, layout.scale_at);
    if (layout.minimum != ScaleKind::kNone)
      packer.put_values(count, minima.data(), 4, format.block_cols, packed, layout.minimum_at);
    return;
  }
  const auto put = [&](const WeightTensorPtr& tensor, std::int64_t block_cols, int packed_cols, int at) {
    const std::int64_t blocks = (matrix.cols + block_cols - 1) / block_cols;
    const auto size = static_cast<int>(size_of(tensor->dtype()));
    std::vector<std::byte> values(static_cast<std::size_t>(count * blocks * size));
    tensor->read_rows(first, Tensor(values.data(), tensor->dtype(), {count, blocks}));
    packer.put_values(count, values.data(), size, block_cols, packed_cols, at);
  };
  if (layout.scale != ScaleKind::kNone) put(matrix.scales, format.block_cols, packed, layout.scale_at);
  if (layout.minimum != ScaleKind::kNone) put(matrix.offsets, format.block_cols, packed, layout.minimum_at);
  if (!layout.has_supers) return;
  put(matrix.super_scales, format.super_cols, kTileColumns, layout.super_at);
  if (format.offset == OffsetType::kMinimum)
    put(matrix.super_minima, format.super_cols, kTileColumns, layout.super_minimum_at);
}

}  // namespace

QuantizedLayout quantized_layout(std::span<const WeightGroup> parts) {
  const QuantizedRows matrix = quantized_rows(parts);
  const LinearFormat& format = matrix.format;
  QuantizedLayout layout;
  layout.code = code_kind(format, parts.front().name());
  layout.code_offset = format.code == CodeType::kInt ? format.code_offset : 0;
  layout.rows = static_cast<int>(matrix.rows);
  layout.cols = static_cast<int>(matrix.cols);
  const bool whole_rows = format.block_cols >= matrix.cols;
  const bool whole_supers = format.super_cols >= matrix.cols;
  const std::int64_t block =
      whole_rows ? kTileColumns : std::gcd(format.block_cols, std::int64_t{kTileColumns});
  if (block < kStepColumns)
    fail("{}: blocks of {} columns are not supported on CUDA", parts.front().name(), format.block_cols);
  layout.block_log2 =
      std::countr_zero(static_cast<unsigned>(block)) - std::countr_zero(unsigned{kStepColumns});
  layout.scale = kind_of(format.scale);
  if (format.offset == OffsetType::kZero) layout.minimum = ScaleKind::kByte;
  if (format.offset == OffsetType::kMinimum) layout.minimum = kind_of(format.minimum);
  layout.is_zero = format.offset == OffsetType::kZero;
  if (format.offset == OffsetType::kNone && whole_rows && (format.super_cols == 0 || whole_supers)) {
    layout.scale = ScaleKind::kNone;
    layout.has_row_scales = true;
  } else if (format.super_cols != 0) {
    layout.has_row_scales = whole_supers && format.offset != OffsetType::kMinimum;
    layout.has_supers = !layout.has_row_scales && (whole_supers || format.super_cols % kTileColumns == 0) &&
                        (format.offset != OffsetType::kMinimum || matrix.super_minima != nullptr);
    if (!layout.has_supers && !layout.has_row_scales) {
      layout.scale = ScaleKind::kF32;
      if (layout.minimum != ScaleKind::kNone) layout.minimum = ScaleKind::kF32;
      layout.is_zero = false;
    }
  }
  const bool is_integer = layout.code == CodeKind::kInt4 || layout.code == CodeKind::kInt8;
  if (layout.minimum != ScaleKind::kNone && !is_integer)
    fail("{}: minima or zero points of codes that are no integers are not supported on CUDA",
         parts.front().name());
  const int blocks = kTileColumns / static_cast<int>(block);
  layout.scale_at = kTileRows * kTileColumns / (layout.is_4_bits() ? 2 : 1);
  layout.minimum_at = layout.scale_at + blocks * kTileRows * bytes_of(layout.scale);
  layout.super_at = layout.minimum_at + blocks * kTileRows * bytes_of(layout.minimum);
  layout.super_minimum_at = layout.super_at + (layout.has_supers ? kTileRows * 4 : 0);
  const bool super_minima = layout.has_supers && format.offset == OffsetType::kMinimum;
  layout.tile_bytes = layout.super_minimum_at + (super_minima ? kTileRows * 4 : 0);
  return layout;
}

std::size_t quantized_bytes(const QuantizedLayout& layout) {
  return tiles_bytes(layout) + row_scale_bytes(layout) + sizeof(QuantizedValues);
}

WeightTensorPtr quantized_tiles(QuantizedRows matrix, const QuantizedLayout& layout) {
  const std::string name = matrix.codes->name();
  return make_weight_tensor(name, DType::kU8, {layout.row_tiles(), layout.row_bytes()},
                            [matrix = std::move(matrix), layout](std::int64_t row, const Tensor& dst) {
                              for (std::int64_t i = 0; i < dst.dim(0); ++i)
                                pack_row(matrix, layout, row + i, dst.rows(i, 1).data_as<std::byte>());
                            });
}

std::vector<std::byte> quantized_tail(const QuantizedRows& matrix, const QuantizedLayout& layout) {
  std::vector<std::byte> tail(row_scale_bytes(layout) + sizeof(QuantizedValues));
  auto* row_scales = reinterpret_cast<float*>(tail.data());
  if (layout.has_row_scales && layout.scale == ScaleKind::kNone) {
    read_block_scales(matrix, 0, matrix.rows, row_scales, nullptr);
  } else if (layout.has_row_scales) {
    matrix.super_scales->read_rows(0, Tensor(row_scales, DType::kF32, {matrix.rows, 1}));
  }
  const LinearFormat& format = matrix.format;
  auto& values = *reinterpret_cast<QuantizedValues*>(tail.data() + row_scale_bytes(layout));
  std::array<std::uint8_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  if (layout.scale == ScaleKind::kByte) read_scales(format.scale, bytes.data(), 256, values.scale);
  if (layout.minimum == ScaleKind::kByte)
    read_scales(layout.is_zero ? ScaleType::kU8 : format.minimum, bytes.data(), 256, values.minimum);
  std::ranges::copy(code_values(format), values.code);
  return tail;
}

QuantizedMatrix quantized_matrix(const void* device, const QuantizedLayout& layout,
                                 const LinearFormat& format) {
  QuantizedMatrix matrix;
  matrix.layout = layout;
  matrix.tiles = static_cast<const std::uint8_t*>(device);
  const std::uint8_t* next = matrix.tiles + tiles_bytes(layout);
  if (layout.has_row_scales) matrix.row_scales = reinterpret_cast<const float*>(next);
  matrix.values = reinterpret_cast<const QuantizedValues*>(next + row_scale_bytes(layout));
  const auto fill = [&](DType dtype, std::array<std::uint32_t, 8>& table) {
    for (std::size_t i = 0; i < format.table.size(); ++i) {
      std::uint16_t bits = 0;
      convert(DType::kF32, &format.table[i], dtype, &bits, 1);
      table[i / 4] |= std::uint32_t{bits & 0xFFU} << (i % 4 * 8);
      table[4 + i / 4] |= static_cast<std::uint32_t>(bits >> 8) << (i % 4 * 8);
    }
  };
  if (layout.code == CodeKind::kTable4) {
    fill(DType::kBF16, matrix.table_bf16);
    fill(DType::kF16, matrix.table_f16);
  }
  return matrix;
}

}  // namespace quire::cuda
