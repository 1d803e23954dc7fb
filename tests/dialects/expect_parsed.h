#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "dialects/parse_pieces.h"

namespace quire::dialects::test {

using MakeParser = std::function<std::unique_ptr<OutputParser>()>;

// Ids "id1", "id2", ...
inline std::function<std::string()> counting_ids() {
  return [n = 0]() mutable { return format_text("id{}", ++n); };
}

// The text as a whole, cut in two and in three everywhere, byte by byte, and cut at random, all give
// `expected` (whose calls may go without ids: the n-th has "idn").
inline void expect_parsed(const MakeParser& make, std::string_view text, Parsed expected) {
  for (std::size_t i = 0; i < expected.calls.size(); ++i)
    if (expected.calls[i].id.empty()) expected.calls[i].id = format_text("id{}", i + 1);
  const auto parse = [&](const std::vector<std::string_view>& pieces) {
    return parse_pieces(*make(), pieces);
  };
  ASSERT_EQ(parse({text}), expected) << text;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    ASSERT_EQ(parse({text.substr(0, i), text.substr(i)}), expected) << text << "\ncut at " << i;
    for (std::size_t j = i + 1; j < text.size(); ++j) {
      ASSERT_EQ(parse({text.substr(0, i), text.substr(i, j - i), text.substr(j)}), expected)
          << text << "\ncut at " << i << " and " << j;
    }
  }
  std::mt19937 random(7);
  for (std::size_t most = 1; most < 12; ++most) {  // at first byte by byte
    std::vector<std::string_view> pieces;
    for (std::size_t i = 0; i < text.size(); i += pieces.back().size()) {
      pieces.push_back(text.substr(i, 1 + random() % most));
    }
    ASSERT_EQ(parse(pieces), expected) << text << "\nin pieces of up to " << most;
  }
}

}  // namespace quire::dialects::test
