#include "record/prefix_names.h"

#include <xxhash.h>

#include <limits>

namespace quire {

TokenId PrefixNames::append(Chain& chain, TokenId token) const {
  chain.tail.push_back(token);
  if (static_cast<int>(chain.tail.size()) < block_size_) return 0;
  const std::size_t size = chain.tail.size() * sizeof(TokenId);
  chain.rows = XXH3_64bits_withSeed(chain.tail.data(), size, secret_ ^ chain.rows);
  chain.tail.clear();
  constexpr std::uint64_t kNames = std::numeric_limits<TokenId>::max() - kFirst;
  return static_cast<TokenId>(chain.rows % kNames) + kFirst;
}

std::uint64_t PrefixNames::name(std::string_view text) const {
  return text.empty() ? 0 : XXH3_64bits_withSeed(text.data(), text.size(), secret_) | 1;
}

}  // namespace quire
