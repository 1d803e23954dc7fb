#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor.h"

namespace quire {

// out = parts[0] + parts[1] + ..., added in float32 in that order and rounded once to out's dtype, for
// elements [begin, begin + count), which are all that is read or written. out: contiguous, float32, bfloat16
// or float16; parts: one pointer a rank to out.numel() values of that dtype, in rank order. A part may be
// out's own memory; none overlaps it otherwise.
void add_in_order(const Tensor& out, std::span<const std::byte* const> parts, std::int64_t begin,
                  std::int64_t count);

}  // namespace quire
