#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

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

}  // namespace quire::testing
