#include "inspect/latency_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/well_formed.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(LatencyPlotTest, DrawsEveryPointTwice) {
  const std::vector<LatencyPanel> panels = {
      {"TTFT", {{"1 at once", 100, 20, 40}, {"4 at once", 300, 30, 90}}},
      {"E2E", {{"1 at once", 100, 900, 1000}}}};
  const std::string svg = latency_plot("toy <a> & \x01 b", panels);
  test::expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<circle"), 6);
  EXPECT_EQ(count(svg, ">4 at once<"), 1);
  EXPECT_THAT(svg, HasSubstr("toy &lt;a&gt; &amp;  b"));
  EXPECT_THAT(svg, HasSubstr(">output tokens/s<"));
  // 300 tokens/s end the axis of 6 steps of 50; 90 ms lie 90 / 100 up its axis.
  EXPECT_THAT(svg, HasSubstr("cx=\"410.0\" cy=\"85.0\""));
}

TEST(LatencyPlotTest, WhatIsNotFiniteIsNotDrawn) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<LatencyPanel> panels = {
      {"TTFT", {{"a", nan, 1, 2}, {"b", 1, nan, 2}, {"c", 1, std::numeric_limits<double>::infinity(), 2}}},
      {"none", {}}};
  const std::string svg = latency_plot("", panels);
  test::expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<circle"), 2);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(AxisTicksTest, AreRoundAndReachTheLargest) {
  EXPECT_THAT(axis_ticks(300, 6), ElementsAre(0, 50, 100, 150, 200, 250, 300));
  EXPECT_THAT(axis_ticks(7, 4), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_GE(axis_ticks(0, 6).size(), 2U);
  for (double largest = 1e-3; largest < 1e7; largest *= 1.37) {
    const std::vector<double> ticks = axis_ticks(largest, 6);
    EXPECT_GE(ticks.back(), largest);
    EXPECT_GE(ticks.size(), 3U);
    EXPECT_LE(ticks.size(), 7U) << largest;
  }
}

}  // namespace
}  // namespace quire
