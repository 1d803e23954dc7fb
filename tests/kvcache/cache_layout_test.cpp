#include "kvcache/cache_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

TEST(CacheLayoutTest, ATokenAttendsToItselfAndWhatIsBeforeItInTheWindow) {
  const CacheLayout layout{.windows = {0, 5}};
  for (int lane = 0; lane < 2; ++lane) {
    const int window = lane == 0 ? 100 : 5;
    for (int first = 0; first < 12; ++first) {
      std::uint64_t expected = 0;
      for (int count = 1; count < 12; ++count) {
        expected += static_cast<std::uint64_t>(std::min(first + count, window));
        EXPECT_EQ(layout.attention_pairs(lane, first, count), expected) << first << ", " << count;
      }
    }
  }
}

}  // namespace
}  // namespace quire
