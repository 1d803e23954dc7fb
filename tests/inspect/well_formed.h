#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

// Of drawings in SVG.
namespace quire::test {

// Takes `what` off the front of `text` as far as it goes; true where it took something.
inline bool skip(std::string_view& text, const char* what) {
  const std::size_t length = std::min(text.find_first_not_of(what), text.size());
  text.remove_prefix(length);
  return length > 0;
}

// Of a tag's inside behind its name: attributes with quoted values that hold no quote, angle bracket or
// ampersand.
inline bool are_attributes(std::string_view text) {
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

inline bool is_text(std::string_view text) {
  for (std::size_t i = text.find_first_of("<>&"); i != text.npos; i = text.find_first_of("<>&", i + 1)) {
    const std::string_view rest = text.substr(i);
    if (!rest.starts_with("&lt;") && !rest.starts_with("&gt;") && !rest.starts_with("&amp;")) return false;
  }
  return true;
}

// Tags are closed in order, attributes quoted, and nothing else holds an angle bracket or a bare ampersand.
inline void expect_well_formed(const std::string& svg) {
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

}  // namespace quire::test
