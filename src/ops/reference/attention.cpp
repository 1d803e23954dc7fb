#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "ops/host_copies.h"
#include "ops/linear_format.h"
#include "ops/reference/rows.h"

namespace quire {
namespace {

// One head of one token, in float32.
void rotate_head(float* head, const Tensor& cos_sin, std::int64_t position) {
  const std::int64_t half = cos_sin.dim(1) / 2;
  const auto* cosines = cos_sin.data_as<const float>() + position * cos_sin.stride(0);
  const auto* sines = cosines + half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

template <typename T>
T* cache_row(const Tensor& half, std::int64_t block, std::int64_t head, std::int64_t offset) {
  return half.data_as<T>() + block * half.stride(0) + head * half.stride(1) + offset * half.stride(2);
}

// The keys, or the values, of a cache.
struct CacheHalf {
  Tensor rows, scales;
  CacheCode code;
  std::array<float, 256> values = {};  // of the codes

  CacheHalf(Tensor of_rows, Tensor of_scales, CacheCode of_code)
      : rows(std::move(of_rows)), scales(std::move(of_scales)), code(of_code) {
    const auto value_of = code == CacheCode::kE4m3 ? from_e4m3 : from_e5m2;
    for (int bits = 0; code != CacheCode::kNone && bits < 256; ++bits)
      values[bits] = value_of(static_cast<std::uint8_t>(bits));
  }

  // x [head_dim], of which `scale` is the given one, or null. T: what is stored where there are no codes.
  template <typename T>
  void store(std::int64_t block, std::int64_t head, std::int64_t offset, std::span<const float> x,
             const float* scale) const {
    if (code == CacheCode::kNone) {
      T* to = cache_row<T>(rows, block, head, offset);
      for (const float value : x) *to++ = from_float<T>(value);
      return;
    }
    float largest = 0;
    for (const float value : x) largest = std::isnan(value) ? value : std::max(largest, std::fabs(value));
    const float own = scale != nullptr ? *scale : row_scale(largest, code);
    *cache_row<float>(scales, block, head, offset) = own;
    std::uint8_t* to = cache_row<std::uint8_t>(rows, block, head, offset);
    const auto code_of = code == CacheCode::kE4m3 ? to_e4m3 : to_e5m2;
    for (const float value : x) *to++ = code_of(value / own);
  }

  // Of one position of a sequence, as float32: out [head_dim].
  template <typename T>
  void read(const std::int32_t* blocks, std::int64_t head, std::int64_t position, float* out) const {
    const std::int64_t dim = rows.dim(3), block_size = rows.dim(2);
    const std::int64_t block = blocks[position / block_size], offset = position % block_size;
    if (code == CacheCode::kNone) {
      const T* from = cache_row<const T>(rows, block, head, offset);
      for (std::int64_t i = 0; i < dim; ++i) out[i] = to_float(from[i]);
      return;
    }
    const float scale = *cache_row<const float>(scales, block, head, offset);
    const auto* from = cache_row<const std::uint8_t>(rows, block, head, offset);
    for (std::int64_t i = 0; i < dim; ++i) out[i] = values[from[i]] * scale;
  }
};

// The keys and values of one sequence and one KV head.
struct CachedHead {
  const CacheHalf& keys;
  const CacheHalf& values;
  const std::int32_t* blocks;
  std::int64_t head;
};

// What one query head sees: the positions [first, end), its own the last.
struct View {
  std::int64_t first, end;
  float scale;
  float cap;    // of the scores; 0: none
  float slope;  // of ALiBi
  float sink;   // one more score, without a value; -infinity: none
};

// Scores in order of position, then one pass over the values. scratch [end - first + 2 * dim].
template <typename T>
void attend(const T* query, const CachedHead& cached, const View& view, float* scratch, T* out) {
  const auto [first, end, scale, cap, slope, sink] = view;
  const auto& [keys, values, blocks, head] = cached;
  const std::int64_t dim = keys.rows.dim(3);
  float* scores = scratch;
  float* sums = scratch + (end - first);
  float* row = sums + dim;
  float top = sink;
  for (std::int64_t j = first; j < end; ++j) {
    keys.template read<T>(blocks, head, j, row);
    float score = 0;
    for (std::int64_t i = 0; i < dim; ++i) score += to_float(query[i]) * row[i];
    score *= scale;
    if (cap > 0) score = cap * std::tanh(score / cap);
    score += slope * static_cast<float>(j - (end - 1));
    scores[j - first] = score;
    top = std::max(top, score);
  }
  float total = std::exp(sink - top);
  std::fill_n(sums, dim, 0.0F);
  for (std::int64_t j = first; j < end; ++j) {
    values.template read<T>(blocks, head, j, row);
    const float weight = std::exp(scores[j - first] - top);
    total += weight;
    for (std::int64_t i = 0; i < dim; ++i) sums[i] += weight * row[i];
  }
  for (std::int64_t i = 0; i < dim; ++i) out[i] = from_float<T>(sums[i] / total);
}

}  // namespace

void Backend::rotate_and_store(const AttentionInput& input, const KvCacheLayer& cache,
                               const AttentionBatch& batch) {
  HostCopies host(*this, "rotate_and_store");
  AttentionInput near = input;
  near.qkv = host.update(input.qkv);
  host.fetch(near.q_norm, near.k_norm, near.v_norm, near.cos_sin, near.q_scale, near.k_scales, near.v_scales);
  const CacheHalf keys(host.update(cache.keys), host.update(cache.key_scales), cache.code);
  const CacheHalf values(host.update(cache.values), host.update(cache.value_scales), cache.code);
  const Tensor positions = host.read(batch.positions), slots = host.read(batch.slot_mapping);
  const std::int64_t dim = near.head_dim;
  const std::int64_t block_size = keys.rows.dim(2);
  const auto* k_scales = near.k_scales.data_as<const float>();
  const auto* v_scales = near.v_scales.data_as<const float>();
  std::vector<float> head(dim);
  const auto normalise = [&](const Tensor& weight) {
    norm_row(head.data(), head.data(), dim, {weight, {}, near.norm_eps});
  };
  dispatch_float(near.qkv.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
      T* qkv = near.qkv.data_as<T>() + t * near.qkv.stride(0);
      const std::int64_t position = positions.data_as<const std::int32_t>()[t];
      const std::int64_t slot = slots.data_as<const std::int32_t>()[t];
      const auto read = [&](const T* from) {
        for (float& value : head) value = to_float(*from++);
      };
      const auto transform = [&](const T* from, const Tensor& norm) {
        read(from);
        if (!near.norm_after_rotary) normalise(norm);
        if (near.cos_sin.defined()) rotate_head(head.data(), near.cos_sin, position);
        if (near.norm_after_rotary) normalise(norm);
      };
      const float q_scale = near.q_scale.defined() ? near.q_scale.data_as<const float>()[position] : 1;
      for (std::int64_t h = 0; h < near.num_heads; ++h) {
        transform(qkv + h * dim, near.q_norm);
        for (std::int64_t i = 0; i < dim; ++i) qkv[h * dim + i] = from_float<T>(q_scale * head[i]);
      }
      if (slot < 0) continue;
      for (std::int64_t h = 0; h < near.num_kv_heads; ++h) {
        const T* key = qkv + (near.num_heads + h) * dim;
        const std::int64_t block = slot / block_size, offset = slot % block_size;
        transform(key, near.k_norm);
        keys.store<T>(block, h, offset, head, k_scales == nullptr ? nullptr : k_scales + h);
        read(key + near.num_kv_heads * dim);
        normalise(near.v_norm);
        values.store<T>(block, h, offset, head, v_scales == nullptr ? nullptr : v_scales + h);
      }
    }
  });
}

void Backend::attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
                        const AttentionBatch& batch, const AttentionScores& scores) {
  HostCopies host(*this, "attention");
  const Tensor results = host.update(out), queries = host.read(q);
  const CacheHalf keys(host.read(cache.keys), host.read(cache.key_scales), cache.code);
  const CacheHalf values(host.read(cache.values), host.read(cache.value_scales), cache.code);
  AttentionBatch near = batch;
  host.fetch(near.query_starts, near.seq_lens, near.table_rows, near.block_tables);
  const std::int64_t dim = cache.keys.dim(3);
  const std::int64_t heads = q.dim(1) / dim;
  const std::int64_t group = heads / cache.keys.dim(1);
  const auto* slopes = host.read(scores.alibi_slopes).data_as<const float>();
  const auto* sinks = host.read(scores.sinks).data_as<const float>();
  std::vector<float> scratch(batch.max_seq_len + 2 * dim);
  dispatch_float(q.dtype(), [&]<typename T>() {
    for (std::int64_t s = 0; s < batch.num_sequences; ++s) {
      const std::int64_t begin = near.query_starts.data_as<const std::int32_t>()[s];
      const std::int64_t end = near.query_starts.data_as<const std::int32_t>()[s + 1];
      const std::int64_t seq_len = near.seq_lens.data_as<const std::int32_t>()[s];
      if (seq_len == 0) continue;
      const std::int64_t table_row = near.table_rows.data_as<const std::int32_t>()[s];
      const auto* blocks =
          near.block_tables.data_as<const std::int32_t>() + table_row * near.block_tables.stride(0);
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t context = seq_len - (end - 1 - t);  // tokens this one sees, itself included
        const std::int64_t first =
            scores.window == 0 ? 0 : std::max<std::int64_t>(0, context - scores.window);
        for (std::int64_t h = 0; h < heads; ++h) {
          const View view = {first,
                             context,
                             scores.scale,
                             scores.cap,
                             slopes == nullptr ? 0.0F : slopes[h],
                             sinks == nullptr ? -INFINITY : sinks[h]};
          attend<T>(queries.data_as<const T>() + t * queries.stride(0) + h * dim,
                    {keys, values, blocks, h / group}, view, scratch.data(),
                    results.data_as<T>() + t * results.stride(0) + h * dim);
        }
      }
    }
  });
}

void Backend::update_block_tables(const Tensor& tables, const Tensor& entries) {
  HostCopies host(*this, "update_block_tables");
  const Tensor to = host.update(tables);
  const auto* entry = host.read(entries).data_as<const std::int32_t>();
  for (std::int64_t i = 0; i < entries.dim(0); ++i, entry += 3)
    to.data_as<std::int32_t>()[entry[0] * to.stride(0) + entry[1]] = entry[2];
}

// Blocks do not go through the host.
void Backend::copy_blocks(const Tensor& to, const Tensor& from, const Tensor& pairs) {
  HostCopies host(*this, "copy_blocks");
  const auto* pair = host.read(pairs).data_as<const std::int32_t>();
  for (std::int64_t i = 0; i < pairs.dim(0); ++i, pair += 2) {
    for (std::int64_t slot = 0; slot < to.dim(0); ++slot)
      copy(to.rows(slot, 1).part(1, pair[1], 1), from.rows(slot, 1).part(1, pair[0], 1));
  }
}

}  // namespace quire
