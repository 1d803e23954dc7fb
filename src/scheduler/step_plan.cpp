#include "scheduler/step_plan.h"

#include <algorithm>
#include <ranges>
#include <set>

namespace quire {

bool SamplingState::leaves_token(std::span<const TokenId> output, bool mask_stop, int vocab_size,
                                 std::span<const std::uint32_t> bits) const {
  std::set<TokenId> masked;
  if (mask_stop) masked.insert(stop_ids.begin(), stop_ids.end());
  for (const std::vector<TokenId>& word : bad_words)
    if (ends_with(output, word, word.size() - 1)) masked.insert(word.back());
  const auto is_left = [&](TokenId id) {
    const auto i = static_cast<std::size_t>(id);
    return !masked.contains(id) && (bits.empty() || (bits[i / 32] >> i % 32 & 1) != 0);
  };
  if (!allowed_ids.empty()) return std::ranges::any_of(allowed_ids, is_left);
  return std::ranges::any_of(std::views::iota(TokenId{0}, vocab_size), is_left);
}

bool ends_with(std::span<const TokenId> tokens, const std::vector<TokenId>& word, std::size_t n) {
  return tokens.size() >= n && std::equal(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(n),
                                          tokens.end() - static_cast<std::ptrdiff_t>(n));
}

}  // namespace quire
