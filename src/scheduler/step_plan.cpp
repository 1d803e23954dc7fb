#include "scheduler/step_plan.h"

#include <algorithm>
#include <set>

namespace quire {

bool SamplingState::leaves_token(std::span<const TokenId> output, bool mask_stop, int vocab_size) const {
  std::set<TokenId> masked;
  if (mask_stop) masked.insert(stop_ids.begin(), stop_ids.end());
  for (const std::vector<TokenId>& word : bad_words)
    if (ends_with(output, word, word.size() - 1)) masked.insert(word.back());
  if (allowed_ids.empty()) return masked.size() < static_cast<std::size_t>(vocab_size);
  return std::any_of(allowed_ids.begin(), allowed_ids.end(),
                     [&](TokenId id) { return !masked.contains(id); });
}

bool ends_with(std::span<const TokenId> tokens, const std::vector<TokenId>& word, std::size_t n) {
  return tokens.size() >= n && std::equal(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(n),
                                          tokens.end() - static_cast<std::ptrdiff_t>(n));
}

}  // namespace quire
