#include "ops/reference/logits_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "ops/host_copies.h"
#include "ops/philox.h"

namespace quire {
namespace {

std::int32_t int_at(const Tensor& tensor, std::int64_t i) { return tensor.data_as<const std::int32_t>()[i]; }
float float_at(const Tensor& tensor, std::int64_t i) { return tensor.data_as<const float>()[i]; }
std::span<const float> row_of(const Tensor& logits, std::int64_t i) {
  return {logits.data_as<const float>() + i * logits.stride(0), static_cast<std::size_t>(logits.dim(1))};
}

// Unsigned integers in the order of the floats, NaN above all: an order of any logits.
std::uint32_t ordered(float value) {
  if (std::isnan(value)) return ~0U;
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);  // -0 becomes 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// Fills `ids` with the most likely tokens, in order.
void select_top(std::span<const float> logits, std::span<std::int32_t> ids) {
  const auto order_of = [&](std::int32_t id) { return ordered(logits[id]); };
  if (ids.size() > kMaxTopLogprobs) {
    std::vector<std::int32_t> all(logits.size());
    std::iota(all.begin(), all.end(), 0);
    std::ranges::stable_sort(all, std::greater(), order_of);
    std::copy_n(all.begin(), ids.size(), ids.begin());
    return;
  }
  std::size_t found = 0;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(logits.size()); ++id) {
    const std::uint32_t order = order_of(id);
    if (found == ids.size() && order <= order_of(ids.back())) continue;
    std::size_t place = found < ids.size() ? found++ : found - 1;
    for (; place > 0 && order > order_of(ids[place - 1]); --place) ids[place] = ids[place - 1];
    ids[place] = id;
  }
}

struct Penalties {
  float repetition, frequency, presence;

  float applied(float logit, std::uint16_t state) const {
    if ((state & token_state::kForbidden) != 0) return -INFINITY;
    const int count = state & token_state::kMaxCount;
    if (count > 0 || (state & token_state::kInPrompt) != 0)
      logit = logit > 0 ? logit / repetition : logit * repetition;
    logit -= frequency * static_cast<float>(count);
    return count > 0 ? logit - presence : logit;
  }
};

// The scaled logits of one row, and which tokens are still in the race.
class Candidates {
 public:
  Candidates(const float* logits, float temperature, std::vector<std::int32_t>& ids)
      : logits_(logits), inverse_temperature_(1.0F / temperature), ids_(ids) {}

  float scaled(std::int32_t id) const { return logits_[id] * inverse_temperature_; }

  // Tokens at least min_p times as likely as the most likely one.
  void keep_min_p(float min_p, float top) {
    if (min_p <= 0.0F) return;
    const float threshold = top * inverse_temperature_ + std::log(min_p);
    std::erase_if(ids_, [&](std::int32_t id) { return scaled(id) < threshold; });
  }

  // The k most likely tokens, and those as likely as the last of them.
  void keep_top_k(std::int32_t k) {
    if (k <= 0 || static_cast<std::size_t>(k) >= ids_.size()) return;
    std::nth_element(ids_.begin(), ids_.begin() + (k - 1), ids_.end(),
                     [&](std::int32_t a, std::int32_t b) { return logits_[a] > logits_[b]; });
    const float threshold = logits_[ids_[k - 1]];
    std::erase_if(ids_, [&](std::int32_t id) { return logits_[id] < threshold; });
  }

  // The fewest most likely tokens whose probabilities, among those left, sum to top_p. Only as many are
  // sorted as may be among them.
  void keep_top_p(float top_p, float top) {
    if (top_p >= 1.0F) return;
    const auto depth = [&](std::int32_t id) { return (top - logits_[id]) * inverse_temperature_; };
    const auto mass = [&](auto begin, auto end) {
      double sum = 0;
      for (auto id = begin; id != end; ++id) sum += std::exp(-depth(*id));
      return sum;
    };
    const double wanted = top_p * mass(ids_.begin(), ids_.end());
    auto end = ids_.begin();
    for (float limit = 4; end != ids_.end() && mass(ids_.begin(), end) < wanted; limit *= 2)
      end = std::partition(ids_.begin(), ids_.end(), [&](std::int32_t id) { return depth(id) < limit; });
    std::sort(ids_.begin(), end, [&](std::int32_t a, std::int32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    });
    double sum = 0;
    std::size_t kept = 0;
    while (ids_.begin() + static_cast<std::ptrdiff_t>(kept) != end && sum < wanted)
      sum += std::exp(-depth(ids_[kept++]));
    ids_.resize(std::max<std::size_t>(kept, 1));
  }

  // The winner of an exponential race: token i wins with its probability. Ties go to the lowest id.
  std::int32_t draw(std::uint64_t seed, std::int32_t position) const {
    std::int32_t winner = -1;
    float best = 0;
    std::array<std::uint32_t, 4> bits{};
    std::int32_t drawn = -1;
    for (const std::int32_t id : ids_) {
      if (id / 4 != drawn) {
        drawn = id / 4;
        bits =
            philox4x32(seed, {static_cast<std::uint32_t>(drawn), static_cast<std::uint32_t>(position), 0, 0});
      }
      const float score = scaled(id) - std::log(exponential(bits[id % 4]));
      if (winner < 0 || score > best || (score == best && id < winner)) {
        winner = id;
        best = score;
      }
    }
    return winner;
  }

 private:
  const float* logits_;
  float inverse_temperature_;
  std::vector<std::int32_t>& ids_;
};

}  // namespace

void adjust_row(const Tensor& logits, const Tensor& last_tokens, const LogitsAdjustment& adjustment,
                std::int64_t i, std::int64_t begin, std::int64_t end) {
  const LogitsAdjustment& a = adjustment;
  const std::int64_t seat = int_at(a.seats, i);
  const std::int32_t last_token = int_at(last_tokens, seat);
  float* row = logits.data_as<float>() + int_at(a.rows, i) * logits.stride(0);
  const auto inside = [&](std::int32_t id) { return id >= begin && id < end; };
  for (std::int64_t bias = int_at(a.bias_starts, i); bias < int_at(a.bias_starts, i + 1); ++bias) {
    const std::int32_t id = int_at(a.bias_ids, bias);
    if (inside(id)) row[id] += float_at(a.bias_values, bias);
  }
  for (std::int64_t mask = int_at(a.mask_starts, i); mask < int_at(a.mask_starts, i + 1); ++mask) {
    const std::int32_t id = int_at(a.masks, 2 * mask), after = int_at(a.masks, 2 * mask + 1);
    if (inside(id) && (after < 0 || after == last_token)) row[id] = -INFINITY;
  }
  if (const std::int32_t allowed = a.bitmask_rows.defined() ? int_at(a.bitmask_rows, i) : -1; allowed >= 0) {
    const auto* words = a.bitmasks.data_as<const std::uint32_t>() + allowed * a.bitmasks.stride(0);
    for (std::int64_t id = begin; id < end; ++id)
      if ((words[id / 32] >> id % 32 & 1) == 0) row[id] = -INFINITY;
  }
  const auto use = static_cast<StateUse>(int_at(a.state_uses, i));
  if (use == StateUse::kNone) return;
  auto* states = a.token_states.data_as<std::uint16_t>() + seat * a.token_states.stride(0);
  if (use == StateUse::kCountLastAndRead && inside(last_token)) {
    std::uint16_t& state = states[last_token];
    if ((state & token_state::kMaxCount) < token_state::kMaxCount) ++state;
  }
  const Penalties penalties = {float_at(a.repetition, i), float_at(a.frequency, i), float_at(a.presence, i)};
  for (std::int64_t id = begin; id < end; ++id)
    if (states[id] != 0) row[id] = penalties.applied(row[id], states[id]);
}

void Backend::set_token_states(const Tensor& seat_states, const Tensor& entries) {
  HostCopies host(*this, "set_token_states");
  const Tensor states = host.update(seat_states), from = host.read(entries);
  for (std::int64_t i = 0; i < entries.dim(0); ++i) {
    states.data_as<std::uint16_t>()[int_at(from, 2 * i)] =
        static_cast<std::uint16_t>(int_at(from, 2 * i + 1));
  }
}

void Backend::adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                            const LogitsAdjustment& adjustment) {
  HostCopies host(*this, "adjust_logits");
  const Tensor rows = host.update(logits), last = host.read(last_tokens);
  LogitsAdjustment near = adjustment;
  near.token_states = host.update(adjustment.token_states);
  host.fetch(near.rows, near.seats, near.state_uses, near.repetition, near.frequency, near.presence,
             near.bias_starts, near.bias_ids, near.bias_values, near.mask_starts, near.masks,
             near.bitmask_rows, near.bitmasks);
  for (std::int64_t i = 0; i < adjustment.num_rows; ++i) adjust_row(rows, last, near, i, 0, logits.dim(1));
}

SampledRow::SampledRow(const SamplingBatch& batch, std::int64_t row)
    : temperature(float_at(batch.temperature, row)),
      top_p(float_at(batch.top_p, row)),
      min_p(float_at(batch.min_p, row)),
      top_k(int_at(batch.top_k, row)),
      seed(static_cast<std::uint64_t>(batch.seeds.data_as<const std::int64_t>()[row])),
      position(int_at(batch.positions, row)),
      seat(int_at(batch.seats, row)) {}

std::int32_t SampledRow::draw(std::span<const float> logits, float top,
                              std::vector<std::int32_t>& ids) const {
  ids.resize(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  Candidates candidates(logits.data(), temperature, ids);
  candidates.keep_min_p(min_p, top);
  candidates.keep_top_k(top_k);
  candidates.keep_top_p(top_p, top);
  return candidates.draw(seed, position);
}

void Backend::sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
                     const SamplingBatch& batch) {
  HostCopies host(*this, "sample");
  const Tensor drawn = host.update(tokens), last = host.update(last_tokens), from = host.read(logits);
  SamplingBatch near = batch;
  host.fetch(near.temperature, near.top_k, near.top_p, near.min_p, near.seeds, near.positions, near.seats);
  std::vector<std::int32_t> ids;
  for (std::int64_t r = 0; r < batch.num_rows; ++r) {
    const SampledRow row(near, r);
    const std::span values = row_of(from, r);
    const auto top = std::ranges::max_element(values);
    const bool has_nan = std::ranges::any_of(values, [](float x) { return std::isnan(x); });
    std::int32_t token = kInvalidLogits;
    if (!has_nan && std::isfinite(*top)) {
      token = row.temperature > 0.0F ? row.draw(values, *top, ids)
                                     : static_cast<std::int32_t>(top - values.begin());
    }
    drawn.data_as<std::int32_t>()[r] = token;
    last.data_as<std::int32_t>()[row.seat] = token;
  }
}

void log_probs_row(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch, std::int64_t i) {
  const std::int64_t row = batch.rows.defined() ? int_at(batch.rows, i) : i;
  const std::span values = row_of(logits, row);
  const std::int64_t cols = out.ids.dim(1);
  const std::span ids(out.ids.data_as<std::int32_t>() + i * cols, static_cast<std::size_t>(cols));
  ids[0] = int_at(batch.tokens, row);
  const auto* named =
      batch.named.defined() ? batch.named.data_as<std::int32_t>() + i * kMaxNamedLogprobs : nullptr;
  if (named != nullptr && named[0] >= 0) {
    for (std::int64_t c = 1; c < cols; ++c) ids[c] = c <= kMaxNamedLogprobs ? std::max(named[c - 1], 0) : 0;
  } else if (cols > 1) {
    select_top(values, ids.subspan(1));
  }

  const float top = *std::ranges::max_element(values);
  double sum = 0;
  for (const float value : values) sum += std::exp(value - top);
  const double shift = top + std::log(sum);
  float* logprobs = out.logprobs.data_as<float>() + i * cols;
  std::int32_t& rank = out.ranks.data_as<std::int32_t>()[i];
  rank = 0;
  std::fill_n(logprobs, cols, NAN);
  for (std::int64_t c = ids[0] < 0 ? 1 : 0; c < cols; ++c)
    logprobs[c] = static_cast<float>(values[ids[c]] - shift);
  if (ids[0] < 0) return;  // it could not be sampled
  const float given = values[ids[0]];
  rank = 1 + static_cast<std::int32_t>(
                 std::ranges::count_if(values, [given](float value) { return value > given; }));
}

void Backend::log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) {
  HostCopies host(*this, "log_probs");
  const LogprobRows rows = {host.update(out.ids), host.update(out.logprobs), host.update(out.ranks)};
  const Tensor from = host.read(logits);
  LogprobBatch near = batch;
  host.fetch(near.rows, near.tokens, near.named);
  for (std::int64_t i = 0; i < batch.num_rows; ++i) log_probs_row(rows, from, near, i);
}

}  // namespace quire
