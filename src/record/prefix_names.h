#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvcache/ids.h"

namespace quire {

// Names the rows of a sequence's tokens: equal names, equal tokens from the first one on. Nothing else can be
// learnt from a name by whoever does not know the secret.
class PrefixNames {
 public:
  // A sequence as far as it is known.
  struct Chain {
    std::uint64_t rows = 0;     // stands for all whole rows
    std::vector<TokenId> tail;  // behind them, fewer than a row
  };

  PrefixNames(int block_size, std::uint64_t secret) : block_size_(block_size), secret_(secret) {}

  // The name of the row that the token completes, kFirst or above; 0: it completes none.
  TokenId append(Chain& chain, TokenId token) const;
  // What stands for a text; 0 for none.
  std::uint64_t name(std::string_view text) const;

  static constexpr TokenId kFirst = 2;

 private:
  int block_size_;
  std::uint64_t secret_;
};

}  // namespace quire
