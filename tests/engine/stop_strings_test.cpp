#include <gtest/gtest.h>

#include <random>

#include "engine/output_processor.h"

namespace quire {
namespace {

using Place = StopPlace;
using Stops = std::vector<std::string>;

TEST(StopStringsTest, FindsTheEarliestAcrossPieces) {
  const Stops stops = {"END", "stop"};
  EXPECT_EQ(find_stop(stops, "abcEND", 5), (Place{3, 6}));
  EXPECT_EQ(find_stop(stops, "abcstopEND", 0), (Place{3, 7}));
  EXPECT_EQ(find_stop(stops, "abcEN", 4), std::nullopt);
  EXPECT_EQ(find_stop(stops, "", 0), std::nullopt);
}

TEST(StopStringsTest, TheShortestAtAPlaceEndsFirst) {
  const Stops stops = {"END.", "END", "stop"};
  EXPECT_EQ(find_stop(stops, "abcEND.", 3), (Place{3, 6}));
  EXPECT_EQ(find_stop(stops, "abcstop", 3), (Place{3, 7}));
  EXPECT_EQ(find_stop(stops, "abcEND.", 6), (Place{3, 7}));  // END was there before, and did not count
}

TEST(StopStringsTest, HoldsBackTheLongestPossibleBeginning) {
  const Stops stops = {"END", "NDX"};
  EXPECT_EQ(num_held_back(stops, "abcE"), 1U);
  EXPECT_EQ(num_held_back(stops, "abcEN"), 2U);
  EXPECT_EQ(num_held_back(stops, "abcND"), 2U);
  EXPECT_EQ(num_held_back(stops, "abc"), 0U);
  EXPECT_EQ(num_held_back({}, "abc"), 0U);
}

// Fed in pieces of any size, the text before the stop string comes out, and nothing of it.
TEST(StopStringsTest, PiecesOfAnySizeGiveTheSameText) {
  std::mt19937 random(5);
  const Stops stops = {"aab", "bb", "abaab"};
  for (int round = 0; round < 2000; ++round) {
    std::string all;
    for (int i = 0; i < 20; ++i) all += "ab"[random() % 2];
    const std::size_t expected = find_stop(stops, all, 0).value_or(Place{all.size(), 0}).begin;
    std::string text;
    std::size_t found = all.size();
    std::size_t released = 0;
    for (std::size_t at = 0; at < all.size() && found == all.size();) {
      const std::size_t n = std::min<std::size_t>(1 + random() % 4, all.size() - at);
      const std::size_t old_size = text.size();
      text += all.substr(at, n);
      at += n;
      found = find_stop(stops, text, old_size).value_or(Place{all.size(), 0}).begin;
      if (found == all.size()) released = text.size() - num_held_back(stops, text);
    }
    EXPECT_LE(released, expected);
    // A piece may bring two at once; the earlier one counts, as in the whole text.
    EXPECT_EQ(found, expected) << all;
  }
}

}  // namespace
}  // namespace quire
