#include <gtest/gtest.h>

#include <random>

#include "tokenizer/tiny_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

using test::added_token;
using test::load;
using test::tiny_tokenizer_json;

TEST(DetokenizerTest, HoldsBackACharacterUntilItIsWhole) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json());
  IncrementalDetokenizer detokenizer(tokenizer, false);
  EXPECT_EQ(detokenizer.push('a'), "a");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x98), "");
  EXPECT_EQ(detokenizer.push(0x80), "\U0001F600");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(DetokenizerTest, BytesThatCannotBecomeACharacterAreReplacedAtOnce) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json());
  IncrementalDetokenizer detokenizer(tokenizer, false);
  EXPECT_EQ(detokenizer.push(0xFF), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push(0x82), "");
  EXPECT_EQ(detokenizer.push('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(DetokenizerTest, SkipsSpecialTokensWithinACharacter) {
  Json config = tiny_tokenizer_json();
  config["added_tokens"] = {added_token(256, "<s>", {"special"})};
  const Tokenizer tokenizer = load(config);
  const auto stream = [&](bool skip) {
    IncrementalDetokenizer detokenizer(tokenizer, skip);
    std::string text;
    for (const TokenId id : {0xC3, 256, 0xA9}) text += detokenizer.push(id);
    return text;
  };
  EXPECT_EQ(stream(true), "\u00E9");
  EXPECT_EQ(stream(false), "\uFFFD<s>\uFFFD");
}

TEST(DetokenizerTest, WhatFollowsTextKeepsItsFirstSpace) {
  Json config = test::tiny_sentencepiece_json();
  config["added_tokens"] = {added_token(0, "<unk>", {"special"})};
  const TokenId a = config["model"]["vocab"]["a"], space = config["model"]["vocab"]["_"];
  for (const char* decoder :
       {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})", ""}) {
    if (*decoder != '\0') config["decoder"] = Json::parse(decoder);
    const Tokenizer tokenizer = load(config);
    const auto text_behind = [&](std::vector<TokenId> prompt, bool skip = true) {
      IncrementalDetokenizer detokenizer(tokenizer, skip);
      detokenizer.follow(prompt);
      std::string text = detokenizer.push(space);
      text += detokenizer.push(a);
      return text + detokenizer.finish();
    };
    EXPECT_EQ(text_behind({}), "a");
    EXPECT_EQ(text_behind({0}), "a");  // nothing of it is shown
    EXPECT_EQ(text_behind({0}, false), " a");
    EXPECT_EQ(text_behind({0, a}), " a");
    EXPECT_EQ(text_behind({1 + 0xE4}), " a");  // and nothing is left of a run of byte tokens
  }
}

// A token outside the byte alphabet stands for its own text.
TEST(DetokenizerTest, AddedTokensOutsideTheAlphabetAreText) {
  Json config = tiny_tokenizer_json();
  config["added_tokens"] = {added_token(256, "漢 字")};
  EXPECT_EQ(load(config).decode(std::vector<TokenId>{256}, false), "漢 字");
}

TEST(DetokenizerTest, StreamingEqualsDecodingAtOnceForAnyIds) {
  Json config = tiny_tokenizer_json({"Ã ©", "â Ĥ", "ð Ł"});  // a whole character, and two beginnings
  config["added_tokens"] = {added_token(300, "<s>", {"special"}), added_token(301, "é ")};
  const Tokenizer tokenizer = load(config);
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::vector<TokenId> ids(random() % 12);
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(random() % 2 == 0 ? 0x80 + random() % 0x90 : random() % 310);
    }
    const bool skip = round % 2 == 0;
    IncrementalDetokenizer detokenizer(tokenizer, skip);
    std::string streamed;
    for (const TokenId id : ids) {
      const std::string text = detokenizer.push(id);
      ASSERT_EQ(valid_utf8_prefix(text), text.size());
      streamed += text;
    }
    streamed += detokenizer.finish();
    ASSERT_EQ(streamed, tokenizer.decode(ids, skip));
  }
}

// The examples of Unicode 15, table 3-8 and its neighbours: one U+FFFD a maximal subpart.
TEST(DetokenizerTest, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

}  // namespace
}  // namespace quire
