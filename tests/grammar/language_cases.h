#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "grammar/grammar_helpers.h"

namespace quire::grammar::test {

// A source, and texts that it allows and that it does not.
struct Case {
  Kind kind;
  std::string_view source;
  std::vector<std::string_view> accepted, rejected;
};

inline void check(const Case& of) {
  SCOPED_TRACE(of.source);
  const auto grammar = compiled(of.kind, of.source);
  for (const auto text : of.accepted) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const auto text : of.rejected) EXPECT_FALSE(accepts(grammar, text)) << text;
}

// A source that is refused, in one line, with these parts of a message.
struct Refusal {
  Kind kind;
  std::string_view source;
  std::vector<std::string_view> parts;
};

inline void check(const Refusal& of) {
  SCOPED_TRACE(of.source);
  try {
    compiled(of.kind, of.source);
    ADD_FAILURE() << "no error";
  } catch (const GrammarError& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(message.find('\n'), std::string_view::npos) << message;
    for (const auto part : of.parts) EXPECT_NE(message.find(part), std::string_view::npos) << message;
  }
}

}  // namespace quire::grammar::test
