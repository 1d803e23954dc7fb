#pragma once

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

[[gnu::always_inline]] inline float inverse_rms(F squares, std::int64_t n, float eps) {
  return 1.0F / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(n) + eps);
}

// x += update_scale * update.
void add_update(const NormJob& job, std::int64_t row) {
  float* x = static_cast<float*>(job.x) + row * job.x_stride;
  const F scale = Vec::set1(job.update_scale);
  dispatch(job.update_dtype, [&]<typename T>() {
    const T* update = static_cast<const T*>(job.update) + row * job.update_stride;
    for (std::int64_t i = 0; i < job.n; i += kLanes) {
      const int count = lanes_left(i, job.n);
      store_some(x + i, Vec::fma(scale, load_some(update + i, count), load_some(x + i, count)), count);
    }
  });
}

template <typename X>
float mean(const X* x, std::int64_t n) {
  F sum = Vec::zero();
  for (std::int64_t i = 0; i < n; i += kLanes) sum = Vec::add(sum, load_some(x + i, lanes_left(i, n)));
  return sum_lanes(sum) / static_cast<float>(n);
}

template <typename X>
void copy_row(const NormJob& job, std::int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  dispatch(job.out_dtype, [&]<typename T>() {
    T* out = static_cast<T*>(job.out) + row * job.out_stride;
    for (std::int64_t i = 0; i < job.n; i += kLanes) {
      const int count = lanes_left(i, job.n);
      store_some(out + i, load_some(x + i, count), count);
    }
  });
}

template <typename X>
void norm_row(const NormJob& job, std::int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.x_stride;
  const F center = Vec::set1(job.bias != nullptr ? mean(x, job.n) : 0);
  F squares = Vec::zero();
  for (std::int64_t i = 0; i < job.n; i += kLanes) {
    const int count = lanes_left(i, job.n);
    const F values = Vec::first_lanes(count, Vec::sub(load_some(x + i, count), center), Vec::zero());
    squares = Vec::fma(values, values, squares);
  }
  const F inverse = Vec::set1(inverse_rms(squares, job.n, job.eps));
  dispatch(job.out_dtype, [&]<typename T>() {
    T* out = static_cast<T*>(job.out) + row * job.out_stride;
    for (std::int64_t i = 0; i < job.n; i += kLanes) {
      const int count = lanes_left(i, job.n);
      const F normed = Vec::mul(Vec::sub(load_some(x + i, count), center), inverse);
      const F scaled = Vec::mul(normed, load_some(job.weight + i, count));
      store_some(out + i, job.bias == nullptr ? scaled : Vec::add(scaled, load_some(job.bias + i, count)),
                 count);
    }
  });
}

// RMSNorm, with a bias LayerNorm, without a weight a copy, of rows to which an update may be added first.
void norm(const NormJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (job.update != nullptr) add_update(job, row);
    dispatch(job.x_dtype,
             [&]<typename X>() { job.weight == nullptr ? copy_row<X>(job, row) : norm_row<X>(job, row); });
  }
}

// The tanh form of GELU is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)); it and SiLU are x / (1 +
// e^-y).
template <Activation kActivation>
[[gnu::always_inline]] inline F activated(F x) {
  if constexpr (kActivation == Activation::kRelu2) {
    const F positive = Vec::max(x, Vec::zero());
    return Vec::mul(positive, positive);
  }
  F minus_y = Vec::sub(Vec::zero(), x);
  if constexpr (kActivation == Activation::kGelu) {
    const F cubic = Vec::fma(Vec::mul(Vec::mul(x, x), x), Vec::set1(0.044715F), x);
    minus_y = Vec::mul(cubic, Vec::set1(-1.5957691216F));
  }
  return Vec::div(x, Vec::add(Vec::set1(1.0F), exp(minus_y)));
}

// Calls function.operator()<the activation, the type>.
template <typename Function>
[[gnu::always_inline]] inline void dispatch(const ActivationJob& job, const Function& function) {
  dispatch(job.dtype, [&]<typename T>() {
    switch (job.activation) {
      case Activation::kSilu:
        return function.template operator()<Activation::kSilu, T>();
      case Activation::kGelu:
        return function.template operator()<Activation::kGelu, T>();
      case Activation::kRelu2:
        return function.template operator()<Activation::kRelu2, T>();
    }
  });
}

void activate(const ActivationJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job, [&]<Activation kActivation, typename T>() {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(job.x) + row * job.x_stride;
      T* out = static_cast<T*>(job.out) + row * job.out_stride;
      for (std::int64_t i = 0; i < job.n; i += kLanes) {
        const int count = lanes_left(i, job.n);
        store_some(out + i, activated<kActivation>(load_some(x + i, count)), count);
      }
    }
  });
}

void activate_gate(const ActivationJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job, [&]<Activation kActivation, typename T>() {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* gate = static_cast<const T*>(job.x) + row * job.x_stride;
      T* out = static_cast<T*>(job.out) + row * job.out_stride;
      for (std::int64_t i = 0; i < job.n; i += kLanes) {
        const int count = lanes_left(i, job.n);
        const F gated = activated<kActivation>(load_some(gate + i, count));
        store_some(out + i, Vec::mul(gated, load_some(gate + job.n + i, count)), count);
      }
    }
  });
}

void cap(const CapJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* x = job.x + row * job.x_stride;
    for (std::int64_t i = 0; i < job.n; i += kLanes) {
      const int count = lanes_left(i, job.n);
      store_some(x + i, capped(load_some(x + i, count), job.cap), count);
    }
  }
}

void norm_head(const RotateAndStoreJob& job, const float* weight, float* head) {
  F squares = Vec::zero();
  for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
    const F x = load_some(head + i, lanes_left(i, job.head_dim));
    squares = Vec::fma(x, x, squares);
  }
  const F inverse = Vec::set1(inverse_rms(squares, job.head_dim, job.norm_eps));
  for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
    const int count = lanes_left(i, job.head_dim);
    const F normed = Vec::mul(load_some(head + i, count), inverse);
    store_some(head + i, Vec::mul(normed, load_some(weight + i, count)), count);
  }
}

void rotate_head(const RotateAndStoreJob& job, std::int64_t position, float* head) {
  const std::int64_t half = job.rotary_dim / 2;
  const float* cosines = job.cos_sin + position * job.cos_sin_stride;
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const int count = lanes_left(i, half);
    const F a = load_some(head + i, count);
    const F b = load_some(head + half + i, count);
    const F c = load_some(cosines + i, count);
    const F s = load_some(cosines + half + i, count);
    store_some(head + i, Vec::sub(Vec::mul(a, c), Vec::mul(b, s)), count);
    store_some(head + half + i, Vec::add(Vec::mul(b, c), Vec::mul(a, s)), count);
  }
}

// scale: of what comes out.
template <typename T>
void prepare_head(const RotateAndStoreJob& job, const float* norm_weight, float scale, std::int64_t position,
                  const T* from, T* to, float* head) {
  for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
    const int count = lanes_left(i, job.head_dim);
    store_some(head + i, load_some(from + i, count), count);
  }
  if (norm_weight != nullptr && !job.norm_after_rotary) norm_head(job, norm_weight, head);
  if (job.cos_sin != nullptr) rotate_head(job, position, head);
  if (norm_weight != nullptr && job.norm_after_rotary) norm_head(job, norm_weight, head);
  const F factor = Vec::set1(scale);
  for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
    const int count = lanes_left(i, job.head_dim);
    store_some(to + i, Vec::mul(factor, load_some(head + i, count)), count);
  }
}

void rotate_and_store(const RotateAndStoreJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const CacheView& cache = job.cache;
  const std::int64_t dim = job.head_dim;
  dispatch(cache.dtype, [&]<typename T>() {
    for (std::int64_t t = begin; t < end; ++t) {
      T* query = static_cast<T*>(job.qkv) + t * job.qkv_stride;
      const T* key = query + job.num_heads * dim;
      const T* value = key + job.num_kv_heads * dim;
      const std::int64_t row = job.slots[t] / cache.block_size * cache.block_stride +
                               job.slots[t] % cache.block_size * cache.row_stride;
      const std::int32_t position = job.positions[t];
      const float q_scale = job.q_scale == nullptr ? 1 : job.q_scale[position];
      for (std::int64_t h = 0; h < job.num_heads; ++h)
        prepare_head(job, job.q_norm, q_scale, position, query + h * dim, query + h * dim, scratch);
      if (job.slots[t] < 0) continue;
      for (std::int64_t h = 0; h < job.num_kv_heads; ++h) {
        const std::int64_t slot = row + h * cache.head_stride;
        prepare_head(job, job.k_norm, 1, position, key + h * dim, static_cast<T*>(cache.keys) + slot,
                     scratch);
        __builtin_memcpy(static_cast<T*>(cache.values) + slot, value + h * dim,
                         static_cast<std::size_t>(dim) * sizeof(T));
      }
    }
  });
}

}  // namespace
}  // namespace quire::simd
