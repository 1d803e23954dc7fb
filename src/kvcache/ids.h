#pragma once

#include <cstdint>

namespace quire {

using TokenId = std::int32_t;
using BlockId = std::int32_t;
using SequenceId = std::uint64_t;

constexpr BlockId kNoBlock = -1;

// One block's contents go to another, in every layer; which may be one of another memory.
struct BlockCopy {
  BlockId from;
  BlockId to;

  bool operator==(const BlockCopy&) const = default;
};

}  // namespace quire
