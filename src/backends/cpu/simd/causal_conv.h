#pragma once

#include "backends/cpu/simd/elementwise.h"

namespace quire::simd {
namespace {

// Some channels' inputs of the token t behind the first of sequence s in this step; below 0 they are those of
// its state.
template <typename T>
[[gnu::always_inline]] inline F conv_input(const ConvJob& job, std::int64_t s, std::int64_t t,
                                           std::int64_t channel, int count) {
  const StatesView& states = job.states;
  if (t >= 0) return load_some(job.x.row<const T>(states.starts[s] + t) + channel, count);
  if (states.from[s] < 0) return Vec::zero();
  const float* slot = states.slots.row<const float>(states.from[s]);
  return load_some(slot + (job.width - 1 + t) * job.channels + channel, count);
}

template <Activation kActivation, typename T>
void convolve(const ConvJob& job, std::int64_t s, std::int64_t begin, std::int64_t end) {
  const StatesView& states = job.states;
  const std::int64_t tokens = states.starts[s + 1] - states.starts[s], history = job.width - 1;
  T* out = job.out.row<T>(states.starts[s]);
  for (std::int64_t t = 0; t < tokens; ++t, out += job.out.stride) {
    for (std::int64_t c = begin; c < end; c += kLanes) {
      const int count = lanes_left(c, end);
      F sum = job.bias == nullptr ? Vec::zero() : load_some(job.bias + c, count);
      for (std::int64_t k = 0; k < job.width; ++k)
        sum = Vec::fma(load_some(job.weight.row<const float>(k) + c, count),
                       conv_input<T>(job, s, t - history + k, c, count), sum);
      store_some(out + c, activated<kActivation>(sum), count);
    }
  }
  float* slot = states.slots.row<float>(states.to[s]);
  for (std::int64_t k = 0; k < history; ++k, slot += job.channels) {
    for (std::int64_t c = begin; c < end; c += kLanes) {
      const int count = lanes_left(c, end);
      store_some(slot + c, conv_input<T>(job, s, tokens - history + k, c, count), count);
    }
  }
}

void causal_conv(const ConvJob& job, std::int64_t begin, std::int64_t end) {
  begin *= kConvChannels;
  end = smaller(end * kConvChannels, job.channels);
  dispatch(job.x.dtype, job.activation, [&]<Activation kActivation, typename T>() {
    for (std::int64_t s = 0; s < job.states.num_sequences; ++s)
      if (job.states.to[s] >= 0) convolve<kActivation, T>(job, s, begin, end);
  });
}

}  // namespace
}  // namespace quire::simd
