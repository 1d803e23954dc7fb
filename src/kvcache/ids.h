#pragma once

#include <cstdint>

namespace quire {

using TokenId = std::int32_t;
using BlockId = std::int32_t;
using SequenceId = std::uint64_t;

constexpr BlockId kNoBlock = -1;

// Blocks that `num_tokens` tokens in a row take at most, wherever in a block they begin.
constexpr int blocks_across(int num_tokens, int block_size) {
  return (num_tokens + 2 * block_size - 2) / block_size;
}

// One block's contents go to another, in every layer; which may be one of another memory.
struct BlockCopy {
  BlockId from;
  BlockId to;

  bool operator==(const BlockCopy&) const = default;
};

}  // namespace quire
