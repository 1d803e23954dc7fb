#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "ops/logits_batches.h"

namespace quire::testing {

// What is asked of one row of logits, as a user would say it.
struct AdjustRow {
  std::vector<float> logits;
  std::set<std::int32_t> prompt = {};
  std::map<std::int32_t, int> output = {};  // how often
  std::int32_t last = 0;                    // the seat's last token; counted or not as `use` says
  StateUse use = StateUse::kNone;
  float repetition = 1, frequency = 0, presence = 0;
  std::map<std::int32_t, float> biases = {};
  std::map<std::int32_t, std::int32_t> masks = {};  // a token, and the last one it is masked after
  std::set<std::int32_t> forbidden = {};
  std::optional<std::set<std::int32_t>> allowed = {};  // by a bitmask

  std::map<std::int32_t, int> counts_after() const {
    std::map<std::int32_t, int> counts = output;
    if (use == StateUse::kCountLastAndRead) ++counts[last];
    return counts;
  }

  // The definition, in doubles.
  std::vector<double> expected() const {
    std::vector<double> result;
    const auto counts = counts_after();
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(logits.size()); ++id) {
      double x = logits[static_cast<std::size_t>(id)];
      if (const auto bias = biases.find(id); bias != biases.end()) x += bias->second;
      const auto mask = masks.find(id);
      const bool masked = (mask != masks.end() && (mask->second < 0 || mask->second == last)) ||
                          (allowed && !allowed->contains(id));
      if (use != StateUse::kNone) {
        const auto found = counts.find(id);
        const int count = found == counts.end() ? 0 : found->second;
        if (count > 0 || prompt.contains(id)) x = x > 0 ? x / repetition : x * repetition;
        x -= static_cast<double>(frequency) * count;
        if (count > 0) x -= presence;
        if (forbidden.contains(id)) x = -INFINITY;
      }
      result.push_back(masked ? -INFINITY : x);
    }
    return result;
  }
};

// Rows as the op takes them. Row i has seat n - 1 - i, and stands at row 2 i + 1 of the logits.
struct AdjustArrays {
  std::int64_t vocab, stride;
  std::vector<float> logits, repetition, frequency, presence, bias_values;
  std::vector<std::int32_t> rows, seats, uses, bias_starts = {0}, bias_ids, mask_starts = {0}, masks, last;
  std::vector<std::int32_t> bitmask_rows;
  std::vector<std::uint32_t> bitmasks;
  std::vector<std::uint16_t> states;

  explicit AdjustArrays(const std::vector<AdjustRow>& all)
      : vocab(static_cast<std::int64_t>(all[0].logits.size())), stride((vocab + 63) / 64 * 64) {
    const std::size_t n = all.size();
    last.resize(n);
    states.resize(n * static_cast<std::size_t>(stride));
    for (std::size_t i = 0; i < n; ++i) {
      const AdjustRow& row = all[i];
      const std::size_t seat = n - 1 - i;
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
      rows.push_back(static_cast<std::int32_t>(2 * i + 1));
      seats.push_back(static_cast<std::int32_t>(seat));
      uses.push_back(static_cast<std::int32_t>(row.use));
      repetition.push_back(row.repetition);
      frequency.push_back(row.frequency);
      presence.push_back(row.presence);
      for (const auto& [id, value] : row.biases) {
        bias_ids.push_back(id);
        bias_values.push_back(value);
      }
      bias_starts.push_back(static_cast<std::int32_t>(bias_ids.size()));
      for (const auto& [id, after] : row.masks) masks.insert(masks.end(), {id, after});
      mask_starts.push_back(static_cast<std::int32_t>(masks.size() / 2));
      last[seat] = row.last;
      bitmask_rows.push_back(row.allowed ? static_cast<std::int32_t>(num_bitmasks()) : -1);
      if (row.allowed) add_bitmask(*row.allowed);
      auto* own = &states[seat * static_cast<std::size_t>(stride)];
      for (const std::int32_t id : row.prompt) own[id] |= token_state::kInPrompt;
      for (const std::int32_t id : row.forbidden) own[id] |= token_state::kForbidden;
      for (const auto& [id, count] : row.output) own[id] = static_cast<std::uint16_t>(own[id] + count);
    }
    bias_ids.push_back(0);  // a tensor needs memory, also of no element
    bias_values.push_back(0);
    masks.insert(masks.end(), {0, -1});
    if (bitmasks.empty()) add_bitmask({});
  }

  std::int64_t bitmask_words() const { return (vocab + 31) / 32; }
  std::int64_t num_bitmasks() const { return std::ssize(bitmasks) / bitmask_words(); }

 private:
  void add_bitmask(const std::set<std::int32_t>& ids) {
    const std::size_t begin = bitmasks.size();
    bitmasks.resize(begin + static_cast<std::size_t>(bitmask_words()));
    for (const std::int32_t id : ids)
      bitmasks[begin + static_cast<std::size_t>(id / 32)] |= std::uint32_t{1} << id % 32;
  }
};

// Rows with everything in use, most of them with several things.
inline std::vector<AdjustRow> random_adjust_rows(std::size_t count, std::size_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  const auto any = [&] { return static_cast<std::int32_t>(random() % vocab); };
  std::vector<AdjustRow> rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    AdjustRow& row = rows[i];
    for (std::size_t id = 0; id < vocab; ++id) row.logits.push_back(normal(random));
    row.use = static_cast<StateUse>(random() % 3);
    for (int k = 0; k < 40; ++k) row.prompt.insert(any());
    for (int k = 0; k < 60; ++k) ++row.output[any()];
    row.last = i % 2 == 0 ? any() : row.output.begin()->first;
    if (i % 2 == 0) row.repetition = 0.5F + static_cast<float>(random() % 100) / 50;
    if (i % 3 == 0) row.frequency = -2 + static_cast<float>(random() % 100) / 25;
    if (i % 3 == 1) row.presence = -2 + static_cast<float>(random() % 100) / 25;
    if (i % 4 == 0)
      for (int k = 0; k < 30; ++k) row.biases[any()] = normal(random);
    if (i % 4 == 1) row.biases[row.last] = 100;
    for (std::size_t k = 0; k < i % 5; ++k)
      row.masks[any()] = k % 2 == 0 ? -1 : k % 3 == 0 ? row.last : any();
    if (i % 5 == 4)
      for (int k = 0; k < 50; ++k) row.forbidden.insert(any());
    if (i % 7 < 3) {
      row.allowed.emplace();
      for (int k = 0; k < (i % 2 == 0 ? 100 : 1); ++k) row.allowed->insert(any());
    }
  }
  return rows;
}

}  // namespace quire::testing
