#pragma once

#include "backends/cpu/simd/elementwise.h"

namespace quire::simd {
namespace {

// Some channels' inputs of the token t behind the first of sequence s in this step; below 0 they are those of
// its state.
template <typename T>
[[gnu::always_inline]] inline F conv_input(const ConvJob& job, std::int64_t s, std::int64_t t,
                                           std::int64_t channel, int count) {
  if (t >= 0)
    return load_some(static_cast<const T*>(job.x) + (job.starts[s] + t) * job.x_stride + channel, count);
  if (job.from[s] < 0) return Vec::zero();
  const float* slot = job.state + job.from[s] * job.slot_stride;
  return load_some(slot + (job.width - 1 + t) * job.channels + channel, count);
}

template <Activation kActivation, typename T>
void convolve(const ConvJob& job, std::int64_t s, std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = job.starts[s + 1] - job.starts[s], history = job.width - 1;
  T* out = static_cast<T*>(job.out) + job.starts[s] * job.out_stride;
  for (std::int64_t t = 0; t < tokens; ++t, out += job.out_stride) {
    for (std::int64_t c = begin; c < end; c += kLanes) {
      const int count = lanes_left(c, end);
      F sum = job.bias == nullptr ? Vec::zero() : load_some(job.bias + c, count);
      for (std::int64_t k = 0; k < job.width; ++k)
        sum = Vec::fma(load_some(job.weight + k * job.weight_stride + c, count),
                       conv_input<T>(job, s, t - history + k, c, count), sum);
      store_some(out + c, activated<kActivation>(sum), count);
    }
  }
  float* slot = job.state + job.to[s] * job.slot_stride;
  for (std::int64_t k = 0; k < history; ++k, slot += job.channels) {
    for (std::int64_t c = begin; c < end; c += kLanes) {
      const int count = lanes_left(c, end);
      store_some(slot + c, conv_input<T>(job, s, tokens - history + k, c, count), count);
    }
  }
}

void causal_conv(const ConvJob& job, std::int64_t begin, std::int64_t end) {
  dispatch(job.dtype, job.activation, [&]<Activation kActivation, typename T>() {
    for (std::int64_t s = 0; s < job.num_sequences; ++s) {
      if (job.to[s] >= 0) convolve<kActivation, T>(job, s, begin, end);
    }
  });
}

}  // namespace
}  // namespace quire::simd
