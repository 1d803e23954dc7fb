#include "tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

using Pieces = std::vector<std::string>;

Pieces cut(const Json& config, std::string_view text, bool is_beginning = true) {
  PreTokenizer pre_tokenizer(JsonView(config, "pre_tokenizer"));
  if (pre_tokenizer.is_byte_level()) pre_tokenizer.leave_bytes();
  PreTokens tokens;
  tokens.start(text, is_beginning);
  pre_tokenizer.run(tokens);
  Pieces pieces;
  for (const TextRange& range : tokens.pieces()) pieces.emplace_back(range.of(tokens.text()));
  return pieces;
}

Json byte_level(bool use_regex = false, bool add_prefix_space = false) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", use_regex}};
}
Json before_byte_level(const Json& step) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({step, byte_level()})}};
}
Pieces split(std::string_view regex, std::string_view behavior, bool invert, std::string_view text) {
  return cut(
      before_byte_level(
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}}),
      text);
}

TEST(PreTokenizerTest, SplitKeepsOrMergesWhatItMatches) {
  EXPECT_EQ(split("-", "Removed", false, "-a--b"), (Pieces{"a", "b"}));
  EXPECT_EQ(split("-", "Isolated", false, "-a--b"), (Pieces{"-", "a", "-", "-", "b"}));
  EXPECT_EQ(split("-", "MergedWithPrevious", false, "-a--b"), (Pieces{"-", "a-", "-", "b"}));
  EXPECT_EQ(split("-", "MergedWithNext", false, "-a--b"), (Pieces{"-a", "-", "-b"}));
  EXPECT_EQ(split("-", "Contiguous", false, "-a--b"), (Pieces{"-", "a", "--", "b"}));
}

TEST(PreTokenizerTest, InvertedSplitKeepsOrMergesWhatLiesBetween) {
  EXPECT_EQ(split("-", "Removed", true, "-a--b"), (Pieces{"-", "-", "-"}));
  EXPECT_EQ(split("-", "MergedWithPrevious", true, "-a--b"), (Pieces{"-a", "-", "-b"}));
  EXPECT_EQ(split("-", "MergedWithNext", true, "-a--b"), (Pieces{"-", "a-", "-", "b"}));
}

TEST(PreTokenizerTest, SplitTakesAStringAsItIs) {
  const Json step = {
      {"type", "Split"}, {"pattern", {{"String", ".*"}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_EQ(cut(before_byte_level(step), "a.*b.b"), (Pieces{"a", ".*", "b.b"}));
}

TEST(PreTokenizerTest, ByteLevelSplitsAsGpt2Does) {
  EXPECT_EQ(cut(byte_level(true), "I'll go,  now  12"),
            (Pieces{"I", "'ll", " go", ",", " ", " now", " ", " 12"}));
}

TEST(PreTokenizerTest, AddsOneSpaceInFrontUnlessThereIsOne) {
  EXPECT_EQ(cut(byte_level(false, true), "a"), (Pieces{" a"}));
  EXPECT_EQ(cut(byte_level(false, true), " a"), (Pieces{" a"}));
  EXPECT_EQ(cut(byte_level(false, true), ""), (Pieces{}));
}

TEST(PreTokenizerTest, DigitsPunctuationAndWhitespace) {
  EXPECT_EQ(cut(before_byte_level({{"type", "Digits"}, {"individual_digits", true}}), "a12"),
            (Pieces{"a", "1", "2"}));
  EXPECT_EQ(cut(before_byte_level({{"type", "Digits"}, {"individual_digits", false}}), "a12"),
            (Pieces{"a", "12"}));
  EXPECT_EQ(cut(before_byte_level({{"type", "Punctuation"}}), "a.$。b"), (Pieces{"a", ".", "$", "。", "b"}));
  EXPECT_EQ(cut(before_byte_level({{"type", "WhitespaceSplit"}}), " a.b\u00A0c"), (Pieces{"a.b", "c"}));
  EXPECT_EQ(cut(before_byte_level({{"type", "Whitespace"}}), "a.b \u0301c"),
            (Pieces{"a", ".", "b", "\u0301c"}));
}

// The byte 0xB2 is written as the numeral U+00B2, which the steps behind ByteLevel see.
TEST(PreTokenizerTest, StepsBehindByteLevelSeeItsCharacters) {
  const Json config = {
      {"type", "Sequence"},
      {"pretokenizers", Json::array({byte_level(), {{"type", "Digits"}, {"individual_digits", true}}})}};
  EXPECT_EQ(cut(config, "a\u0432"), (Pieces{"a\xD0", "\xB2"}));
}

TEST(PreTokenizerTest, RefusesUnknownBehaviorAndMissingPattern) {
  const auto refuse = [](const Json& step) {
    EXPECT_THROW(cut(before_byte_level(step), "a"), Error) << step;
  };
  refuse({{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Sideways"}});
  refuse({{"type", "Split"}, {"pattern", "a"}, {"behavior", "Removed"}});
  refuse({{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Removed"}});
  refuse({{"type", "Split"}, {"pattern", {{"Regex", 3}}}, {"behavior", "Removed"}});
  refuse({{"type", "UnicodeScripts"}});
  refuse({{"type", "Metaspace"}, {"replacement", "__"}});
  refuse({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}});
}

Json metaspace(std::string_view scheme, bool split = true) {
  return {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}, {"split", split}};
}

TEST(PreTokenizerTest, MetaspaceWritesSpacesAndCutsInFrontOfThem) {
  EXPECT_EQ(cut(metaspace("always"), "a  b "), (Pieces{"_a", "_", "_b", "_"}));
  EXPECT_EQ(cut(metaspace("always", false), "a  b "), (Pieces{"_a__b_"}));
  EXPECT_EQ(cut(metaspace("always"), " a"), (Pieces{"_a"}));
  EXPECT_EQ(cut(metaspace("never"), "a b"), (Pieces{"a", "_b"}));
  EXPECT_EQ(cut(metaspace("always"), ""), (Pieces{}));
}

TEST(PreTokenizerTest, MetaspaceFirstPrependsToTheBeginningAlone) {
  EXPECT_EQ(cut(metaspace("first"), "a b", true), (Pieces{"_a", "_b"}));
  EXPECT_EQ(cut(metaspace("first"), "a b", false), (Pieces{"a", "_b"}));
  const auto behind = [](const Json& step) {
    return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({step, metaspace("first")})}};
  };
  EXPECT_EQ(cut(behind({{"type", "Digits"}}), "a1"), (Pieces{"_a", "1"}));
  EXPECT_EQ(cut(behind({{"type", "WhitespaceSplit"}}), "a b"), (Pieces{"_a", "b"}));
  EXPECT_EQ(cut(behind({{"type", "WhitespaceSplit"}}), " a b"), (Pieces{"a", "b"}));
}

TEST(PreTokenizerTest, MetaspaceReadsTheOlderSpelling) {
  const auto old = [](bool prefix) {
    return Json{{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", prefix}};
  };
  EXPECT_EQ(cut(old(true), "a b"), (Pieces{"_a", "_b"}));
  EXPECT_EQ(cut(old(false), "a b"), (Pieces{"a", "_b"}));
}

}  // namespace
}  // namespace quire
