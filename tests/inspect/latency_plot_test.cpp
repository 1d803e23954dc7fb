#include "inspect/latency_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Takes `what` off the front of `text` as far as it goes; true where it took something.
bool skip(std::string_view& text, const char* what) {
  const std::size_t length = std::min(text.find_first_not_of(what), text.size());
  text.remove_prefix(length);
  return length > 0;
}

// Of a tag's inside behind its name: attributes with quoted values that hold no quote, angle bracket or
// ampersand.
bool are_attributes(std::string_view text) {
  constexpr char kNames[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-";
  while (!text.empty()) {
    if (!text.starts_with(' ')) return false;
    text.remove_prefix(1);
    if (!skip(text, kNames) || !text.starts_with("=\"")) return false;
    text.remove_prefix(2);
    const std::size_t end = text.find_first_of("\"<&");
    if (end == text.npos || text[end] != '"') return false;
    text.remove_prefix(end + 1);
  }
  return true;
}

bool is_text(std::string_view text) {
  for (std::size_t i = text.find_first_of("<>&"); i != text.npos; i = text.find_first_of("<>&", i + 1)) {
    const std::string_view rest = text.substr(i);
    if (!rest.starts_with("&lt;") && !rest.starts_with("&gt;") && !rest.starts_with("&amp;")) return false;
  }
  return true;
}

// Tags are closed in order, attributes quoted, and nothing else holds an angle bracket or a bare ampersand.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string_view> open;
  std::string_view rest = svg;
  while (rest.find('<') != rest.npos) {
    const std::string_view between = rest.substr(0, rest.find('<'));
    EXPECT_TRUE(is_text(between)) << between;
    rest.remove_prefix(between.size() + 1);
    ASSERT_NE(rest.find('>'), rest.npos) << rest;
    const std::string_view tag = rest.substr(0, rest.find('>'));
    rest.remove_prefix(tag.size() + 1);
    const bool closes = tag.starts_with('/'), is_empty = tag.ends_with('/');
    const std::string_view inside = tag.substr(closes ? 1 : 0, tag.size() - (closes || is_empty ? 1 : 0));
    std::string_view attributes = inside;
    EXPECT_TRUE(skip(attributes, "abcdefghijklmnopqrstuvwxyz")) << tag;
    const std::string_view name = inside.substr(0, inside.size() - attributes.size());
    EXPECT_TRUE(are_attributes(attributes)) << tag;
    if (closes) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (!is_empty) {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(rest, "\n");
}

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
  expect_well_formed(svg);
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
  expect_well_formed(svg);
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
