#include "engine/step_masker.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace quire {

StepMasker::StepMasker(std::int64_t vocab_size, const std::vector<TokenId>& end_ids)
    : words_(static_cast<std::size_t>(StepMasks::words(vocab_size))), free_mask_(words_, ~0U) {
  for (const TokenId id : end_ids) free_mask_[static_cast<std::size_t>(id) / 32] &= ~(1U << id % 32);
}

void StepMasker::take(const StepPlan& plan) {
  ids_.clear();
  for (const SequencePlan& sequence : plan.sequences)
    if (sequence.constrained) ids_.push_back(sequence.sequence);
}

std::vector<StepMasker::Row> StepMasker::compute(Scheduler& scheduler) {
  constexpr int kMostMaskThreads = 8;
  const auto start = std::chrono::steady_clock::now();
  if (!threads_) threads_.emplace(std::clamp(usable_cores() / 2, 1, kMostMaskThreads));
  std::vector<Row> rows;
  for (const SequenceId id : ids_) rows.push_back({.id = id, .output = scheduler.constrained(id)});
  ids_.clear();
  std::vector<std::uint32_t>& bits = masks_->bits;
  bits.resize(rows.size() * words_);
  const auto mask_of = [&](std::size_t place) { return std::span(bits).subspan(place * words_, words_); };
  threads_->run(static_cast<int>(rows.size()), [&](int part, int) {
    const auto place = static_cast<std::size_t>(part);
    if (rows[place].output) compute(rows[place], mask_of(place));
  });
  std::size_t num_masks = 0;
  for (std::size_t place = 0; place < rows.size(); ++place) {
    if (!rows[place].has_mask) continue;
    if (num_masks < place) std::ranges::copy(mask_of(place), mask_of(num_masks).begin());
    ++num_masks;
  }
  bits.resize(num_masks * words_);
  const auto free = static_cast<std::int32_t>(num_masks);  // the mask of all that are free
  if (num_masks < rows.size()) bits.insert(bits.end(), free_mask_.begin(), free_mask_.end());
  masks_->rows.clear();
  for (std::int32_t next = 0; const Row& row : rows) masks_->rows.push_back(row.has_mask ? next++ : free);
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return rows;
}

void StepMasker::compute(Row& row, std::span<std::uint32_t> mask) const try {
  Constraint& constraint = row.output->constraint;
  row.has_mask = constraint.fill_mask(row.output->tokens, mask);
  if (row.has_mask && row.output->most_forced > 0) row.forced = constraint.forced(row.output->most_forced);
} catch (const std::exception& e) {
  row.error = e.what();
  row.is_request_at_fault = dynamic_cast<const Error*>(&e) != nullptr;
  row.has_mask = false;
}

}  // namespace quire
