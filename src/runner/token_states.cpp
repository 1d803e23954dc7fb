#include "runner/token_states.h"

#include <algorithm>
#include <utility>

namespace quire {

TokenStates::TokenStates(Backend& backend, const RuntimeConfig& config, Workspace& workspace)
    : backend_(backend), of_token_(static_cast<std::size_t>(config.spec.vocab_size)) {
  const std::int64_t cols = (config.spec.vocab_size + 63) / 64 * 64;  // whole vectors of every device
  const Tensor all = workspace.allocate(DType::kI16, {config.max_num_seqs + 2, cols});
  states_ = all.rows(0, config.max_num_seqs);
  blank_rows_ = all.rows(config.max_num_seqs, 2);
  std::vector<std::uint16_t> forbidden(cols, token_state::kForbidden);
  backend.copy(blank_rows_.rows(1, 1), Tensor(forbidden.data(), DType::kI16, {1, cols}));
  backend.wait(backend.record());  // the values may go away now
  device_entries_ = workspace.allocate(DType::kI32, {kEntries, 2});
  host_entries_ = backend.allocate(kMaxStepsInFlight * device_entries_.bytes(), MemoryKind::kHost);
  entries_.reserve(of_token_.size());  // collect does not fail in the middle
}

void TokenStates::start(const SequencePlan& plan) {
  const Tensor row = states_.rows(plan.seat, 1);
  backend_.copy(row, blank_rows_.rows(plan.start->allowed_ids.empty() ? 0 : 1, 1));
  collect(plan);
  // Behind the entries of the rows before it, whose copies may still wait for earlier steps.
  for (std::int64_t first = 0, count = 0; first < std::ssize(entries_); first += count) {
    if (num_staged_ == kEntries) {
      backend_.wait(backend_.record());
      num_staged_ = 0;
    }
    count = std::min(kEntries - num_staged_, std::ssize(entries_) - first);
    auto* host = static_cast<Entry*>(host_entries_.data()) + part_ * kEntries + num_staged_;
    std::copy_n(entries_.begin() + first, count, host);
    const Tensor entries = device_entries_.rows(0, count);
    backend_.copy(entries, Tensor(host, DType::kI32, {count, 2}));
    ops::set_token_states(backend_, Tensor(row.data(), DType::kI16, {row.dim(1)}, row.device()), entries);
    num_staged_ += count;
  }
}

// Entries of the tokens whose state is not that of the blank row.
void TokenStates::collect(const SequencePlan& plan) {
  entries_.clear();
  const auto touch = [this](TokenId id) -> std::uint16_t& {
    std::uint16_t& state = of_token_[id];
    if (state == 0) entries_.push_back({id, 0});
    return state;
  };
  // While they are collected, the flag says the opposite.
  for (const TokenId id : plan.start->allowed_ids) touch(id) |= token_state::kForbidden;
  if (plan.start->has_penalties()) {
    for (int i = 0; i < static_cast<int>(plan.history.size()); ++i) {
      std::uint16_t& state = touch(plan.history[i]);
      if (i < plan.num_prompt)
        state |= token_state::kInPrompt;
      else if ((state & token_state::kMaxCount) < token_state::kMaxCount)
        ++state;
    }
  }
  const std::uint16_t blank = plan.start->allowed_ids.empty() ? 0 : token_state::kForbidden;
  for (Entry& entry : entries_) entry.state = std::exchange(of_token_[entry.token], std::uint16_t{0}) ^ blank;
}

}  // namespace quire
