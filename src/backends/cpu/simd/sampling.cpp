#include <algorithm>
#include <cmath>

#include "backends/cpu/reference/sampled_row.h"
#include "backends/cpu/simd/simd_backend.h"

namespace quire {

std::int32_t SimdBackend::sample_row(const SampledRow& row, std::span<const float> logits,
                                     SamplingScratch& scratch) {
  if (!row.masked.empty()) {
    scratch.logits.assign(logits.begin(), logits.end());
    for (const std::int32_t id : row.masked) scratch.logits[static_cast<std::size_t>(id)] = -INFINITY;
    logits = scratch.logits;
  }
  const std::int64_t n = std::ssize(logits);
  const std::int64_t best = kernels_.argmax(logits.data(), n);
  if (best < 0) return kInvalidLogits;
  if (row.temperature <= 0.0F) return static_cast<std::int32_t>(best);
  if (row.filters()) return row.draw(logits, logits[static_cast<std::size_t>(best)], scratch.ids);
  return static_cast<std::int32_t>(
      kernels_.draw({logits.data(), n, 1.0F / row.temperature, row.seed, row.position}));
}

void SimdBackend::sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
                         const SamplingBatch& batch) {
  split(batch.num_rows, batch.num_rows > 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t r = begin; r < end; ++r) {
      const SampledRow row(batch, r);
      const std::span values(logits.data_as<const float>() + r * logits.stride(0),
                             static_cast<std::size_t>(logits.dim(1)));
      const std::int32_t token = sample_row(row, values, sampling_[static_cast<std::size_t>(thread)]);
      tokens.data_as<std::int32_t>()[r] = token;
      last_tokens.data_as<std::int32_t>()[row.slot] = token;
    }
  });
}

}  // namespace quire
