#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "ops/host_copies.h"
#include "ops/reference/logits_rows.h"

namespace quire {
namespace {

// Unsigned integers in the order of the floats, NaN above all: an order of any logits.
std::uint32_t ordered(float value) {
  if (std::isnan(value)) return ~0U;
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);  // -0 becomes 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// Fills `ids` with the most likely tokens, in order.
void select_top(std::span<const float> logits, std::span<std::int32_t> ids) {
  const auto order_of = [&](std::int32_t id) { return ordered(logits[static_cast<std::size_t>(id)]); };
  std::size_t found = 0;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(logits.size()); ++id) {
    const std::uint32_t order = order_of(id);
    if (found == ids.size() && order <= order_of(ids.back())) continue;
    std::size_t place = found < ids.size() ? found++ : found - 1;
    for (; place > 0 && order > order_of(ids[place - 1]); --place) ids[place] = ids[place - 1];
    ids[place] = id;
  }
}

}  // namespace

void log_probs_row(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch, std::int64_t i) {
  const std::int64_t row = batch.rows.defined() ? batch.rows.data_as<const std::int32_t>()[i] : i;
  const std::span values(logits.data_as<const float>() + row * logits.stride(0),
                         static_cast<std::size_t>(logits.dim(1)));
  const std::int64_t cols = out.ids.dim(1);
  const std::span ids(out.ids.data_as<std::int32_t>() + i * cols, static_cast<std::size_t>(cols));
  ids[0] = batch.tokens.data_as<const std::int32_t>()[row];
  if (cols > 1) select_top(values, ids.subspan(1));

  const float top = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const float value : values) sum += std::exp(value - top);
  const double shift = top + std::log(sum);
  float* logprobs = out.logprobs.data_as<float>() + i * cols;
  std::int32_t& rank = out.ranks.data_as<std::int32_t>()[i];
  rank = 0;
  std::fill_n(logprobs, cols, NAN);
  for (std::int64_t c = ids[0] < 0 ? 1 : 0; c < cols; ++c)
    logprobs[c] =
        static_cast<float>(values[static_cast<std::size_t>(ids[static_cast<std::size_t>(c)])] - shift);
  if (ids[0] < 0) return;  // it could not be sampled
  const float given = values[static_cast<std::size_t>(ids[0])];
  rank = 1 + static_cast<std::int32_t>(
                 std::count_if(values.begin(), values.end(), [given](float value) { return value > given; }));
}

void Ops::log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) {
  HostCopies host(*this, "log_probs");
  const LogprobRows rows = {host.update(out.ids), host.update(out.logprobs), host.update(out.ranks)};
  const Tensor from = host.read(logits);
  LogprobBatch near = batch;
  near.rows = host.read(batch.rows);
  near.tokens = host.read(batch.tokens);
  for (std::int64_t i = 0; i < batch.num_rows; ++i) log_probs_row(rows, from, near, i);
}

}  // namespace quire
