#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/chat_template.h"
#include "tokenizer/tiny_tokenizer.h"

namespace quire {
namespace {

using test::added_token;
using test::load;
using test::load_error;
using test::tiny_unigram_json;
using test::tokens_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(UnigramTest, TakesTheBestSumOfScores) {
  const auto best = [](double whole) {
    return tokens_of(load(tiny_unigram_json({{"a", -1}, {"b", -2}, {"ab", whole}})), "ab");
  };
  EXPECT_THAT(best(-2.5), ElementsAre("ab"));
  EXPECT_THAT(best(-3.5), ElementsAre("a", "b"));
}

TEST(UnigramTest, OfEqualSumsTheLongerLastTokenWins) {
  const Tokenizer tokenizer =
      load(tiny_unigram_json({{"a", -1}, {"b", -1}, {"c", -1}, {"ab", -2}, {"bc", -2}}));
  EXPECT_THAT(tokens_of(tokenizer, "ab"), ElementsAre("ab"));
  EXPECT_THAT(tokens_of(tokenizer, "abc"), ElementsAre("a", "bc"));
}

TEST(UnigramTest, ARunOfUnknownCharactersIsOneToken) {
  const Tokenizer tokenizer = load(tiny_unigram_json({{"a", -1}}));
  EXPECT_THAT(tokens_of(tokenizer, "x\u00E9\U0001F600axa"), ElementsAre("<unk>", "a", "<unk>", "a"));
}

TEST(UnigramTest, BytesSpellUnknownTextIfAllAreThere) {
  Json config = tiny_unigram_json({{"a", -1}, {"<0xC3>", -9}, {"<0xA9>", -9}});
  EXPECT_THAT(tokens_of(load(config), "a\u00E9"), ElementsAre("a", "<unk>"));
  config["model"]["byte_fallback"] = true;
  EXPECT_THAT(tokens_of(load(config), "a\u00E9"), ElementsAre("a", "<0xC3>", "<0xA9>"));
  EXPECT_THAT(tokens_of(load(config), "a\u00E8"), ElementsAre("a", "<unk>"));
}

TEST(UnigramTest, TextNeverBecomesASpecialToken) {
  Json config = tiny_unigram_json({{"a", -1}, {"</s>", 0}});
  config["added_tokens"] = Json::array({added_token(2, "</s>", {"special"})});
  const Tokenizer tokenizer = load(config);
  const std::vector<TextPiece> typed = {{.text = "a</s>", .trusted = false}};
  EXPECT_THAT(tokenizer.encode(typed, false), ElementsAre(1, 0));
  EXPECT_THAT(tokenizer.encode("a</s>"), ElementsAre(1, 2));
}

TEST(UnigramTest, RefusesUnknownTextWithoutATokenForIt) {
  Json config = tiny_unigram_json({{"a", -1}});
  config["model"].erase("unk_id");
  const Tokenizer tokenizer = load(config);
  EXPECT_THAT(tokenizer.encode("a"), ElementsAre(1));
  EXPECT_THROW(tokenizer.encode("b"), Error);
}

TEST(UnigramTest, RefusesMalformedTables) {
  const auto with = [](const Json& vocab) {
    Json config = tiny_unigram_json({});
    config["model"]["vocab"] = vocab;
    return load_error(config);
  };
  const std::string wrong = "tiny.json: model.vocab: the list must hold a text and its score";
  for (const char* vocab :
       {R"(["a"])", R"([["a"]])", R"([[1, "a"]])", R"([["a", 1, 2]])", R"([["a", "b"]])", R"([["a", null]])",
        R"([["a", [1]]])", R"([{"a": 1}])", R"([["a", 1], 7])", R"([[]])", R"([["a", true]])"}) {
    EXPECT_THAT(with(Json::parse(vocab)), HasSubstr(wrong)) << vocab;
  }
  EXPECT_THAT(with(Json::array()), HasSubstr("\"vocab\" is missing or empty"));
  EXPECT_THAT(with(Json::parse(R"([["a", 1], ["a", 2]])")), HasSubstr("stands twice"));
  Json config = tiny_unigram_json({});
  config["model"]["unk_id"] = 1;
  EXPECT_THAT(load_error(config), HasSubstr("model.unk_id"));
}

}  // namespace
}  // namespace quire
