#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

using Texts = std::vector<std::string>;

Texts matches(std::string_view pattern, std::string_view text) {
  RegexScanner scanner(Regex::from_oniguruma(pattern, "pattern"));
  scanner.start(text);
  Texts found;
  while (const auto match = scanner.next())
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
  return found;
}

TEST(RegexTest, ClassEscapesMeanWhatTheyMeanInOniguruma) {
  EXPECT_EQ(matches("\\s", "a\u180E \u0085\u3000"), (Texts{" ", "\u0085", "\u3000"}));  // U+180E is no space
  EXPECT_EQ(matches("\\S+", "a\u180E b"), (Texts{"a\u180E", "b"}));
  EXPECT_EQ(matches("\\w+", "ab\u0301_1-\u00B2\u2460\u24D0"), (Texts{"ab\u0301_1", "\u00B2", "\u24D0"}));
  EXPECT_EQ(matches("\\d+", "12\u0663\u00BD"), (Texts{"12\u0663"}));
  EXPECT_EQ(matches("\\h+", "xBEEF f"), (Texts{"BEEF", "f"}));
  EXPECT_EQ(matches("[^\\s\\d]+", "a1 b"), (Texts{"a", "b"}));
  EXPECT_EQ(matches("\\u00e9\\v", "\u00E9\x0B\u00E9\n"), (Texts{"\u00E9\x0B"}));
}

// U+3001 is used with Han, but is not of that script.
TEST(RegexTest, ScriptsExcludeTheirExtensions) {
  EXPECT_EQ(matches("\\p{Han}+", "\u6F22\u3001\u5B57"), (Texts{"\u6F22", "\u5B57"}));
}

TEST(RegexTest, NestedClassesAddUp) {
  EXPECT_EQ(matches(" ?[^(\\s|[.,!?])]+", "(a b.c"), (Texts{"a", " b", "c"}));  // BLOOM's
}

TEST(RegexTest, AnchorsAreThoseOfLines) {
  EXPECT_EQ(matches("^a|b$", "ab\nab"), (Texts{"a", "b", "a", "b"}));
}

TEST(RegexTest, EmptyMatchesCountOnlyApartFromTheLastOne) {
  EXPECT_EQ(matches("x*", "axxb"), (Texts{"", "xx", ""}));
}

TEST(RegexTest, FindsWhatLiesFarAway) {
  const std::string text = std::string(20000, '-') + "\u00E9" + std::string(5000, '-') + "b";
  EXPECT_EQ(matches("[\u00E9b]", text), (Texts{"\u00E9", "b"}));
}

TEST(RegexTest, RefusesWhatWouldMeanSomethingElse) {
  for (const char* pattern :
       {"a{1,2}+",       "a{2}?", "[a&&b]", "[a[^b]]", "[[:alpha:]]", "(?m:a)",  "a(?i)b",    "(a)\\1",
        "\\R",           "\\",    "\\u12",  "\\pL",    "[\\W]",       "(?<n>a)", "(*ACCEPT)", "\\p{}",
        "\\p{Nonsense}", "(",     "[a",     "\\C",     "\\K",         "\\Qa\\E"}) {
    EXPECT_THROW(Regex::from_oniguruma(pattern, "pattern"), Error) << pattern;
  }
  EXPECT_THROW(Regex::from_oniguruma(std::string(20000, 'a'), "pattern"), Error);
  EXPECT_THROW(Regex::from_oniguruma(std::string(200, '(') + std::string(200, ')'), "pattern"), Error);
}

TEST(RegexTest, APatternThatExplodesIsAnError) {
  EXPECT_THROW(matches("(?:a+)+b", std::string(5000, 'a') + "c b"), Error);
}

// Each match takes some ten thousand steps, far from its own limit.
TEST(RegexTest, ManySlowMatchesEndAtTheLimitOfTime) {
  const Regex regex = Regex::from_oniguruma("(?:a+)+b|a", "pattern");
  const auto scan = [&](int num_words, std::chrono::nanoseconds limit) {
    std::string text;
    for (int i = 0; i < num_words; ++i) text += std::string(14, 'a') + " ";
    RegexScanner scanner(regex, limit);
    scanner.start(text);
    int found = 0;
    while (scanner.next()) ++found;
    return found;
  };
  EXPECT_EQ(scan(1, std::chrono::nanoseconds(0)), 14);  // too short for a look at the clock
  EXPECT_EQ(scan(40, std::chrono::hours(1)), 14 * 40);
  EXPECT_THROW(scan(40, std::chrono::nanoseconds(0)), Error);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(scan(1'000'000, std::chrono::milliseconds(50)), Error);  // minutes without it
  EXPECT_LT(std::chrono::steady_clock::now() - start, RegexScanner::kTimeLimit);
}

}  // namespace
}  // namespace quire
