#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/linear_format.h"
#include "parity/ops_fixtures.h"

namespace quire::testing {

struct PagedShape {
  int heads, kv_heads, dim, block_size;
};

// Sequences over a paged cache in which what no sequence owns is NaN.
class PagedBatch {
 public:
  struct Span {
    int context_before, num_tokens;
  };

  PagedBatch(const PagedShape& shape, const std::vector<Span>& spans, DType dtype, std::mt19937& random)
      : shape_(shape), dtype_(dtype) {
    int blocks = 0;
    for (const Span& span : spans) {
      const int length = span.context_before + span.num_tokens;
      max_blocks_ = std::max(max_blocks_, length / shape.block_size + 1);
      blocks += length / shape.block_size + 1;
      batch.max_seq_len = std::max(batch.max_seq_len, length);
      batch.max_query_len = std::max(batch.max_query_len, span.num_tokens);
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    tables_.resize(spans.size() * static_cast<std::size_t>(max_blocks_));
    starts_ = {0};
    for (std::size_t s = 0; s < spans.size(); ++s) {
      const int length = spans[s].context_before + spans[s].num_tokens;
      for (int i = 0; i <= length / shape.block_size; ++i) {
        tables_[s * static_cast<std::size_t>(max_blocks_) + static_cast<std::size_t>(i)] = ids.back();
        ids.pop_back();
      }
      lengths_.push_back(length);
      rows_.push_back(static_cast<std::int32_t>(s));
      starts_.push_back(starts_.back() + spans[s].num_tokens);
      for (int position = spans[s].context_before; position < length; ++position) {
        positions_.push_back(position);
        slots_.push_back(slot_of(s, position));
      }
    }
    memory_ = std::make_unique<Matrix>(dtype, std::int64_t{blocks} * shape.kv_heads * 2 * shape.block_size,
                                       shape.dim, random);
    cache = view(*memory_);
    poison(spans.size());
    batch.num_sequences = static_cast<int>(spans.size());
    batch.num_tokens = starts_.back();
    batch.query_starts = ints(starts_);
    batch.seq_lens = ints(lengths_);
    batch.table_rows = ints(rows_);
    batch.positions = ints(positions_);
    batch.slot_mapping = ints(slots_);
    batch.block_tables = Tensor(tables_.data(), DType::kI32, {std::ssize(spans), max_blocks_});
  }

  // The cache's layout over other memory.
  KvCacheLayer view(const Matrix& memory) const {
    const std::int64_t half = std::int64_t{shape_.block_size} * shape_.dim;
    const std::int64_t blocks = memory.tensor().numel() / (shape_.kv_heads * 2 * half);
    const auto at = [&](std::int64_t offset) {
      return Tensor(memory.tensor().data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(dtype_),
                    dtype_, {blocks, shape_.kv_heads, shape_.block_size, shape_.dim})
          .with_strides({shape_.kv_heads * 2 * half, 2 * half, shape_.dim, 1});
    };
    return {at(0), at(half)};
  }
  const Matrix& memory() const { return *memory_; }
  // What attention is planned for; a step may be a part of this batch.
  AttentionShape attention_shape() const {
    return {.num_heads = shape_.heads,
            .num_kv_heads = shape_.kv_heads,
            .head_dim = shape_.dim,
            .block_size = shape_.block_size,
            .max_num_seqs = batch.num_sequences,
            .max_num_tokens = batch.num_tokens,
            .max_seq_len = batch.max_seq_len,
            .window = window_};
  }

  // No query of this batch sees what lies before `window` positions: tables name no blocks there.
  void drop_blocks_before(int window) {
    window_ = window;
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
      const int first = lengths_[s] - (starts_[s + 1] - starts_[s]) + 1 - window;
      const int dropped = std::max(0, first) / shape_.block_size;
      std::fill_n(tables_.begin() + static_cast<std::ptrdiff_t>(s) * max_blocks_, dropped, -(1 << 28));
    }
  }

  KvCacheLayer cache;
  AttentionBatch batch;

 private:
  std::int32_t slot_of(std::size_t sequence, int position) const {
    const auto index = sequence * static_cast<std::size_t>(max_blocks_) +
                       static_cast<std::size_t>(position / shape_.block_size);
    return tables_[index] * shape_.block_size + position % shape_.block_size;
  }
  // Positions from a sequence's length to the end of its last block hold NaN.
  void poison(std::size_t sequences) {
    const float nan = NAN;
    for (std::size_t s = 0; s < sequences; ++s) {
      const int end = (lengths_[s] / shape_.block_size + 1) * shape_.block_size;
      for (int position = lengths_[s]; position < end; ++position) {
        const std::int32_t slot = slot_of(s, position);
        for (const Tensor& half : {cache.keys, cache.values}) {
          for (int head = 0; head < shape_.kv_heads; ++head) {
            for (int i = 0; i < shape_.dim; ++i) {
              const std::int64_t offset = slot / shape_.block_size * half.stride(0) + head * half.stride(1) +
                                          slot % shape_.block_size * half.stride(2) + i;
              convert(DType::kF32, &nan, dtype_,
                      half.data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(dtype_), 1);
            }
          }
        }
      }
    }
  }

  PagedShape shape_;
  DType dtype_;
  int max_blocks_ = 0;
  int window_ = 0;
  std::unique_ptr<Matrix> memory_;
  std::vector<std::int32_t> tables_, starts_, lengths_, rows_, positions_, slots_;
};

// A cache of codes with the blocks of another one, whose rows it holds, each with its own scale.
class CodedCache {
 public:
  CodedCache(const KvCacheLayer& cache, CacheCode code) {
    const Tensor& keys = cache.keys;
    const std::int64_t size = keys.dim(2), dim = keys.dim(3);
    const std::int64_t head = 2 * size * (dim + 4), block = keys.dim(1) * head;
    memory_.resize(static_cast<std::size_t>(keys.dim(0) * block));
    const auto part = [&](std::int64_t at, DType dtype, std::int64_t width) {
      const auto bytes = static_cast<std::int64_t>(size_of(dtype));
      return Tensor(memory_.data() + at, dtype, {keys.dim(0), keys.dim(1), size, width})
          .with_strides({block / bytes, head / bytes, width, 1});
    };
    layer = {part(0, DType::kU8, dim), part(size * dim, DType::kU8, dim), code,
             part(2 * size * dim, DType::kF32, 1), part(2 * size * dim + 4 * size, DType::kF32, 1)};
    fill(cache.keys, layer.keys, layer.key_scales);
    fill(cache.values, layer.values, layer.value_scales);
  }

  // Row `offset` of a (block, head), as numbers.
  std::vector<float> row(const Tensor& codes, const Tensor& scales, std::int64_t block, std::int64_t head,
                         std::int64_t offset) const {
    const auto* from = codes.data_as<const std::uint8_t>() + block * codes.stride(0) +
                       head * codes.stride(1) + offset * codes.stride(2);
    const float scale = *scale_at(scales, block, head, offset);
    std::vector<float> values;
    for (std::int64_t i = 0; i < codes.dim(3); ++i)
      values.push_back(scale * (layer.code == CacheCode::kE4m3 ? from_e4m3(from[i]) : from_e5m2(from[i])));
    return values;
  }
  static float* scale_at(const Tensor& scales, std::int64_t block, std::int64_t head, std::int64_t offset) {
    return scales.data_as<float>() + block * scales.stride(0) + head * scales.stride(1) + offset;
  }
  const std::vector<std::byte>& bytes() const { return memory_; }
  void set_bytes(const std::vector<std::byte>& bytes) { memory_ = bytes; }

  KvCacheLayer layer;

 private:
  void fill(const Tensor& from, const Tensor& codes, const Tensor& scales) const {
    std::vector<float> x(static_cast<std::size_t>(from.dim(3)));
    for (std::int64_t row = 0; row < from.dim(0) * from.dim(1) * from.dim(2); ++row) {
      const std::int64_t offset = row % from.dim(2), head = row / from.dim(2) % from.dim(1);
      const std::int64_t block = row / from.dim(2) / from.dim(1);
      const auto place = [&](const Tensor& half) {
        return block * half.stride(0) + head * half.stride(1) + offset * half.stride(2);
      };
      convert(from.dtype(),
              from.data_as<std::byte>() + static_cast<std::size_t>(place(from)) * size_of(from.dtype()),
              DType::kF32, x.data(), x.size());
      float largest = 0;
      for (const float value : x) largest = std::isnan(value) ? value : std::max(largest, std::fabs(value));
      const float scale = row_scale(largest, layer.code);
      *scale_at(scales, block, head, offset) = scale;
      for (std::size_t i = 0; i < x.size(); ++i)
        codes.data_as<std::uint8_t>()[place(codes) + static_cast<std::int64_t>(i)] =
            layer.code == CacheCode::kE4m3 ? to_e4m3(x[i] / scale) : to_e5m2(x[i] / scale);
    }
  }

  std::vector<std::byte> memory_;
};

}  // namespace quire::testing
