// Exactness on tiny tokenizers of every kind, made and encoded with the reference by
// tools/make_tokenizer_cases.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_cases.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

const std::filesystem::path kGolden = QUIRE_SOURCE_DIR "/tests/tokenizer/golden";

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    const std::string name = entry.path().stem();
    if (!name.ends_with(".cases")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class TokenizerGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerGoldenTest, EncodesAndDecodesEveryCaseExactly) { test::expect_cases(kGolden, GetParam()); }

TEST_P(TokenizerGoldenTest, TextWithoutTrustYieldsNoSpecialToken) {
  const Tokenizer tokenizer = Tokenizer::from_file(kGolden / (GetParam() + ".json"));
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) text += " " + std::string(tokenizer.id_to_token(id).value()) + "x";
  }
  ASSERT_NE(text, "");
  const std::vector<TextPiece> pieces = {{.text = text, .trusted = false}};
  for (const TokenId id : tokenizer.encode(pieces, false)) {
    const bool is_control = tokenizer.is_special(id) && tokenizer.id_to_token(id) != "<unk>";
    EXPECT_FALSE(is_control) << tokenizer.id_to_token(id).value();
  }
}

TEST_P(TokenizerGoldenTest, StreamsWholeCharactersAndBeginsAnew) {
  const Tokenizer tokenizer = Tokenizer::from_file(kGolden / (GetParam() + ".json"));
  IncrementalDetokenizer detokenizer(tokenizer, true);
  const Json cases = read_json_file(kGolden / (GetParam() + ".cases.json"));
  for (const Json& c : cases) {
    std::string streamed;
    for (const TokenId id : c["ids"].get<std::vector<TokenId>>()) {
      const std::string text = detokenizer.push(id);
      ASSERT_EQ(valid_utf8_prefix(text), text.size());
      streamed += text;
    }
    EXPECT_EQ(streamed + detokenizer.finish(), c["decoded_skip"].get<std::string>());
  }
}

// Doubling the text may not take four times as long. The bound is wide, for busy machines and sanitizers.
TEST_P(TokenizerGoldenTest, GrowsLinearlyOnOneLongPiece) {
  const Tokenizer tokenizer = Tokenizer::from_file(kGolden / (GetParam() + ".json"));
  const auto seconds = [&](std::size_t bytes, const std::string& part) {
    std::string text;
    while (text.size() < bytes) text += part;
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::clock_t begin = std::clock();  // of this process alone: the machine may be busy
      EXPECT_NE(tokenizer.decode(tokenizer.encode(text, false), false), "");
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  for (const std::string part : {"a", "the", "\u9F98q", "a\u0301"}) {
    const double small = seconds(std::size_t{1} << 12, part), large = seconds(std::size_t{1} << 16, part);
    EXPECT_LT(large, 16 * 6 * small) << "quadratic growth would be 256 times";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGoldenTest, ::testing::ValuesIn(golden_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace quire
