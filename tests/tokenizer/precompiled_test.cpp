#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tokenizer/normalizer.h"

namespace quire {
namespace {

using Units = std::vector<std::uint32_t>;

std::string to_base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

void append_number(std::string& bytes, std::uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(number >> shift & 0xFF));
}

std::string charsmap(const Units& units, std::string_view replacements) {
  std::string bytes;
  append_number(bytes, static_cast<std::uint32_t>(units.size() * 4));
  for (const std::uint32_t unit : units) append_number(bytes, unit);
  return to_base64(bytes + std::string(replacements));
}

// The trie of the one key "A": the root's offset is 0, the unit of "A" is at 'A', its leaf at 'A' ^ 2.
Units trie_of_a(std::uint32_t value) {
  Units units(70);
  units['A'] = 'A' | 1u << 8 | 2u << 10;
  units['A' ^ 2] = value;
  return units;
}

std::string normalized(const std::string& base64, std::string_view text) {
  const Json config = {{"type", "Precompiled"}, {"precompiled_charsmap", base64}};
  std::string buffer;
  return std::string(Normalizer(JsonView(config, "normalizer")).apply(text, buffer));
}

TEST(PrecompiledTest, ReplacesWhatARuleMatches) {
  const std::string map = charsmap(trie_of_a(2), std::string_view("x\0yz\0", 5));
  EXPECT_EQ(normalized(map, ""), "");
  EXPECT_EQ(normalized(map, "A cAb B"), "yz cyzb B");
  EXPECT_EQ(normalized(charsmap(trie_of_a(5), std::string_view("x\0yz\0", 5)), "cA"), "c");
}

// SentencePiece itself would keep the mark; the reference for tokenizer.json does not.
TEST(PrecompiledTest, AShortGraphemeIsReplacedWhole) {
  const std::string map = charsmap(trie_of_a(0), "x");
  EXPECT_EQ(normalized(map, "A\u0301b"), "xb");
  EXPECT_EQ(normalized(map, "A\u0301\u0301\u0301b"), "x\u0301\u0301\u0301b");
}

TEST(PrecompiledTest, WhatLiesOutsideTheTablesMatchesNothing) {
  EXPECT_EQ(normalized(charsmap(trie_of_a(2), "x"), "A"), "A");
  EXPECT_EQ(normalized(charsmap(trie_of_a(0x7FFFFFFF), "x"), "A"), "A");
  EXPECT_EQ(normalized(charsmap(trie_of_a(1), "\u00E9"), "A"), "A") << "within a character";
  Units far = trie_of_a(0);
  far['A'] = 'A' | 1u << 8 | 1u << 9 | 0x3FFFFFu << 10;
  EXPECT_EQ(normalized(charsmap(far, "x"), "A"), "A");
  EXPECT_EQ(normalized(charsmap({0xFFFFFFFF}, "x"), "A\xF0\x9F\x98\x80"), "A\U0001F600");
}

TEST(PrecompiledTest, RefusesMalformedMaps) {
  for (const std::string& map : {std::string(), std::string("AAAA"), std::string("****"), charsmap({}, "x"),
                                 charsmap(trie_of_a(0), "\xFF"), charsmap(trie_of_a(0), "").substr(0, 90)}) {
    EXPECT_THROW(normalized(map, "A"), Error) << map;
  }
}

}  // namespace
}  // namespace quire
