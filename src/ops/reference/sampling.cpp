#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/host_copies.h"
#include "ops/philox.h"
#include "ops/reference/logits_rows.h"

namespace quire {
namespace {

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
    const float threshold = logits_[ids_[static_cast<std::size_t>(k - 1)]];
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
    for (float limit = 4; end != ids_.end() && mass(ids_.begin(), end) < wanted; limit *= 2) {
      end = std::partition(ids_.begin(), ids_.end(), [&](std::int32_t id) { return depth(id) < limit; });
    }
    std::sort(ids_.begin(), end, [&](std::int32_t a, std::int32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    });
    double sum = 0;
    std::size_t kept = 0;
    while (ids_.begin() + static_cast<std::ptrdiff_t>(kept) != end && sum < wanted) {
      sum += std::exp(-depth(ids_[kept++]));
    }
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
      const float score = scaled(id) - std::log(exponential(bits[static_cast<std::size_t>(id % 4)]));
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

SampledRow::SampledRow(const SamplingBatch& batch, std::int64_t row)
    : temperature(batch.temperature.data_as<const float>()[row]),
      top_p(batch.top_p.data_as<const float>()[row]),
      min_p(batch.min_p.data_as<const float>()[row]),
      top_k(batch.top_k.data_as<const std::int32_t>()[row]),
      seed(static_cast<std::uint64_t>(batch.seeds.data_as<const std::int64_t>()[row])),
      position(batch.positions.data_as<const std::int32_t>()[row]),
      seat(batch.seats.data_as<const std::int32_t>()[row]) {}

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
    const std::span values(from.data_as<const float>() + r * from.stride(0),
                           static_cast<std::size_t>(logits.dim(1)));
    const auto top = std::max_element(values.begin(), values.end());
    const bool has_nan = std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
    std::int32_t token = kInvalidLogits;
    if (!has_nan && std::isfinite(*top)) {
      token = row.temperature > 0.0F ? row.draw(values, *top, ids)
                                     : static_cast<std::int32_t>(top - values.begin());
    }
    drawn.data_as<std::int32_t>()[r] = token;
    last.data_as<std::int32_t>()[row.seat] = token;
  }
}

}  // namespace quire
