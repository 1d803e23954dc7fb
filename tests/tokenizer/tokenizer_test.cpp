#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <type_traits>
#include <utility>

#include "temp_dir.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tiny_tokenizer.h"

namespace quire {
namespace {

using test::added_token;
using test::load;
using test::load_error;
using test::load_text_error;
using test::tiny_tokenizer_json;
using test::tokens_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json with_added(std::initializer_list<Json> tokens, const std::vector<std::string>& merges = {}) {
  Json config = tiny_tokenizer_json(merges);
  config["added_tokens"] = tokens;
  return config;
}

TEST(TokenizerTest, MergesLowestRankFirstAndLeftmostAmongEquals) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json({"b c", "a b", "a a"}));
  EXPECT_THAT(tokens_of(tokenizer, "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(tokens_of(tokenizer, "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(tokens_of(tokenizer, "aab"), ElementsAre("a", "ab"));
}

TEST(TokenizerTest, ATextOfAFolderBeginsWithTheTokenThatItsConfigurationAsksFor) {
  const TempDir folder;
  folder.write("tokenizer.json", with_added({added_token(256, "<s>")}).dump());
  const auto ids = [&](const char* config, bool add_special_tokens = true) {
    folder.write("tokenizer_config.json", config);
    return Tokenizer::from_folder(folder.path()).encode("a", add_special_tokens);
  };
  const char* asks = R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true,
                         "bos_token": {"content": "<s>"}})";
  EXPECT_THAT(ids(asks), ElementsAre(256, 97));
  EXPECT_THAT(ids(asks, false), ElementsAre(97));
  EXPECT_THAT(ids(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<s>"})"),
              ElementsAre(256, 97));
  EXPECT_THAT(ids(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "bos_token": "<s>"})"),
              ElementsAre(97));
  EXPECT_THAT(ids(R"({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true, "bos_token": "<s>"})"),
              ElementsAre(97));
  Json surrounded = with_added({added_token(256, "<s>")});
  surrounded["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"b", 98}}, {"sep", {"c", 99}}};
  folder.write("tokenizer.json", surrounded.dump());
  EXPECT_THAT(ids(asks), ElementsAre(98, 97, 99));
}

TEST(TokenizerTest, ReadsMergesAsPairs) {
  Json config = tiny_tokenizer_json({"a b"});
  config["model"]["merges"] = Json::array({Json::array({"a", "b"})});
  EXPECT_THAT(tokens_of(load(config), "ab"), ElementsAre("ab"));
}

TEST(TokenizerTest, IgnoreMergesTakesAPieceThatIsAToken) {
  Json config = tiny_tokenizer_json({"a b", "b c"});
  config["model"]["vocab"]["abc"] = 258;
  EXPECT_THAT(tokens_of(load(config), "abc"), ElementsAre("ab", "c"));
  config["model"]["ignore_merges"] = true;
  EXPECT_THAT(tokens_of(load(config), "abc"), ElementsAre("abc"));
}

TEST(TokenizerTest, UnknownBytesAreDroppedOrBecomeTheUnknownToken) {
  Json config = tiny_tokenizer_json();
  config["model"]["vocab"].erase("x");
  EXPECT_THAT(tokens_of(load(config), "axxb"), ElementsAre("a", "b"));
  config["model"]["vocab"]["<unk>"] = 256;
  config["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(tokens_of(load(config), "axxb"), ElementsAre("a", "<unk>", "<unk>", "b"));
  config["model"]["fuse_unk"] = true;
  EXPECT_THAT(tokens_of(load(config), "axxb"), ElementsAre("a", "<unk>", "b"));
}

TEST(TokenizerTest, CharactersWithoutATokenAreSpelledInBytes) {
  Json config = test::tiny_sentencepiece_json({"_ a", "a b"});
  EXPECT_THAT(tokens_of(load(config), "ab a\u00E8"), ElementsAre("_a", "b", "_a", "<0xC3>", "<0xA8>"));
  config["model"]["vocab"].erase("<0xC3>");
  EXPECT_THAT(tokens_of(load(config), "\u00E9\u00E8\u00E8b"), ElementsAre("_", "\u00E9", "<unk>", "b"));
  config["model"]["fuse_unk"] = false;
  EXPECT_THAT(tokens_of(load(config), "\u00E8\u00E8"), ElementsAre("_", "<unk>", "<unk>"));
}

// "b_" stands in a token, so that the text cannot be cut in front of that space.
TEST(TokenizerTest, MergesMayCrossSpaces) {
  const Tokenizer tokenizer = load(test::tiny_sentencepiece_json({"_ a", "b _", "b_ c"}));
  EXPECT_THAT(tokens_of(tokenizer, "b c ab ac"), ElementsAre("_", "b_c", "_a", "b", "_a", "c"));
}

TEST(TokenizerTest, OnlyThePieceThatBeginsTheTextGetsTheFirstSpace) {
  Json config = test::tiny_sentencepiece_json();
  config["added_tokens"] = Json::array({added_token(400, "<t>", {"rstrip"})});
  const Tokenizer tokenizer = load(config);
  EXPECT_THAT(tokens_of(tokenizer, "a<t> b"), ElementsAre("_", "a", "<t>", "b"));
  EXPECT_THAT(tokens_of(tokenizer, "<t>a"), ElementsAre("<t>", "a"));
  EXPECT_THAT(tokens_of(tokenizer, " a"), ElementsAre("_", "a"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<t> b"), false), "a<t>b");
}

TEST(TokenizerTest, AffixesMarkTheEndsOfWords) {
  Json config = Json::parse(R"({"pre_tokenizer": {"type": "WhitespaceSplit"},
    "decoder": {"type": "BPEDecoder", "suffix": "</w>"}, "added_tokens": [],
    "model": {"type": "BPE", "unk_token": "?", "end_of_word_suffix": "</w>", "continuing_subword_prefix": "#",
      "vocab": {"?": 0, "a": 1, "#b": 2, "#b</w>": 3, "ab</w>": 4, "a</w>": 5, "ab": 6},
      "merges": ["a #b</w>", "a #b"]}})");
  EXPECT_THAT(tokens_of(load(config), "ab a abb b"), ElementsAre("ab</w>", "a</w>", "ab", "#b</w>", "?"));
}

// As the library does since 0.23.
TEST(TokenizerTest, DecodesNormalizedAddedTokensAsTheyAreFound) {
  Json config = with_added({added_token(256, "YES", {"normalized"}), added_token(257, "NO")});
  config["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_EQ(load(config).decode(std::vector<TokenId>{256, 257}, false), "yesNO");
}

TEST(TokenizerTest, InvalidUtf8BecomesReplacementCharacters) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json());
  const std::string text = "a\xE2\x82z\xFF";  // a character cut short, then a byte that never occurs
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text), false), "a\uFFFDz\uFFFD");
}

TEST(TokenizerTest, RefusesATextBeyondTheLimit) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json());
  const std::string text((std::size_t{256} << 20) + 1, 'a');
  EXPECT_THROW(tokenizer.encode(text), Error);
}

TEST(TokenizerTest, FindsTheLongestAddedToken) {
  const Tokenizer tokenizer =
      load(with_added({added_token(256, "<a"), added_token(257, "<ab>"), added_token(258, "b>c")}));
  EXPECT_THAT(tokens_of(tokenizer, "x<ab>c<ab"), ElementsAre("x", "<ab>", "c", "<a", "b"));
  EXPECT_EQ(tokenizer.vocab_size(), 259);
}

static_assert(!std::is_copy_constructible_v<Tokenizer> && !std::is_copy_assignable_v<Tokenizer>);

TEST(TokenizerTest, AMovedOneFindsItsAddedTokens) {
  Tokenizer first = load(with_added({added_token(256, "<a>")}));
  Tokenizer second = std::move(first);
  EXPECT_THAT(tokens_of(second, "x<a>"), ElementsAre("x", "<a>"));
  first = load(with_added({added_token(256, "<b>")}));
  second = std::move(first);
  EXPECT_THAT(tokens_of(second, "x<a><b>"), ElementsAre("x", "<", "a", ">", "<b>"));
}

TEST(TokenizerTest, AddedTokensTakeSpaceAlongAndMayHaveToStandAlone) {
  const Tokenizer tokenizer =
      load(with_added({added_token(256, "<l>", {"lstrip"}), added_token(257, "<r>", {"rstrip"}),
                       added_token(258, "ww", {"single_word"})}));
  EXPECT_THAT(tokens_of(tokenizer, "a \n<l> b"), ElementsAre("a", "<l>", "Ġ", "b"));
  EXPECT_THAT(tokens_of(tokenizer, "a <r>\u00A0 b"), ElementsAre("a", "Ġ", "<r>", "b"));
  EXPECT_THAT(tokens_of(tokenizer, "ww-ww aww"), ElementsAre("ww", "-", "ww", "Ġ", "a", "w", "w"));
  EXPECT_THAT(tokens_of(tokenizer, "aww"), ElementsAre("a", "w", "w"));
  EXPECT_THAT(tokens_of(tokenizer, "éww"), ElementsAre("Ã", "©", "w", "w"));
}

TEST(TokenizerTest, NormalizedAddedTokensAreFoundInNormalisedText) {
  Json config = with_added({added_token(256, "YES", {"normalized"}), added_token(257, "NO")});
  config["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_EQ(load(config).encode("yEsNOno"), (std::vector<TokenId>{256, 257, 'n', 'o'}));
}

TEST(TokenizerTest, PostProcessorSurroundsTheTextOnDemand) {
  Json config = with_added({added_token(256, "<s>", {"special"}), added_token(257, "</s>", {"special"})});
  config["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
     "special_tokens": {"<s>": {"ids": [256]}, "</s>": {"ids": [257]}}}]})");
  const Tokenizer tokenizer = load(config);
  EXPECT_THAT(tokenizer.encode("a"), ElementsAre(256, 'a', 257));
  EXPECT_THAT(tokenizer.encode("a", false), ElementsAre('a'));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a"), true), "a");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a"), false), "<s>a</s>");
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_FALSE(tokenizer.is_special('a'));
}

TEST(TokenizerTest, DecodesUnknownIdsToNothing) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json());
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{'a', -1, 256, INT32_MAX, INT32_MIN, 'b'}, false), "ab");
}

TEST(TokenizerTest, UsableFromManyThreadsAtOnce) {
  const Tokenizer tokenizer = load(tiny_tokenizer_json({"a b", "ab a", "ab ab"}));
  const std::string text = "abababaabbab";
  const std::vector<TokenId> expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) EXPECT_EQ(tokenizer.encode(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// "<s>" is special, "<t>" is not.
Tokenizer trust_tokenizer() {
  return load(with_added({added_token(256, "<s>", {"special"}), added_token(257, "<t>")}));
}
std::vector<TokenId> encode(const Tokenizer& tokenizer, const std::vector<TextPiece>& pieces) {
  return tokenizer.encode(pieces, false);
}

TEST(TokenizerTrustTest, SpecialTokensAreFoundInTrustedPiecesOnly) {
  const Tokenizer tokenizer = trust_tokenizer();
  EXPECT_THAT(encode(tokenizer, {{"<s>", true}, {"<s><t>", false}, {"<s>", true}}),
              ElementsAre(256, '<', 's', '>', 257, 256));
}

TEST(TokenizerTrustTest, NoSpecialTokenCrossesABorderOfTrust) {
  const Tokenizer tokenizer = trust_tokenizer();
  EXPECT_THAT(encode(tokenizer, {{"<", true}, {"s>", false}}), ElementsAre('<', 's', '>'));
  EXPECT_THAT(encode(tokenizer, {{"<s", false}, {">", true}}), ElementsAre('<', 's', '>'));
  EXPECT_THAT(encode(tokenizer, {{"<", true}, {"s>", true}}), ElementsAre(256));
  EXPECT_THAT(encode(tokenizer, {{"<", false}, {"t>", true}}), ElementsAre(257));
}

TEST(TokenizerTrustTest, UntrustedTextCannotSwallowAControlToken) {
  const Tokenizer tokenizer =
      load(with_added({added_token(256, "<s>", {"special"}), added_token(257, "x<s>", {"special"})}));
  EXPECT_THAT(encode(tokenizer, {{"x", false}, {"<s>", true}}), ElementsAre('x', 256));
  EXPECT_THAT(encode(tokenizer, {{"x<s>", true}}), ElementsAre(257));
}

TEST(TokenizerTrustTest, MergesNeverMakeASpecialToken) {
  Json config = with_added({added_token(257, "ab", {"special"})}, {"c d", "a b"});
  EXPECT_THAT(encode(load(config), {{"ab", false}}), ElementsAre('a', 'b'));
  config["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode(load(config), {{"ab", false}}), ElementsAre('a', 'b'));
  EXPECT_THAT(encode(load(config), {{"ab", true}}), ElementsAre(257));
}

TEST(TokenizerTrustTest, SurvivesNormalisation) {
  Json config = with_added({added_token(256, "<S>", {"special", "normalized"})});
  config["normalizer"] =
      Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})");
  const Tokenizer tokenizer = load(config);
  EXPECT_THAT(encode(tokenizer, {{"<S>A", true}, {"<s>E\u0301", false}, {"<s>", true}}),
              ElementsAre(256, 'a', '<', 's', '>', 0xC3, 0xA9, 256));
}

TEST(TokenizerTrustTest, CharactersDoNotCrossPieces) {
  const Tokenizer tokenizer = trust_tokenizer();
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, {{"\xC3", false}, {"\xA9", true}}), false), "\uFFFD\uFFFD");
}

TEST(TokenizerFileTest, RefusesWhatIsNotSupportedByName) {
  const auto changed = [](const char* pointer, const Json& value) {
    Json config = tiny_tokenizer_json();
    config[Json::json_pointer(pointer)] = value;
    return load_error(config);
  };
  for (const char* model : {"WordPiece", "WordLevel"}) {
    EXPECT_THAT(changed("/model/type", model), HasSubstr(std::string("model.type: the model \"") + model));
  }
  EXPECT_THAT(changed("/model/type", "Unigram"), HasSubstr("not of the kind that Unigram has"));
  EXPECT_THAT(changed("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(changed("/normalizer", {{"type", "Sideways"}}), HasSubstr("the normalizer Sideways"));
  EXPECT_THAT(changed("/pre_tokenizer", {{"type", "UnicodeScripts"}}), HasSubstr("UnicodeScripts"));
  EXPECT_THAT(changed("/post_processor", {{"type", "Sideways"}}), HasSubstr("the post-processor Sideways"));
  EXPECT_THAT(changed("/decoder", {{"type", "WordPiece"}}), HasSubstr("the decoder WordPiece"));
  EXPECT_THAT(changed("/decoder", {{"type", "CTC"}}), HasSubstr("the decoder CTC"));
  EXPECT_THAT(changed("/decoder", nullptr), HasSubstr("decoder"));
  EXPECT_EQ(changed("/model/dropout", nullptr), "");
}

TEST(TokenizerFileTest, RefusesMalformedTables) {
  const auto changed = [](const char* pointer, const Json& value) {
    Json config = tiny_tokenizer_json({"a b"});
    config[Json::json_pointer(pointer)] = value;
    return load_error(config);
  };
  for (const Json& id : {Json(-1), Json(1.5), Json("1"), Json(nullptr), Json(true), Json(Json::array()),
                         Json(Json::object()), Json(INT32_MAX), Json(UINT64_MAX), Json(1 << 22)}) {
    EXPECT_THAT(changed("/model/vocab/a", id), HasSubstr("model.vocab: the id of \"a\"")) << id;
  }
  EXPECT_THAT(changed("/model/vocab/a", 'b'), HasSubstr("have the same id 98"));
  EXPECT_THAT(changed("/model/vocab", Json::object()), HasSubstr("model"));
  EXPECT_THAT(changed("/model/vocab", "x"), HasSubstr("\"vocab\" is missing or empty"));
  for (const Json& merge :
       {Json("ab"), Json("a  b"), Json("a b c"), Json({"a"}), Json({"a", "b", "c"}), Json(1),
        Json(Json::object()), Json({"a", 1}), Json(Json::array({Json::array({"a", "b"})}))}) {
    EXPECT_THAT(changed("/model/merges/0", merge), HasSubstr("model.merges[0]: must be two tokens")) << merge;
  }
  EXPECT_THAT(changed("/model/merges/0", "nowhere b"), HasSubstr("model.merges[0]: \"nowhere\" is no token"));
  EXPECT_THAT(changed("/model/merges/0", "a c"), HasSubstr("model.merges[0]: \"ac\" is no token"));
  EXPECT_THAT(changed("/model/unk_token", 7), ::testing::AnyOf("", HasSubstr("must be a string")));
}

TEST(TokenizerFileTest, RefusesMalformedAddedTokens) {
  const auto error = [](std::initializer_list<Json> tokens) { return load_error(with_added(tokens)); };
  EXPECT_THAT(error({added_token(256, "<a>"), added_token(256, "<b>")}), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(error({added_token(256, "<a>"), added_token(257, "<a>")}), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(error({added_token('a', "<a>")}), HasSubstr("belongs to another token"));
  EXPECT_THAT(error({added_token(256, "a")}), HasSubstr("belongs to another token"));
  EXPECT_THAT(error({added_token(-1, "<a>")}), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(error({added_token(INT32_MAX, "<a>")}), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(error({added_token(256, "")}), HasSubstr("added_tokens[0].content"));
  EXPECT_THAT(error({added_token(256, std::string(1000, 'a'))}), HasSubstr("added_tokens[0].content"));
  EXPECT_THAT(error({Json("<a>")}), HasSubstr("added_tokens[0]: must be an object"));
  EXPECT_EQ(error({added_token('a', "a")}), "");
}

TEST(TokenizerFileTest, RefusesAPostProcessorOfUnknownIds) {
  Json config = tiny_tokenizer_json();
  config["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [999]}}})");
  EXPECT_THAT(load_error(config), HasSubstr("the id 999 belongs to no token"));
  config["post_processor"]["single"] = Json::array();
  EXPECT_THAT(load_error(config), HasSubstr("must hold the sequence A once"));
}

// Without its merges a tokenizer would still work, and give other tokens.
TEST(TokenizerFileTest, RefusesMergesThatAreNoList) {
  for (const Json& merges : {Json(nullptr), Json(0), Json("a b"), Json::object()}) {
    Json config = tiny_tokenizer_json({"a b"});
    config["model"]["merges"] = merges;
    EXPECT_THAT(load_error(config), HasSubstr("\"merges\" is missing or no list")) << merges;
  }
  Json config = tiny_tokenizer_json({"a b"});
  config["model"].erase("merges");
  EXPECT_THAT(load_error(config), HasSubstr("\"merges\" is missing or no list"));
}

TEST(TokenizerFileTest, RefusesWhatIsNoSoundJson) {
  EXPECT_THAT(load_text_error("{\n]"),
              HasSubstr("tiny.json: not valid JSON: unexpected \"]\" at line 2, column 1"));
  EXPECT_THAT(load_text_error({"{}\0{", 4}),
              HasSubstr("tiny.json: not valid JSON: a NUL byte at line 1, column 3"));
  EXPECT_THAT(load_text_error(""), HasSubstr("tiny.json: not valid JSON"));
  EXPECT_THAT(load_text_error("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(load_text_error("{}"), HasSubstr("\"model\" is missing"));
  EXPECT_THAT(load_text_error(std::string(5000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(load_text_error("{\"a\": 1, \"a\": 2}"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(load_text_error("{\"model\": {\"vocab\": {}, \"vocab\": {\"a\": 1}}}"),
              HasSubstr("\"vocab\" stands twice"));
  EXPECT_THAT(load_text_error("{\"model\": {\"merges\": [], \"merges\": 1}}"),
              HasSubstr("\"merges\" stands twice"));
  EXPECT_THAT(load_text_error("{\"model\": {\"vocab\": {\"a\": 1, \"a\": 2}}}"),
              HasSubstr("\"a\" stands twice"));
  const std::string whole = tiny_tokenizer_json({"a b"}).dump();
  for (std::size_t length = 0; length < whole.size(); length += 37) {
    EXPECT_NE(load_text_error(std::string_view(whole).substr(0, length)), "") << length;
  }
  EXPECT_THROW(Tokenizer::from_file("/nowhere/tokenizer.json"), Error);
}

}  // namespace
}  // namespace quire
