#include "parallel/rank_sum.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace quire {
namespace {

// Elements whose sums are kept in the first-level cache while the parts pass by.
constexpr std::int64_t kBlock = 1024;

// Not inlined: the loop over the parts is not to be merged with the one over the elements, which are added as
// vectors here.
template <typename T>
[[gnu::noinline]] void add_part(float* sums, const T* part, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += to_float(part[i]);
}

// Elements [begin, begin + count) of out, at most kBlock of them. Every part is read before out is written.
template <typename T>
void add_block(T* out, std::span<const std::byte* const> parts, std::int64_t begin, std::int64_t count) {
  std::array<float, kBlock> block;
  float* sums = block.data();
  const auto* first = reinterpret_cast<const T*>(parts[0]) + begin;
  for (std::int64_t i = 0; i < count; ++i) sums[i] = to_float(first[i]);
  for (const std::byte* part : parts.subspan(1))
    add_part(sums, reinterpret_cast<const T*>(part) + begin, count);
  out += begin;
  for (std::int64_t i = 0; i < count; ++i) out[i] = from_float<T>(sums[i]);
}

}  // namespace

void add_in_order(const Tensor& out, std::span<const std::byte* const> parts, std::int64_t begin,
                  std::int64_t count) {
  QUIRE_CHECK(is_float(out.dtype()) && out.contiguous() && !parts.empty(), "{} parts of {}", parts.size(),
              out.describe());
  QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= out.numel(), "{} + {} of {}", begin, count,
              out.describe());
  const std::int64_t end = begin + count;
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t at = begin; at < end; at += kBlock)
      add_block(out.data_as<T>(), parts, at, std::min(kBlock, end - at));
  });
}

}  // namespace quire
