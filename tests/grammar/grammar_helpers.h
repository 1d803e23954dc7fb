#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace quire::grammar::test {

using Kind = Source::Kind;

inline constexpr int kEnd = 256;      // the end token of vocabulary()
inline constexpr int kSpecial = 257;  // "<|call|>", special

// Every byte as a token, an end token, a special token, and longer tokens that cross what grammars tell
// apart: parts of JSON, of words and of characters, and one text twice.
inline const std::shared_ptr<const Vocabulary>& vocabulary() {
  static const auto instance = [] {
    std::vector<TokenText> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte)), false});
    tokens.push_back({"</s>", true});
    tokens.push_back({"<|call|>", true});
    for (const char* text : {"{\"",
                             "\":",
                             "\": ",
                             "\",",
                             "\", \"",
                             "\"}",
                             "\"]",
                             "}}",
                             "[[",
                             "],",
                             "},{",
                             "true",
                             "false",
                             "null",
                             "tr",
                             "lse",
                             "12",
                             "345",
                             "0.5",
                             "-1",
                             "e+",
                             "00",
                             "a",
                             "ab",
                             "abc",
                             "name",
                             "na",
                             "me\"",
                             "\xC3\xA9",
                             "\xC3",
                             "\xA9\"",
                             "\xF0\x9F",
                             "\x98\x80",
                             "\\n",
                             "\\",
                             "\\u00",
                             "\\\"",
                             "  ",
                             "\n  ",
                             "\n    ",
                             " {",
                             "hello world",
                             "hello \"",
                             "[]",
                             "<|call|>",
                             "ll|>",
                             "<tool>",
                             "</tool>",
                             "ol>{",
                             "2024-",
                             "-02-29",
                             "x",
                             "xx",
                             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                             "xyzxyzxyzxyzxyzxyzxyzxyzxyz",
                             "                                ",
                             "xyz",
                             "y,",
                             ", "})
      tokens.push_back({text, false});
    tokens.push_back({"", false});
    return std::make_shared<const Vocabulary>(std::move(tokens), std::vector<int>{kEnd});
  }();
  return instance;
}

// As much time as a slow machine takes under a sanitizer.
inline Limits with_memory(std::size_t bytes = Limits{}.memory_bytes) {
  constexpr std::chrono::hours kAnyTime(1);
  return {.memory_bytes = bytes, .compile_time = kAnyTime, .mask_time = kAnyTime, .output_time = kAnyTime};
}

inline std::shared_ptr<const Grammar> compiled(Source::Kind kind, std::string_view text,
                                               const Limits& limits = with_memory()) {
  return compile({.kind = kind, .source = std::string(text)}, vocabulary(), limits);
}

// Whether the text, byte by byte, is one of the grammar's.
inline bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  for (const char byte : text)
    if (!matcher.accept(static_cast<unsigned char>(byte))) return false;
  return matcher.accept(kEnd);
}

inline std::vector<std::uint32_t> mask_of(const Matcher& matcher) {
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  matcher.fill_mask(mask);
  return mask;
}

inline bool allowed(const std::vector<std::uint32_t>& mask, int token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) != 0;
}

// The mask as accept() has it, of every token tried.
inline std::vector<std::uint32_t> naive_mask(const Matcher& matcher) {
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  for (int token = 0; token < vocabulary()->size(); ++token) {
    Matcher copy = matcher;
    if (copy.accept(token)) mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
  }
  return mask;
}

// A token of the mask at random; the end token, and those that end something, more often than others.
inline int random_token(const std::vector<std::uint32_t>& mask, std::mt19937& random) {
  std::vector<int> all, closing;
  for (int token = 0; token < vocabulary()->size(); ++token) {
    if (!allowed(mask, token)) continue;
    all.push_back(token);
    const std::string& bytes = vocabulary()->token(token).bytes;
    if (token == kEnd || bytes == "\"" || bytes == "}" || bytes == "]") closing.push_back(token);
  }
  const std::vector<int>& from = !closing.empty() && random() % 3 != 0 ? closing : all;
  return from.at(random() % from.size());
}

}  // namespace quire::grammar::test
