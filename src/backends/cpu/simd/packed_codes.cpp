#include "backends/cpu/simd/packed_codes.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace quire {

using simd::CodedChunk;
using simd::CodedLayout;
using simd::kCodedStep;
using simd::kMaxSpan;
using simd::kPanel;
using simd::PackedCode;
using simd::round_up;

namespace {

// Signed bytes hold what these codes stand for once they are moved down by so much.
int byte_offset(const LinearFormat& format) {
  return format.code_offset == 0 && format.bits == 8 ? 128 : format.code_offset;
}

// Where the codes are moved by more than they say, the minima make up for it.
bool moves_minima(const LinearFormat& format) {
  return format.code == CodeType::kInt && format.bits > 4 && byte_offset(format) != format.code_offset;
}

// Where a column's code lies in the words of its step: its lower bits, and what is above them in the next
// word.
struct CodePlace {
  std::int64_t word;
  int bit, num_lower;
  int upper_bit;  // 0: there is nothing above
};

CodePlace place_of(PackedCode code, std::int64_t column) {
  const auto pair = static_cast<int>(column / 2), half = static_cast<int>(column % 2) * 16;
  if (code == PackedCode::k4Bits) return {0, half + pair * 4, 4, 0};
  if (code != PackedCode::k6Bits) return {0, half + pair * 8, 8, 0};
  if (pair < 6) return {pair / 2, half + pair % 2 * 6, 6, 0};
  return pair == 6 ? CodePlace{0, half + 12, 4, half + 12} : CodePlace{1, half + 14, 2, half + 12};
}

// A row's code in a column of a chunk, whose words lie `width` apart.
std::uint32_t code_at(const CodedLayout& layout, const std::uint32_t* words, std::int64_t width,
                      std::int64_t column) {
  const std::int64_t columns = step_columns(layout.code);
  const CodePlace place = place_of(layout.code, column % columns);
  words += (column / columns * step_words(layout.code) + place.word) * width;
  const std::uint32_t lower = *words >> place.bit & ((1U << place.num_lower) - 1);
  return place.upper_bit == 0 ? lower : (lower | words[width] >> place.upper_bit << place.num_lower) & 63U;
}

void put_code(const CodedLayout& layout, std::uint32_t* words, std::int64_t width, std::int64_t column,
              std::uint32_t code) {
  const std::int64_t columns = step_columns(layout.code);
  const CodePlace place = place_of(layout.code, column % columns);
  words += (column / columns * step_words(layout.code) + place.word) * width;
  *words |= (code & ((1U << place.num_lower) - 1)) << place.bit;
  if (place.upper_bit != 0) words[width] |= (code & 63U) >> place.num_lower << place.upper_bit;
}

float value_of(const CodedLayout& layout, std::uint32_t code) {
  if (layout.code == PackedCode::k4Bits) return layout.table[code];
  if (layout.code == PackedCode::kE4m3) return from_e4m3(static_cast<std::uint8_t>(code));
  const int unused = layout.code == PackedCode::k6Bits ? 26 : 24;
  return static_cast<float>(static_cast<std::int32_t>(code << unused) >> unused);
}

PackedCode code_of(const LinearFormat& format, std::int64_t group, std::int64_t cols) {
  if (format.code == CodeType::kE4m3) return PackedCode::kE4m3;
  if (format.bits <= 4) return PackedCode::k4Bits;
  const int last = (1 << format.bits) - 1 - byte_offset(format);
  const bool fits = last < 32 && byte_offset(format) <= 32 && group % 16 == 0 && cols % 16 == 0;
  return fits ? PackedCode::k6Bits : PackedCode::k8Bits;
}

bool is_bf16(float value) { return to_float(from_float<BFloat16>(value)) == value; }

// One of some stored scales.
float scale_at(ScaleType type, const std::byte* scales, std::int64_t i) {
  float value;
  read_scales(type, scales + i * simd::scale_bytes(type), 1, &value);
  return value;
}

}  // namespace

// What is read of a panel's rows, to be packed.
struct PackedCodes::PanelRows {
  std::vector<std::uint8_t> codes;                // [rows, in_features]
  std::vector<std::byte> scales, offsets;         // [rows, blocks]
  std::vector<float> super_scales, super_minima;  // [rows, super-blocks]
};

CodedLayout PackedCodes::layout_of(const QuantizedRows& matrix) {
  const LinearFormat& format = matrix.format;
  const auto refuse = [&](std::int64_t columns) {
    fail("tensor {}: blocks of {} columns, which this backend does not support; multiples of {} are",
         matrix.codes->name(), columns, kCodedStep);
  };
  CodedLayout layout = {};
  layout.group = matrix.num_blocks() == 1        ? std::min(kMaxSpan, round_up(matrix.cols, kCodedStep))
                 : format.block_cols <= kMaxSpan ? format.block_cols
                                                 : std::gcd(format.block_cols, kMaxSpan);
  if (layout.group % kCodedStep != 0) refuse(format.block_cols);
  layout.code = code_of(format, layout.group, matrix.cols);
  if (layout.code == PackedCode::k4Bits) {
    const std::array<float, 256> values = code_values(format);
    std::copy_n(values.begin(), 16, layout.table);
  }
  layout.span = kMaxSpan / layout.group * layout.group;
  if (matrix.num_supers() > 1) {
    layout.span = std::gcd(layout.span, format.super_cols);
    if (layout.span % layout.group != 0) refuse(format.super_cols);
  }
  layout.input = format.input;
  layout.input_block = format.input.in_blocks ? format.block_cols : matrix.cols;
  layout.scale = format.scale;
  layout.offset = format.offset;
  layout.minimum = format.minimum;
  layout.has_super_scales = matrix.super_scales != nullptr;
  layout.has_super_minima = matrix.super_minima != nullptr;
  if (moves_minima(format)) {
    layout.offset = OffsetType::kMinimum;
    layout.minimum = ScaleType::kF32;
    layout.has_super_minima = false;
  }
  layout.whole_rows =
      matrix.num_blocks() == 1 && layout.offset == OffsetType::kNone && !layout.has_super_scales;
  QUIRE_CHECK(layout.input.code == InputFormat::Code::kNone || layout.offset == OffsetType::kNone);
  check_input_columns(format, matrix.cols, matrix.codes->name());
  return layout;
}

std::size_t PackedCodes::packed_bytes(const QuantizedRows& matrix) {
  const CodedLayout layout = layout_of(matrix);
  const std::int64_t columns = round_up(matrix.cols, kCodedStep);
  const std::int64_t rest = round_up(matrix.rows % kPanel, simd::kPanelStep);
  return static_cast<std::size_t>(matrix.rows / kPanel * coded_panel_bytes(layout, kPanel, columns) +
                                  (rest == 0 ? 0 : coded_panel_bytes(layout, rest, columns)));
}

PackedCodes::PackedCodes(Buffer buffer, const QuantizedRows& matrix, ThreadPool& pool)
    : PanelWeights(std::move(buffer), DType::kBF16, matrix.rows, matrix.cols), layout_(layout_of(matrix)) {
  if (!std::all_of(layout_.table, layout_.table + 16, is_bf16)) dtype_ = DType::kF32;
  pool.run_ranges(num_panels(), [&](std::int64_t begin, std::int64_t end) {
    PanelRows rows;
    for (std::int64_t panel = begin; panel < end; ++panel) pack_panel(matrix, panel, rows);
  });
}

std::byte* PackedCodes::panel_at(std::int64_t panel) const {
  return buffer() + panel * coded_panel_bytes(layout_, kPanel, padded());
}

void PackedCodes::pack_panel(const QuantizedRows& matrix, std::int64_t panel, PanelRows& rows) {
  const LinearFormat& format = matrix.format;
  const std::int64_t first = panel * kPanel, width = panel_width(panel);
  const std::int64_t count = std::min(kPanel, out_features() - first), cols = in_features();
  const std::int64_t num_blocks = matrix.num_blocks(), num_supers = matrix.num_supers();
  const auto read = [&](const WeightTensorPtr& tensor, auto& to, std::int64_t n) {
    using T = typename std::remove_reference_t<decltype(to)>::value_type;
    if (tensor == nullptr) return;
    to.resize(static_cast<std::size_t>(count * n) * size_of(tensor->dtype()) / sizeof(T));
    tensor->read_rows(first, Tensor(to.data(), tensor->dtype(), {count, n}));
  };
  read(matrix.codes, rows.codes, cols);
  if (format.code == CodeType::kE4m3 &&
      std::ranges::any_of(rows.codes, [](std::uint8_t code) { return (code & 0x7F) == 0x7F; }))
    fail("tensor {} holds a value that is not a number", matrix.codes->name());
  read(matrix.scales, rows.scales, num_blocks);
  read(matrix.super_scales, rows.super_scales, num_supers);
  ScaleType offset_type = format.offset == OffsetType::kZero ? ScaleType::kU8 : format.minimum;
  if (moves_minima(format)) {
    offset_type = ScaleType::kF32;
    std::vector<float> scales(count * num_blocks), minima(scales.size());
    read_block_scales(matrix, first, count, scales.data(), minima.data());
    for (std::size_t i = 0; i < minima.size(); ++i)
      minima[i] -= static_cast<float>(byte_offset(format)) * scales[i];
    const auto bytes = std::as_bytes(std::span(minima));
    rows.offsets.assign(bytes.begin(), bytes.end());
  } else {
    read(matrix.offsets, rows.offsets, num_blocks);
    read(matrix.super_minima, rows.super_minima, num_supers);
  }
  const bool is_moved = layout_.code == PackedCode::k6Bits || layout_.code == PackedCode::k8Bits;
  const int moved = is_moved ? byte_offset(format) : 0;
  std::byte* chunk = panel_at(panel);
  for (std::int64_t k = 0; k < padded(); k += layout_.span) {
    const std::int64_t columns = std::min(layout_.span, padded() - k);
    const CodedChunk parts(layout_, width, columns);
    std::memset(chunk, 0, static_cast<std::size_t>(parts.end));
    for (std::int64_t row = 0; row < count; ++row) {
      const auto put_supers = [&](const std::vector<float>& supers, std::int64_t at) {
        const std::int64_t i = row * num_supers + k / format.super_cols;
        std::memcpy(chunk + at + row * 4, &supers[i], 4);
      };
      if (layout_.has_super_scales) put_supers(rows.super_scales, 0);
      if (layout_.has_super_minima) put_supers(rows.super_minima, parts.super_minima);
      for (std::int64_t group = 0; group * layout_.group < columns; ++group) {
        const std::int64_t from = row * num_blocks + (k + group * layout_.group) / format.block_cols;
        const auto put = [&](ScaleType type, const std::vector<std::byte>& stored, std::int64_t at) {
          const std::int64_t bytes = simd::scale_bytes(type);
          std::memcpy(chunk + at + (group * width + row) * bytes, &stored[from * bytes],
                      static_cast<std::size_t>(bytes));
        };
        put(layout_.scale, rows.scales, parts.scales);
        if (layout_.offset != OffsetType::kNone) put(offset_type, rows.offsets, parts.offsets);
      }
      auto* words = reinterpret_cast<std::uint32_t*>(chunk + parts.codes);
      const std::uint8_t* codes = &rows.codes[row * cols + k];
      for (std::int64_t i = 0; i < std::min(columns, cols - k); ++i)
        put_code(layout_, words + row, width, i, static_cast<std::uint8_t>(codes[i] - moved));
    }
    chunk += parts.end;
  }
}

void PackedCodes::read_row(std::int64_t row, float* out) const {
  const std::int64_t panel = row / kPanel, width = panel_width(panel), i = row % kPanel;
  const std::byte* chunk = panel_at(panel);
  const auto float_at = [&](std::int64_t place) {
    float value;
    std::memcpy(&value, chunk + place + i * 4, sizeof(value));
    return value;
  };
  for (std::int64_t k = 0; k < in_features(); k += layout_.span) {
    const CodedChunk parts(layout_, width, std::min(layout_.span, padded() - k));
    const auto* words = reinterpret_cast<const std::uint32_t*>(chunk + parts.codes);
    for (std::int64_t col = 0; col < std::min(layout_.span, in_features() - k); ++col) {
      const std::int64_t place = col / layout_.group * width + i;
      float scale = scale_at(layout_.scale, chunk + parts.scales, place);
      if (layout_.has_super_scales) scale *= float_at(0);
      float minimum = 0;
      if (layout_.offset == OffsetType::kZero)
        minimum = scale_at(ScaleType::kU8, chunk + parts.offsets, place) * scale;
      if (layout_.offset == OffsetType::kMinimum)
        minimum = scale_at(layout_.minimum, chunk + parts.offsets, place);
      if (layout_.has_super_minima) minimum *= float_at(parts.super_minima);
      const float value = value_of(layout_, code_at(layout_, words + i, width, col));
      out[k + col] = scale * value - minimum;
    }
    chunk += parts.end;
  }
}

}  // namespace quire
