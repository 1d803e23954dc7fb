#include "ops/host_copies.h"
#include "ops/reference/rows.h"

namespace quire {
namespace {

// The inputs of one sequence's channels: those of this step, and before them those that its state holds.
struct ConvInputs {
  const Tensor& x;
  const Tensor& state;
  std::int64_t begin;  // the sequence's first row of x
  std::int64_t from;   // its slot; -1: zeros

  // t: behind the first of this step's; not below 1 - K.
  template <typename T>
  float at(std::int64_t t, std::int64_t channel) const {
    if (t >= 0) return to_float(row<const T>(x, begin + t)[channel]);
    if (from < 0) return 0;
    return row<const float>(state, from)[(state.dim(1) + t) * state.stride(1) + channel];
  }
};

}  // namespace

void Backend::causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params, const Tensor& state,
                          const StateBatch& batch) {
  HostCopies host(*this, "causal_conv");
  const Tensor results = host.update(out), inputs = host.read(x), kept = host.update(state);
  const Tensor weight = host.read(params.weight);
  const auto* bias = host.read(params.bias).data_as<const float>();
  const auto* starts = host.read(batch.query_starts).data_as<const std::int32_t>();
  const auto* from = host.read(batch.from).data_as<const std::int32_t>();
  const auto* to = host.read(batch.to).data_as<const std::int32_t>();
  const std::int64_t width = weight.dim(0), history = width - 1;
  dispatch_float(x.dtype(), [&]<typename T>() {
    for (std::int64_t s = 0; s < batch.num_sequences; ++s) {
      if (to[s] < 0) continue;
      const ConvInputs in = {inputs, kept, starts[s], from[s]};
      const std::int64_t tokens = starts[s + 1] - starts[s];
      for (std::int64_t c = 0; c < x.dim(1); ++c) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          float sum = bias == nullptr ? 0 : bias[c];
          for (std::int64_t k = 0; k < width; ++k)
            sum += row<const float>(weight, k)[c] * in.at<T>(t - history + k, c);
          row<T>(results, starts[s] + t)[c] = from_float<T>(activated(sum, params.activation));
        }
        for (std::int64_t k = 0; k < history; ++k)
          row<float>(kept, to[s])[k * kept.stride(1) + c] = in.at<T>(tokens - history + k, c);
      }
    }
  });
}

}  // namespace quire
