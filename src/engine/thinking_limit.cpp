#include "engine/thinking_limit.h"

#include <algorithm>
#include <utility>

namespace quire {

ThinkingLimit::ThinkingLimit(ThinkingBudget budget, const Tokenizer& tokenizer,
                             std::shared_ptr<Constraint> other)
    : budget_(std::move(budget)),
      tokenizer_(tokenizer),
      other_(std::move(other)),
      end_(tokenizer.encode(budget_.end, false)) {
  if (budget_.begin.empty()) think();
}

bool ThinkingLimit::fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) {
  for (; num_taken_ < output.size(); ++num_taken_) take(output[num_taken_]);
  const bool ends = state_ == State::kEnding;
  if (!ends && other_) return other_->fill_mask(output, mask);
  std::ranges::fill(mask, ends ? 0U : ~0U);
  if (ends) mask[static_cast<std::size_t>(end_[num_ending_]) / 32] = 1U << end_[num_ending_] % 32;
  return true;
}

std::vector<TokenId> ThinkingLimit::forced(int most) {
  if (state_ != State::kEnding) return other_ ? other_->forced(most) : std::vector<TokenId>();
  const auto first = end_.begin() + static_cast<std::ptrdiff_t>(num_ending_);
  return {first, first + std::min<std::ptrdiff_t>(end_.end() - first, most)};
}

void ThinkingLimit::take(TokenId token) {
  if (state_ == State::kBehind) return;
  if (state_ == State::kEnding) {
    if (++num_ending_ == end_.size()) state_ = State::kBehind;
    return;
  }
  tail_ += tokenizer_.token_bytes(token);
  if (state_ == State::kBefore) {
    tail_.erase(0, tail_.find_first_not_of(" \t\r\n"));
    if (tail_.starts_with(budget_.begin))
      think();
    else if (!std::string_view(budget_.begin).starts_with(tail_))
      state_ = State::kBehind;
    return;
  }
  ++num_thought_;
  if (tail_.find(budget_.end) != std::string::npos)
    state_ = State::kBehind;
  else if (num_thought_ >= budget_.max_tokens)
    state_ = State::kEnding;
  else if (tail_.size() > budget_.end.size())
    tail_.erase(0, tail_.size() - budget_.end.size());
}

void ThinkingLimit::think() {
  state_ = budget_.max_tokens > 0 ? State::kThinking : State::kEnding;
  tail_.clear();
}

}  // namespace quire
