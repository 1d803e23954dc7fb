#include "tokenizer/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include "expect_error.h"

namespace quire {
namespace {

// A vocabulary of SentencePiece: specials, bytes, characters and what is merged of them.
GgufVocabulary pieces() {
  GgufVocabulary vocabulary{.model = "llama", .bos = 1, .eos = 2};
  const auto add = [&](const std::string& text, double score, GgufVocabulary::Type type) {
    vocabulary.tokens.push_back(text);
    vocabulary.scores.push_back(score);
    vocabulary.types.push_back(type);
  };
  add("<unk>", 0, GgufVocabulary::kUnknown);
  add("<s>", 0, GgufVocabulary::kControl);
  add("</s>", 0, GgufVocabulary::kControl);
  for (int byte = 0; byte < 256; ++byte) add(format_text("<0x{:02X}>", byte), 0, GgufVocabulary::kByte);
  // ids from 259 on
  for (const char* text : {"\u2581ab", "ab", "bc", "\u2581a", "abc"})
    add(text, -static_cast<double>(vocabulary.tokens.size()), GgufVocabulary::kNormal);
  for (const char* text : {"\u2581", "a", "b", "c"}) add(text, -1000, GgufVocabulary::kNormal);
  add("<tool>", 0, GgufVocabulary::kUserDefined);
  return vocabulary;
}

TEST(GgufTokenizerTest, MergesPiecesByScore) {
  const Tokenizer tokenizer = make_gguf_tokenizer(pieces(), "file");
  // "ab" scores above "bc" and "abc" above nothing: the best pair is merged first.
  EXPECT_EQ(tokenizer.encode("ab"), (std::vector<TokenId>{1, 259}));
  EXPECT_EQ(tokenizer.encode("bc"), (std::vector<TokenId>{1, 264, 261}));
  EXPECT_EQ(tokenizer.encode("cabc", false), (std::vector<TokenId>{264, 267, 263}));
  EXPECT_EQ(tokenizer.encode("\u00e9", false), (std::vector<TokenId>{264, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer.encode("<tool>", false), std::vector<TokenId>{268});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab c\u00e9"), true), "ab c\u00e9");
  EXPECT_TRUE(tokenizer.is_special(2));
  EXPECT_FALSE(tokenizer.is_special(268));
}

TEST(GgufTokenizerTest, ControlTokensOfPhi3TakeTheWhiteSpaceBehindThem) {
  GgufVocabulary vocabulary = pieces();
  EXPECT_EQ(make_gguf_tokenizer(vocabulary, "file").encode("</s>\nab", false),
            (std::vector<TokenId>{2, 264, 3 + '\n', 260}));
  vocabulary.strips_behind = true;
  EXPECT_EQ(make_gguf_tokenizer(vocabulary, "file").encode("</s>\nab", false),
            (std::vector<TokenId>{2, 259}));
}

TEST(GgufTokenizerTest, TheFileSaysWhatSurroundsAText) {
  GgufVocabulary vocabulary = pieces();
  vocabulary.add_bos = false;
  vocabulary.add_eos = true;
  vocabulary.add_space_prefix = false;
  const Tokenizer tokenizer = make_gguf_tokenizer(vocabulary, "file");
  EXPECT_EQ(tokenizer.encode("ab"), (std::vector<TokenId>{260, 2}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{259}, true), " ab");
}

TEST(GgufTokenizerTest, Gemma4MergesPiecesInTheOrderOfTheFile) {
  GgufVocabulary vocabulary = pieces();
  vocabulary.model = "gemma4";
  vocabulary.scores.clear();
  vocabulary.merges = {"b c", "a bc", "a b", "\u2581 a"};
  const Tokenizer tokenizer = make_gguf_tokenizer(vocabulary, "file");
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<TokenId>{1, 263}));  // and no space before it
  EXPECT_EQ(tokenizer.encode("ab a", false), (std::vector<TokenId>{260, 262}));
  EXPECT_EQ(tokenizer.encode("\u00e9", false), (std::vector<TokenId>{3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" ab c\u00e9"), true), " ab c\u00e9");
}

TEST(GgufTokenizerTest, WhatIsNotKnownIsRefusedByName) {
  const auto refused = [](GgufVocabulary vocabulary, std::initializer_list<std::string_view> parts) {
    expect_error([&] { make_gguf_tokenizer(vocabulary, "file"); }, parts);
  };
  GgufVocabulary bytes{.model = "gpt2", .pre = "someday", .tokens = {"a"}};
  refused(bytes, {"tokenizer.ggml.pre", "someday", "llama-bpe"});
  bytes.pre = "";
  refused(bytes, {"tokenizer.ggml.pre", "is missing"});
  bytes.pre = "gpt-2";
  bytes.merges = {"a"};
  refused(bytes, {"tokenizer.ggml.merges", "element 0"});
  bytes.merges = {};
  bytes.add_bos = true;
  refused(bytes, {"tokenizer.ggml.bos_token_id", "is missing"});
  bytes.bos = 1;
  refused(bytes, {"tokenizer.ggml.bos_token_id", "names no token"});
  bytes.model = "bert";
  refused(bytes, {"tokenizer.ggml.model", "bert", "gpt2, llama and gemma4"});
  bytes.tokens = {"\xff"};
  refused(bytes, {"token 0", "UTF-8"});
  GgufVocabulary unscored = pieces();
  unscored.scores.pop_back();
  refused(unscored, {"tokenizer.ggml.scores", "269"});
}

TEST(GgufTokenizerTest, EveryNamedPreTokenizerCutsAText) {
  for (const char* pre :
       {"gpt-2", "starcoder", "llama-bpe", "tekken", "qwen2", "qwen35", "gpt-4o", "seed-coder"}) {
    GgufVocabulary vocabulary{
        .model = "gpt2", .pre = pre, .tokens = {"a", "b", "ab", "\u0120", "1", "\u0120a"}};
    vocabulary.merges = {"a b", "\u0120 a"};
    vocabulary.add_bos = false;
    const Tokenizer tokenizer = make_gguf_tokenizer(vocabulary, "file");
    EXPECT_EQ(tokenizer.encode("ab a11"), (std::vector<TokenId>{2, 5, 4, 4})) << pre;
  }
}

}  // namespace
}  // namespace quire
