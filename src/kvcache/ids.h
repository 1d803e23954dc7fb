#pragma once

#include <cstdint>
#include <vector>

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

// Between slots of fixed states and those of host memory: first the saves, then the restores.
struct StateCopies {
  std::vector<BlockCopy> saves, restores;
};

}  // namespace quire
