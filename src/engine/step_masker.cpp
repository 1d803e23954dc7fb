#include "engine/step_masker.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

constexpr int kMostMaskThreads = 8;

}  // namespace

StepMasker::~StepMasker() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    next_ = rows_.size();
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void StepMasker::take(const StepPlan& plan) {
  ids_.clear();
  for (const SequencePlan& sequence : plan.sequences)
    if (sequence.constrained) ids_.push_back(sequence.sequence);
}

void StepMasker::start(Scheduler& scheduler) {
  start_ = TimePoint::clock::now();
  if (workers_.empty()) {
    const int count = std::clamp(usable_cores() / 2, 1, kMostMaskThreads);
    for (int i = 0; i < count; ++i) workers_.emplace_back([this] { work(); });
  }
  std::vector<Row> rows;
  for (const SequenceId id : ids_) rows.push_back({.id = id, .output = scheduler.constrained(id)});
  masks_->bits.resize(rows.size() * static_cast<std::size_t>(words_));
  {
    const std::lock_guard lock(mutex_);
    rows_ = std::move(rows);
    next_ = 0;
    unfinished_ = rows_.size();
  }
  for (std::size_t i = 0; i < std::min(rows_.size(), workers_.size()); ++i) wake_.notify_one();
}

void StepMasker::work() {
  name_thread("quire-mask");
  std::unique_lock lock(mutex_);
  while (!closing_) {
    take_rows(lock);
    wake_.wait(lock, [this] { return closing_ || next_ < rows_.size(); });
  }
}

void StepMasker::take_rows(std::unique_lock<std::mutex>& lock) {
  while (next_ < rows_.size()) {
    const std::size_t place = next_++;
    lock.unlock();
    compute(rows_[place], place);
    lock.lock();
    if (--unfinished_ > 0) continue;
    end_ = TimePoint::clock::now();
    done_.notify_one();
  }
}

void StepMasker::compute(Row& row, std::size_t place) {
  if (!row.output) return;
  const auto words = static_cast<std::size_t>(words_);
  Constraint& constraint = row.output->constraint;
  try {
    row.has_mask =
        constraint.fill_mask(row.output->tokens, std::span(masks_->bits).subspan(place * words, words));
    if (row.has_mask && row.output->most_forced > 0) row.forced = constraint.forced(row.output->most_forced);
  } catch (const std::exception& e) {
    row.error = e.what();
    row.has_mask = false;
  }
}

std::vector<StepMasker::Row> StepMasker::finish() {
  std::vector<Row> rows;
  {
    std::unique_lock lock(mutex_);
    take_rows(lock);
    done_.wait(lock, [this] { return unfinished_ == 0; });
    rows.swap(rows_);
    next_ = 0;
    seconds_ = std::chrono::duration<double>(end_ - start_).count();
  }
  const auto words = static_cast<std::ptrdiff_t>(words_);
  std::int32_t num_masks = 0;
  masks_->rows.clear();
  for (std::size_t place = 0; place < rows.size(); ++place) {
    masks_->rows.push_back(rows[place].has_mask ? num_masks : StepMasks::kAny);
    if (!rows[place].has_mask) continue;
    const auto from = masks_->bits.begin() + static_cast<std::ptrdiff_t>(place) * words;
    if (num_masks < static_cast<std::int32_t>(place))
      std::copy_n(from, words, masks_->bits.begin() + num_masks * words);
    ++num_masks;
  }
  masks_->bits.resize(static_cast<std::size_t>(num_masks * words));
  ids_.clear();
  return rows;
}

void StepMasker::drop() {
  std::unique_lock lock(mutex_);
  unfinished_ -= rows_.size() - next_;
  next_ = rows_.size();
  done_.wait(lock, [this] { return unfinished_ == 0; });
  ids_.clear();
}

}  // namespace quire
