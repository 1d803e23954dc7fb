#pragma once

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

[[gnu::always_inline]] inline float inverse_rms(F squares, std::int64_t n, float eps) {
  return 1.0F / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(n) + eps);
}

template <typename X>
float mean(const X* x, std::int64_t n) {
  F sum = Vec::zero();
  for (std::int64_t i = 0; i < n; i += kLanes) sum += load_some(x + i, lanes_left(i, n));
  return sum_lanes(sum) / static_cast<float>(n);
}

// to[i] = function(from[i], ...), where they may be the same.
template <typename Function, typename To, typename... From>
[[gnu::always_inline]] inline void map_values(const Function& function, std::int64_t n, To* to,
                                              const From*... from) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int count = lanes_left(i, n);
    store_some(to + i, function(load_some(from + i, count)...), count);
  }
}

template <typename From, typename To>
void copy_values(const From* from, std::int64_t n, To* to) {
  map_values([](F x) { return x; }, n, to, from);
}

// x = sum_scale * (x + update_scale * update).
void add_update(const NormJob& job, std::int64_t row) {
  float* x = job.x.row<float>(row);
  const F scale = Vec::set1(job.update_scale), sum_scale = Vec::set1(job.sum_scale);
  const auto sum = [=](F update, F old) { return sum_scale * Vec::fma(scale, update, old); };
  dispatch(job.update.dtype,
           [&]<typename T>() { map_values(sum, job.n, x, job.update.row<const T>(row), x); });
}

// Lane by lane.
template <typename X>
[[gnu::always_inline]] inline F sum_squares(const X* x, std::int64_t n) {
  F squares = Vec::zero();
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F values = load_some(x + i, lanes_left(i, n));
    squares = Vec::fma(values, values, squares);
  }
  return squares;
}

template <typename X>
void norm_row(const NormJob& job, std::int64_t row) {
  const X* x = job.x.row<const X>(row);
  if (job.weight == nullptr)
    return dispatch(job.out.dtype, [&]<typename T>() { copy_values(x, job.n, job.out.row<T>(row)); });
  const F center = Vec::set1(job.bias != nullptr ? mean(x, job.n) : 0);
  F squares = Vec::zero();
  for (std::int64_t i = 0; i < job.n; i += kLanes) {
    const int count = lanes_left(i, job.n);
    const F values = Vec::first_lanes(count, load_some(x + i, count) - center, Vec::zero());
    squares = Vec::fma(values, values, squares);
  }
  const F inverse = Vec::set1(inverse_rms(squares, job.n, job.eps));
  dispatch(job.out.dtype, [&]<typename T>() {
    T* out = job.out.row<T>(row);
    for (std::int64_t i = 0; i < job.n; i += kLanes) {
      const int count = lanes_left(i, job.n);
      const F normed = (load_some(x + i, count) - center) * inverse;
      const F scaled = normed * load_some(job.weight + i, count);
      store_some(out + i, job.bias == nullptr ? scaled : scaled + load_some(job.bias + i, count), count);
    }
  });
}

// RMSNorm, with a bias LayerNorm, without a weight a copy, of rows to which an update may be added first.
void norm(const NormJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (job.update.data != nullptr) add_update(job, row);
    dispatch(job.x.dtype, [&]<typename X>() { norm_row<X>(job, row); });
  }
}

// The tanh form of GELU is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)); it and SiLU are x / (1 +
// e^-y), as kSwigluOai is.
template <Activation kActivation>
[[gnu::always_inline]] inline F activated(F x) {
  if constexpr (kActivation == Activation::kIdentity) return x;
  if constexpr (kActivation == Activation::kRelu2) {
    const F positive = Vec::max(x, Vec::zero());
    return positive * positive;
  }
  F minus_y = Vec::zero() - x;
  if constexpr (kActivation == Activation::kGelu) {
    const F cubic = Vec::fma(x * x * x, Vec::set1(0.044715F), x);
    minus_y = cubic * Vec::set1(-1.5957691216F);
  }
  if constexpr (kActivation == Activation::kSwigluOai) minus_y = x * Vec::set1(-kSwigluAlpha);
  return x / (Vec::set1(1.0F) + exp(minus_y));
}

template <Activation kActivation>
[[gnu::always_inline]] inline F gated(F gate, F up) {
  if constexpr (kActivation == Activation::kSwigluOai) {
    // NaN is the second operand, and stays.
    gate = Vec::min(Vec::set1(kSwigluLimit), gate);
    up = Vec::max(Vec::set1(-kSwigluLimit), Vec::min(Vec::set1(kSwigluLimit), up));
    up += Vec::set1(1.0F);
  }
  return activated<kActivation>(gate) * up;
}

// Calls function.operator()<the activation, the type>.
template <typename Function>
[[gnu::always_inline]] inline void dispatch(DType dtype, Activation activation, const Function& function) {
  dispatch(dtype, [&]<typename T>() {
    switch (activation) {
      case Activation::kSilu:
        return function.template operator()<Activation::kSilu, T>();
      case Activation::kGelu:
        return function.template operator()<Activation::kGelu, T>();
      case Activation::kRelu2:
        return function.template operator()<Activation::kRelu2, T>();
      case Activation::kIdentity:
        return function.template operator()<Activation::kIdentity, T>();
      case Activation::kSwigluOai:
        return function.template operator()<Activation::kSwigluOai, T>();
    }
  });
}

void activate(const ActivationJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job.out.dtype, job.activation, [&]<Activation kActivation, typename T>() {
    for (std::int64_t row = begin; row < end; ++row)
      map_values(activated<kActivation>, job.n, job.out.row<T>(row), job.x.row<const T>(row));
  });
}

void activate_gate(const ActivationJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job.out.dtype, job.activation, [&]<Activation kActivation, typename T>() {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* gate = job.x.row<const T>(row);
      map_values(gated<kActivation>, job.n, job.out.row<T>(row), gate, gate + job.n);
    }
  });
}

void cap(const CapJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* x = job.x.row<float>(row);
    map_values([&](F values) { return capped(values, job.cap); }, job.n, x, x);
  }
}

void norm_head(const RotateAndStoreJob& job, const float* weight, float* head) {
  const F squares = sum_squares(head, job.head_dim);
  const F inverse = Vec::set1(inverse_rms(squares, job.head_dim, job.norm_eps));
  map_values([inverse](F x, F w) { return x * inverse * w; }, job.head_dim, head, head, weight);
}

void rotate_head(const RotateAndStoreJob& job, std::int64_t position, float* head) {
  const std::int64_t half = job.rotary_dim / 2;
  const float* cosines = job.cos_sin.row<const float>(position);
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const int count = lanes_left(i, half);
    const F a = load_some(head + i, count);
    const F b = load_some(head + half + i, count);
    const F c = load_some(cosines + i, count);
    const F s = load_some(cosines + half + i, count);
    store_some(head + i, a * c - b * s, count);
    store_some(head + half + i, b * c + a * s, count);
  }
}

// x [n] as codes, the nearest of x / scale; gives the scale: NaN where a value is, else `given`, or its own.
//
// A magnitude is moved to the exponents of a float32 that has the code's bits in front, where subnormals are
// subnormals, too.
float store_codes(CacheCode code, const float* x, std::int64_t n, const float* given, std::uint8_t* to) {
  const auto magnitude = [](F v) { return Vec::as_floats(Vec::as_bits(v) & Vec::set1(0x7FFFFFFFU)); };
  F largest = Vec::zero();
  bool has_nan = false;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F v = load_some(x + i, lanes_left(i, n));
    has_nan |= Vec::any_nan(v);
    largest = Vec::max(largest, magnitude(v));
  }
  const float scale = given != nullptr ? *given : row_scale(max_lanes(largest), code);
  const bool is_e4m3 = code == CacheCode::kE4m3;
  const int shift = is_e4m3 ? 20 : 21;
  const F moved = Vec::set1(is_e4m3 ? 0x1p-120F : 0x1p-112F);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int count = lanes_left(i, n);
    const F v = load_some(x + i, count) / Vec::set1(scale);
    const Vec::I bits = Vec::as_bits(Vec::min(magnitude(v), Vec::set1(largest_of(code))) * moved);
    const Vec::I odd = Vec::right(bits, shift) & Vec::set1(1U);
    const Vec::I half = Vec::set1((1U << (shift - 1)) - 1);
    const Vec::I rounded = Vec::right(Vec::add_ints(bits, Vec::add_ints(half, odd)), shift);
    const Vec::I sign = Vec::right(Vec::as_bits(v), 24) & Vec::set1(0x80U);
    std::uint8_t codes[kLanes];
    Vec::store_bytes(codes, rounded | sign);
    __builtin_memcpy(to + i, codes, static_cast<std::size_t>(count));
  }
  return has_nan ? __builtin_nanf("") : scale;
}

// scale: of what comes out. to: T, or float.
template <typename T, typename To>
void prepare_head(const RotateAndStoreJob& job, const float* norm_weight, float scale, std::int64_t position,
                  const T* from, To* to, float* head) {
  copy_values(from, job.head_dim, head);
  if (norm_weight != nullptr && !job.norm_after_rotary) norm_head(job, norm_weight, head);
  if (job.cos_sin.data != nullptr) rotate_head(job, position, head);
  if (norm_weight != nullptr && job.norm_after_rotary) norm_head(job, norm_weight, head);
  map_values([factor = Vec::set1(scale)](F x) { return factor * x; }, job.head_dim, to, head);
}

// Keys and values of token t.
template <typename T>
void store_coded_heads(const RotateAndStoreJob& job, std::int64_t t, const T* key, float* scratch) {
  const CacheView& cache = job.cache;
  const std::int64_t dim = job.head_dim;
  const std::int64_t block = job.slots[t] / cache.block_size, offset = job.slots[t] % cache.block_size;
  for (std::int64_t h = 0; h < job.num_kv_heads; ++h) {
    const std::int64_t row = block * cache.block_stride + h * cache.head_stride + offset * cache.row_stride;
    const std::int64_t scale = block * cache.scale_block_stride + h * cache.scale_head_stride + offset;
    const auto given = [h](const float* scales) { return scales == nullptr ? nullptr : scales + h; };
    prepare_head(job, job.k_norm, 1, job.positions[t], key + h * dim, scratch, scratch);
    cache.key_scales[scale] = store_codes(cache.code, scratch, dim, given(job.k_scales),
                                          static_cast<std::uint8_t*>(cache.keys) + row);
    copy_values(key + (job.num_kv_heads + h) * dim, dim, scratch);
    if (job.v_norm != nullptr) norm_head(job, job.v_norm, scratch);
    cache.value_scales[scale] = store_codes(cache.code, scratch, dim, given(job.v_scales),
                                            static_cast<std::uint8_t*>(cache.values) + row);
  }
}

void rotate_and_store(const RotateAndStoreJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const CacheView& cache = job.cache;
  const std::int64_t dim = job.head_dim;
  dispatch(cache.dtype, [&]<typename T>() {
    for (std::int64_t t = begin; t < end; ++t) {
      T* query = job.qkv.row<T>(t);
      const T* key = query + job.num_heads * dim;
      const T* value = key + job.num_kv_heads * dim;
      const std::int64_t row = job.slots[t] / cache.block_size * cache.block_stride +
                               job.slots[t] % cache.block_size * cache.row_stride;
      const std::int32_t position = job.positions[t];
      const float q_scale = job.q_scale == nullptr ? 1 : job.q_scale[position];
      for (std::int64_t h = 0; h < job.num_heads; ++h)
        prepare_head(job, job.q_norm, q_scale, position, query + h * dim, query + h * dim, scratch);
      if (job.slots[t] < 0) continue;
      if (cache.code != CacheCode::kNone) {
        store_coded_heads(job, t, key, scratch);
        continue;
      }
      for (std::int64_t h = 0; h < job.num_kv_heads; ++h) {
        const std::int64_t slot = row + h * cache.head_stride;
        prepare_head(job, job.k_norm, 1, position, key + h * dim, static_cast<T*>(cache.keys) + slot,
                     scratch);
        T* to = static_cast<T*>(cache.values) + slot;
        if (job.v_norm != nullptr) {
          copy_values(value + h * dim, dim, scratch);
          norm_head(job, job.v_norm, scratch);
          copy_values(scratch, dim, to);
        } else {
          __builtin_memcpy(to, value + h * dim, static_cast<std::size_t>(dim) * sizeof(T));
        }
      }
    }
  });
}

}  // namespace
}  // namespace quire::simd
