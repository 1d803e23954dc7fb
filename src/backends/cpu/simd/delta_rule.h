#pragma once

// The gated delta rule. A strip of a head's state, some columns of all its rows, lies in the first cache over
// the tokens of a chunk; each token reads and writes it once: with S = g S' + k delta', what the next token
// needs, k^T S and q^T S, is summed as S is made. Then delta = beta (v - g k^T S), and the output is
// g q^T S + (q . k) delta. Sums run over the rows in order, so that chunks do not show.

#include "backends/cpu/simd/elementwise.h"

namespace quire::simd {
namespace {

constexpr int kStripVectors = kDeltaColumns / kLanes;

// Of one token and value head.
struct DeltaToken {
  float decay, beta, query_key;
};

// Some tokens of one sequence and value head, with their keys and queries, [kDeltaTokens][key_dim] each.
struct DeltaChunk {
  std::int64_t head, begin, count;
  const float* from;  // the head's state before them, or null: zeros
  float* to;          // it gets that behind them
  const float* next;  // a state that is wanted then, or null
  float* keys;
  float* queries;
  float* strip;  // [key_dim][kDeltaColumns]
  DeltaToken tokens[kDeltaTokens];
};

template <typename T>
[[gnu::always_inline]] inline float load_one(const T* p) {
  return load_some(p, 1)[0];
}

// factor * x / sqrt(x . x + 1e-6).
template <typename T>
void normalise(const T* x, std::int64_t n, float factor, float* out) {
  const F scale = Vec::set1(factor / __builtin_sqrtf(sum_lanes(sum_squares(x, n)) + 1e-6F));
  map_values([scale](F values) { return values * scale; }, n, out, x);
}

template <typename T>
DeltaToken prepare_token(const DeltaRuleJob& job, std::int64_t t, std::int64_t head, float* query,
                         float* key) {
  const std::int64_t dim = job.key_dim, key_head = head / (job.num_value_heads / job.num_key_heads);
  const T* qkv = job.qkv.row<const T>(t) + key_head * dim;
  normalise(qkv, dim, 1.0F / __builtin_sqrtf(static_cast<float>(dim)), query);
  normalise(qkv + job.num_key_heads * dim, dim, 1.0F, key);
  F products = Vec::zero();
  for (std::int64_t i = 0; i < dim; i += kLanes) {
    const int count = lanes_left(i, dim);
    products = Vec::fma(load_some(query + i, count), load_some(key + i, count), products);
  }
  const T* rates = job.rates.row<const T>(t) + head;
  const float a = load_one(rates + job.num_value_heads) + job.dt_bias[head], b = load_one(rates);
  const float step = a > 20 ? a : __builtin_log1pf(__builtin_expf(a));
  return {__builtin_expf(-__builtin_expf(job.a_log[head]) * step), 1.0F / (1.0F + __builtin_expf(-b)),
          sum_lanes(products)};
}

// What a token reads of a strip.
struct StripSums {
  F by_key[kStripVectors], by_query[kStripVectors];
};

// Rows of a strip become load(row, vector), and are summed for a token.
template <typename Load>
[[gnu::always_inline]] inline void pass_strip(const DeltaChunk& chunk, std::int64_t rows, std::int64_t token,
                                              StripSums& sums, const Load& load) {
  const float *key = chunk.keys + token * rows, *query = chunk.queries + token * rows;
  float* const strip = chunk.strip;
  for (F& sum : sums.by_key) sum = Vec::zero();
  for (F& sum : sums.by_query) sum = Vec::zero();
  for (std::int64_t i = 0; i < rows; ++i) {
    const F k = Vec::set1(key[i]), q = Vec::set1(query[i]);
#pragma GCC unroll 8
    for (int v = 0; v < kStripVectors; ++v) {
      const F value = load(i, v);
      Vec::store(strip + i * kDeltaColumns + v * kLanes, value);
      sums.by_key[v] = Vec::fma(k, value, sums.by_key[v]);
      sums.by_query[v] = Vec::fma(q, value, sums.by_query[v]);
    }
  }
}

// The first pass over columns [column, column + kDeltaColumns), which brings them near, and fetches those
// that come after them.
void read_strip(const DeltaChunk& chunk, const DeltaRuleJob& job, std::int64_t column, const int* counts,
                StripSums& sums) {
  const std::int64_t width = job.value_dim;
  const bool is_last = column + kDeltaColumns >= width;
  const float* const ahead = is_last                 ? chunk.next
                             : chunk.from == nullptr ? nullptr
                                                     : chunk.from + column + kDeltaColumns;
  pass_strip(chunk, job.key_dim, 0, sums, [&](std::int64_t i, int v) {
    if (ahead != nullptr) __builtin_prefetch(ahead + i * width + v * kLanes);
    return chunk.from == nullptr ? Vec::zero()
                                 : load_some(chunk.from + i * width + column + v * kLanes, counts[v]);
  });
}

// The chunk's tokens in columns [column, column + kDeltaColumns).
template <typename T>
void run_strip(const DeltaRuleJob& job, const DeltaChunk& chunk, std::int64_t column) {
  const std::int64_t dim = job.key_dim, width = job.value_dim, first = chunk.head * width + column;
  float* const strip = chunk.strip;
  int counts[kStripVectors];
  for (int v = 0; v < kStripVectors; ++v) {
    const std::int64_t left = width - column - v * kLanes;
    counts[v] = left >= kLanes ? kLanes : left > 0 ? static_cast<int>(left) : 0;
  }
  StripSums sums;
  read_strip(chunk, job, column, counts, sums);
  for (std::int64_t j = 0; j < chunk.count; ++j) {
    const DeltaToken& token = chunk.tokens[j];
    const T* values = job.qkv.row<const T>(chunk.begin + j) + 2 * job.num_key_heads * dim + first;
    float* out = job.out.row<float>(chunk.begin + j) + first;
    const F decay = Vec::set1(token.decay), minus = Vec::set1(-token.decay), beta = Vec::set1(token.beta);
    F deltas[kStripVectors];
    for (int v = 0; v < kStripVectors; ++v) {
      deltas[v] = beta * Vec::fma(minus, sums.by_key[v], load_some(values + v * kLanes, counts[v]));
      store_some(out + v * kLanes, Vec::fma(Vec::set1(token.query_key), deltas[v], decay * sums.by_query[v]),
                 counts[v]);
    }
    const float* key = chunk.keys + j * dim;
    const auto updated = [&](std::int64_t i, int v) {
      const F old = Vec::load(strip + i * kDeltaColumns + v * kLanes);
      return Vec::fma(Vec::set1(key[i]), deltas[v], decay * old);
    };
    if (j + 1 < chunk.count) {
      pass_strip(chunk, dim, j + 1, sums, updated);
      continue;
    }
    for (std::int64_t i = 0; i < dim; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kStripVectors; ++v)
        store_some(chunk.to + i * width + column + v * kLanes, updated(i, v), counts[v]);
    }
  }
}

// Of a head in a slot; null where there is none.
[[gnu::always_inline]] inline float* state_of(const DeltaRuleJob& job, std::int32_t slot, std::int64_t head) {
  return slot < 0 ? nullptr : job.states.slots.row<float>(slot) + head * job.key_dim * job.value_dim;
}

// next: as in DeltaChunk.
template <typename T>
void run_head(const DeltaRuleJob& job, std::int64_t s, std::int64_t head, const float* next, float* scratch) {
  const StatesView& states = job.states;
  const std::int64_t dim = job.key_dim, begin = states.starts[s], end = states.starts[s + 1];
  DeltaChunk chunk = {head,
                      begin,
                      0,
                      state_of(job, states.from[s], head),
                      state_of(job, states.to[s], head),
                      next,
                      scratch,
                      scratch + kDeltaTokens * dim,
                      scratch + 2 * kDeltaTokens * dim,
                      {}};
  if (chunk.to == nullptr) return;
  for (std::int64_t i = 0; begin == end && i < dim * job.value_dim; ++i)
    chunk.to[i] = chunk.from == nullptr ? 0 : chunk.from[i];
  for (; chunk.begin < end; chunk.begin += chunk.count) {
    chunk.count = smaller(end - chunk.begin, kDeltaTokens);
    for (std::int64_t j = 0; j < chunk.count; ++j)
      chunk.tokens[j] =
          prepare_token<T>(job, chunk.begin + j, head, chunk.queries + j * dim, chunk.keys + j * dim);
    for (std::int64_t column = 0; column < job.value_dim; column += kDeltaColumns)
      run_strip<T>(job, chunk, column);
    chunk.from = chunk.to;
  }
}

void gated_delta_rule(const DeltaRuleJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int64_t sequences = job.states.num_sequences;
  dispatch(job.qkv.dtype, [&]<typename T>() {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t s = (i + 1) % sequences, head = (i + 1) / sequences;
      run_head<T>(job, i % sequences, i / sequences,
                  i + 1 < end ? state_of(job, job.states.from[s], head) : nullptr, scratch);
    }
  });
}

void sigmoid_gate(const GateJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job.out.dtype, [&]<typename T>() {
    for (std::int64_t row = begin; row < end; ++row) {
      const T *x = job.x.row<const T>(row), *gate = job.gate.row<const T>(row);
      T* out = job.out.row<T>(row);
      for (std::int64_t i = 0; i < job.n; i += kLanes) {
        const int count = lanes_left(i, job.n);
        const F by = job.of_rows ? Vec::set1(load_one(gate)) : load_some(gate + i, count);
        const F gated = load_some(x + i, count) / (Vec::set1(1.0F) + exp(Vec::zero() - by));
        store_some(out + i, job.add ? load_some(out + i, count) + gated : gated, count);
      }
    }
  });
}

void gated_norm(const GatedNormJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job.out.dtype, [&]<typename T>() {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / job.heads, column = i % job.heads * job.n;
      const float* x = job.x.row<const float>(row) + column;
      const T* gate = job.gate.row<const T>(row) + column;
      T* out = job.out.row<T>(row) + column;
      const F inverse = Vec::set1(inverse_rms(sum_squares(x, job.n), job.n, job.eps));
      const auto gated = [inverse](F value, F weight, F by) {
        return value * inverse * weight * activated<Activation::kSilu>(by);
      };
      map_values(gated, job.n, out, x, job.weight, gate);
    }
  });
}

}  // namespace
}  // namespace quire::simd
