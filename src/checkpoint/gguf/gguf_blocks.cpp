// The blocks of GGUF's types (ggml, ggml-common.h and ggml-quants.c): how each holds codes, scales and
// minima.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/gguf/gguf_weights.h"

namespace quire {
namespace {

using Byte = std::uint8_t;
// Writes what a block has of one part.
using DecodeBlock = void (*)(const Byte* block, void* out);

// A part of each block: so many elements of a type, of which float ones stand alone.
struct BlockPart {
  WeightPart part;
  ScaleType type;  // kNone: codes
  std::int64_t elements;
  DecodeBlock decode;
};

struct BlockFormat {
  GgufType type;
  LinearFormat format;
  std::vector<BlockPart> parts;  // codes, scales, offsets, super-scales, super-minima
};

constexpr std::array<float, 16> kIq4Table = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kSuper = 256;

// The f16 at a byte of the block: as it is, negated, and as f32.
template <std::size_t kAt>
void half_at(const Byte* block, void* out) {
  std::memcpy(out, block + kAt, sizeof(Float16));
}
// A value plus m is one minus -m.
template <std::size_t kAt>
void negated_half_at(const Byte* block, void* out) {
  std::memcpy(out, block + kAt, sizeof(Float16));
  static_cast<Byte*>(out)[1] ^= 0x80U;
}
template <std::size_t kAt>
void float_of_half_at(const Byte* block, void* out) {
  Float16 half;
  std::memcpy(&half, block + kAt, sizeof(half));
  *static_cast<float*>(out) = to_float(half);
}
void byte_at_front(const Byte* block, void* out) { *static_cast<Byte*>(out) = block[0]; }

// The low nibbles of 16 bytes, then the high ones, `kFrom` bytes into the block.
template <std::size_t kFrom>
void nibbles_of_32(const Byte* block, void* out) {
  auto* codes = static_cast<Byte*>(out);
  for (std::size_t i = 0; i < 16; ++i) {
    codes[i] = block[kFrom + i] & 15U;
    codes[i + 16] = block[kFrom + i] >> 4;
  }
}

// Nibbles as above behind the fifth bits of all 32.
template <std::size_t kHigh>
void five_bits_of_32(const Byte* block, void* out) {
  nibbles_of_32<kHigh + 4>(block, out);
  auto* codes = static_cast<Byte*>(out);
  for (std::size_t i = 0; i < 32; ++i)
    codes[i] = static_cast<Byte>(codes[i] | (block[kHigh + i / 8] >> i % 8 & 1U) << 4);
}

// A part whose elements are element(block, i), each for itself.
template <std::size_t kCount, auto kElement>
void each(const Byte* block, void* out) {
  auto* elements = static_cast<decltype(kElement(block, 0))*>(out);
  for (std::size_t i = 0; i < kCount; ++i) elements[i] = kElement(block, i);
}

Byte q8_0_code(const Byte* block, std::size_t i) { return block[2 + i] ^ 0x80U; }

// Q2_K: scales and minima of 16 elements in nibbles of 16 bytes, codes of two bits in 64, two halves.
Byte q2_k_code(const Byte* block, std::size_t i) {
  return block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3U;
}
Byte q2_k_scale(const Byte* block, std::size_t i) { return block[i] & 15U; }
Byte q2_k_minimum(const Byte* block, std::size_t i) { return block[i] >> 4; }

// Q3_K: the third bits in 32 bytes, the others in 64, scales of 6 bits in 12.
Byte q3_k_code(const Byte* block, std::size_t i) {
  const unsigned low = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3U;
  return static_cast<Byte>(low | (block[i % 32] >> i / 32 & 1U) << 2);
}
std::int8_t q3_k_scale(const Byte* block, std::size_t i) {
  const int low = block[96 + i % 8] >> (i / 8 * 4) & 15;
  const int high = block[104 + i % 4] >> (i / 4 * 2) & 3;
  return static_cast<std::int8_t>((low | high << 4) - 32);
}

// Q4_K and Q5_K: eight scales and eight minima of 6 bits in the 12 bytes behind d and dmin.
Byte k_scale(const Byte* block, std::size_t i) {
  const Byte* s = block + 4;
  return static_cast<Byte>(i < 4 ? s[i] & 63U : (s[i + 4] & 15U) | (s[i - 4] >> 6) << 4);
}
Byte k_minimum(const Byte* block, std::size_t i) {
  const Byte* s = block + 8;
  return static_cast<Byte>(i < 4 ? s[i] & 63U : s[i] >> 4 | (s[i - 4] >> 6) << 4);
}
// 32 bytes hold 32 elements in their low nibbles, then 32 in the high ones.
template <std::size_t kFrom>
Byte nibble_of_256(const Byte* block, std::size_t i) {
  return block[kFrom + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15U;
}
Byte q5_k_code(const Byte* block, std::size_t i) {
  return static_cast<Byte>(nibble_of_256<48>(block, i) | (block[16 + i % 32] >> i / 32 & 1U) << 4);
}

// Q6_K: in each half of 128, four bits in 64 bytes, the two others in 32.
Byte q6_k_code(const Byte* block, std::size_t i) {
  const std::size_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
  const unsigned low = block[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15U;
  return static_cast<Byte>(low | (block[128 + half * 32 + l] >> quarter * 2 & 3U) << 4);
}
void q6_k_scales(const Byte* block, void* out) { std::memcpy(out, block + 192, 16); }

// IQ4_XS: eight scales of 6 bits, the upper two in a word, the lower four in nibbles of four bytes.
Byte iq4_xs_code(const Byte* block, std::size_t i) {
  return block[8 + i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15U;
}
std::int8_t iq4_xs_scale(const Byte* block, std::size_t i) {
  const int low = block[4 + i / 2] >> (i % 2 * 4) & 15;
  const int high = block[2 + i / 4] >> (i % 4 * 2) & 3;
  return static_cast<std::int8_t>((low | high << 4) - 32);
}

// Blocks of 32 with an f16 scale, and perhaps a minimum.
BlockFormat simple(GgufType type, int bits, int code_offset, DecodeBlock codes, bool has_minimum = false) {
  BlockFormat result = {type,
                        {.code = CodeType::kInt,
                         .bits = bits,
                         .code_offset = code_offset,
                         .block_cols = 32,
                         .scale = ScaleType::kF16},
                        {{WeightPart::kWeight, ScaleType::kNone, 32, codes},
                         {WeightPart::kScale, ScaleType::kF16, 1, half_at<0>}}};
  if (has_minimum) {
    result.format.offset = OffsetType::kMinimum;
    result.format.minimum = ScaleType::kF16;
    result.parts.push_back({WeightPart::kOffset, ScaleType::kF16, 1, negated_half_at<2>});
  }
  return result;
}

// Super-blocks of 256 with scales that are integers, and an f32 scale of these.
BlockFormat super_block(GgufType type, int bits, int code_offset, int block_cols, ScaleType scale,
                        DecodeBlock codes, DecodeBlock scales, DecodeBlock super_scale) {
  return {type,
          {.code = CodeType::kInt,
           .bits = bits,
           .code_offset = code_offset,
           .block_cols = block_cols,
           .scale = scale,
           .super_cols = kSuper},
          {{WeightPart::kWeight, ScaleType::kNone, kSuper, codes},
           {WeightPart::kScale, scale, kSuper / block_cols, scales},
           {WeightPart::kSuperScale, ScaleType::kF32, 1, super_scale}}};
}

BlockFormat with_minima(BlockFormat block, DecodeBlock minima, DecodeBlock super_minimum) {
  block.format.offset = OffsetType::kMinimum;
  block.format.minimum = ScaleType::kU8;
  block.parts.push_back({WeightPart::kOffset, ScaleType::kU8, kSuper / block.format.block_cols, minima});
  block.parts.push_back({WeightPart::kSuperMinimum, ScaleType::kF32, 1, super_minimum});
  return block;
}

BlockFormat with_table(BlockFormat block, const std::array<float, 16>& table) {
  block.format.code = CodeType::kTable;
  block.format.table = table;
  return block;
}

BlockFormat mxfp4() {
  BlockFormat block = with_table(simple(GgufType::kMxfp4, 4, 0, nibbles_of_32<1>), kE2m1Table);
  block.format.scale = ScaleType::kE8m0;
  block.parts[1] = {WeightPart::kScale, ScaleType::kE8m0, 1, byte_at_front};
  return block;
}

const BlockFormat& format_of(GgufType type) {
  using enum GgufType;
  static const std::vector<BlockFormat> formats = {
      simple(kQ8_0, 8, 128, each<32, q8_0_code>),
      simple(kQ4_0, 4, 8, nibbles_of_32<2>),
      simple(kQ4_1, 4, 0, nibbles_of_32<4>, true),
      simple(kQ5_0, 5, 16, five_bits_of_32<2>),
      simple(kQ5_1, 5, 0, five_bits_of_32<4>, true),
      with_table(simple(kIq4Nl, 4, 0, nibbles_of_32<2>), kIq4Table),
      mxfp4(),
      with_minima(super_block(kQ2_K, 2, 0, 16, ScaleType::kU8, each<kSuper, q2_k_code>, each<16, q2_k_scale>,
                              float_of_half_at<80>),
                  each<16, q2_k_minimum>, float_of_half_at<82>),
      super_block(kQ3_K, 3, 4, 16, ScaleType::kI8, each<kSuper, q3_k_code>, each<16, q3_k_scale>,
                  float_of_half_at<108>),
      with_minima(super_block(kQ4_K, 4, 0, 32, ScaleType::kU8, each<kSuper, nibble_of_256<16>>,
                              each<8, k_scale>, float_of_half_at<0>),
                  each<8, k_minimum>, float_of_half_at<2>),
      with_minima(super_block(kQ5_K, 5, 0, 32, ScaleType::kU8, each<kSuper, q5_k_code>, each<8, k_scale>,
                              float_of_half_at<0>),
                  each<8, k_minimum>, float_of_half_at<2>),
      super_block(kQ6_K, 6, 32, 16, ScaleType::kI8, each<kSuper, q6_k_code>, q6_k_scales,
                  float_of_half_at<208>),
      with_table(super_block(kIq4Xs, 4, 0, 32, ScaleType::kI8, each<kSuper, iq4_xs_code>,
                             each<8, iq4_xs_scale>, float_of_half_at<0>),
                 kIq4Table),
  };
  const auto found = std::ranges::find(formats, type, &BlockFormat::type);
  QUIRE_CHECK(found != formats.end(), "{}", block_of(type).name);
  return *found;
}

// Rows of a tensor, whose bytes are read in pieces that stay in the cache.
class GgufRows {
 public:
  GgufRows(std::string name, const GgufTensor& tensor)
      : name_(std::move(name)),
        tensor_(tensor),
        block_bytes_(block_of(tensor.type).bytes),
        blocks_per_row_(tensor.shape.back() / block_of(tensor.type).elements) {}

  // The tensor of what decode(bytes of some blocks, how many, row of the first, out) writes in its dtype, of
  // which a block holds so many elements.
  template <typename Decode>
  WeightTensorPtr as_tensor(DType dtype, std::int64_t elements, const Decode& decode) const {
    std::vector<std::int64_t> shape = {blocks_per_row_ * elements};
    if (tensor_.shape.size() > 1)
      shape.insert(shape.begin(),
                   static_cast<std::int64_t>(tensor_.bytes) / (blocks_per_row_ * block_bytes_));
    const auto read = [=, rows = *this](std::int64_t row, const Tensor& dst) {
      constexpr std::int64_t kScratchBytes = std::int64_t{64} << 10;
      const std::int64_t first = row * rows.blocks_per_row_, total = dst.dim(0) * rows.blocks_per_row_;
      const std::int64_t step = std::min(total, kScratchBytes / rows.block_bytes_);
      const bool is_same = dst.dtype() == dtype;
      std::vector<std::byte> bytes(step * rows.block_bytes_);
      std::vector<std::byte> decoded(is_same ? 0
                                             : static_cast<std::size_t>(step * elements) * size_of(dtype));
      auto* out = dst.data_as<std::byte>();
      for (std::int64_t done = 0; done < total; done += step) {
        const std::int64_t count = std::min(step, total - done);
        const auto n = static_cast<std::size_t>(count * elements);
        rows.tensor_.file->read(
            rows.tensor_.offset + static_cast<std::uint64_t>((first + done) * rows.block_bytes_),
            std::span(bytes).first(static_cast<std::size_t>(count * rows.block_bytes_)), rows.name_);
        decode(reinterpret_cast<const Byte*>(bytes.data()), count, first + done,
               is_same ? out : decoded.data());
        if (!is_same) convert(dtype, decoded.data(), dst.dtype(), out, n);
        out += n * size_of(dst.dtype());
      }
    };
    return make_weight_tensor(name_, dtype, std::move(shape), read);
  }

  WeightTensorPtr plain(DType dtype) const {
    return as_tensor(dtype, 1, [=](const Byte* bytes, std::int64_t count, std::int64_t, std::byte* out) {
      std::memcpy(out, bytes, static_cast<std::size_t>(count) * size_of(dtype));
    });
  }
  WeightTensorPtr decoded(const BlockPart& part) const {
    const DType dtype = dtype_of(part.type);
    const auto decode = [=, rows = *this](const Byte* bytes, std::int64_t count, std::int64_t first,
                                          std::byte* out) {
      for (std::int64_t i = 0; i < count; ++i) {
        part.decode(bytes + i * rows.block_bytes_, out);
        if (!is_finite(out, part.type))
          fail("{}: tensor {}: a scale of row {} is not finite", rows.tensor_.file->path(),
               in_quotes(rows.name_), (first + i) / rows.blocks_per_row_);
        out += static_cast<std::size_t>(part.elements) * size_of(dtype);
      }
    };
    return as_tensor(dtype, part.elements, decode);
  }

 private:
  static bool is_finite(const void* value, ScaleType type) {
    if (type == ScaleType::kF16) return std::isfinite(to_float(*static_cast<const Float16*>(value)));
    if (type == ScaleType::kF32) return std::isfinite(*static_cast<const float*>(value));
    return type != ScaleType::kE8m0 || *static_cast<const Byte*>(value) != 0xFFU;
  }

  std::string name_;
  GgufTensor tensor_;
  std::int64_t block_bytes_, blocks_per_row_;
};

}  // namespace

WeightGroup open_gguf_tensor(const std::string& name, const GgufTensor& tensor) {
  using enum GgufType;
  const GgufRows rows(name, tensor);
  if (tensor.type == kF32) return WeightGroup::plain(rows.plain(DType::kF32));
  if (tensor.type == kF16) return WeightGroup::plain(rows.plain(DType::kF16));
  if (tensor.type == kBF16) return WeightGroup::plain(rows.plain(DType::kBF16));
  const BlockFormat& block = format_of(tensor.type);
  WeightGroup group;
  group.format = block.format;
  for (const BlockPart& part : block.parts) group.tensors.push_back({part.part, rows.decoded(part)});
  group.rows = group.tensors.front().tensor->rows();
  group.cols = group.tensors.front().tensor->cols();
  return group;
}

}  // namespace quire
