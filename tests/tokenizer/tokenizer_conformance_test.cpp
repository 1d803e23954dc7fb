// Exactness on published tokenizers, whose files are read in place where they are at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <random>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_cases.h"

namespace quire {
namespace {

const std::filesystem::path kFolder = QUIRE_SOURCE_DIR "/../shared/conformance/tokenizers";

class TokenizerConformanceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = kFolder / (std::string(GetParam()) + ".json");
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << path_ << " is not here";
  }
  std::filesystem::path path_;
};

TEST_P(TokenizerConformanceTest, EncodesAndDecodesEveryCaseExactly) {
  test::expect_cases(kFolder, GetParam());
}

TEST_P(TokenizerConformanceTest, StreamsWhatItDecodesAtOnceForAnyIds) {
  const Tokenizer tokenizer = Tokenizer::from_file(path_);
  std::mt19937 random(7);
  std::uniform_int_distribution<TokenId> any(-1, tokenizer.vocab_size()), low(0, 1100);
  for (int round = 0; round < 2000; ++round) {
    const bool skip = round % 2 == 0;
    std::vector<TokenId> ids(random() % 20);
    for (TokenId& id : ids)
      id = random() % 2 == 0 ? any(random) : low(random);  // single bytes are among the low ones
    IncrementalDetokenizer detokenizer(tokenizer, skip);
    std::string streamed;
    for (const TokenId id : ids) streamed += detokenizer.push(id);
    streamed += detokenizer.finish();
    ASSERT_EQ(streamed, tokenizer.decode(ids, skip));
  }
}

TEST_P(TokenizerConformanceTest, TextWithoutTrustYieldsNoSpecialToken) {
  const Tokenizer tokenizer = Tokenizer::from_file(path_);
  std::string text;
  int specials = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    text += std::string(tokenizer.id_to_token(id).value()) + " x ";
    ++specials;
  }
  const std::vector<TextPiece> pieces = {{.text = text, .trusted = false}};
  const std::vector<TokenId> ids = tokenizer.encode(pieces, false);
  EXPECT_TRUE(std::none_of(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_special(id); }));
  EXPECT_EQ(tokenizer.decode(ids, true), text);
  EXPECT_GT(specials, 0);
}

// Doubling the text may not take four times as long. The bound is wide, for busy machines and sanitizers.
TEST_P(TokenizerConformanceTest, GrowsLinearlyOnOneLongPiece) {
  const Tokenizer tokenizer = Tokenizer::from_file(path_);
  const auto seconds = [&](std::size_t bytes, char letter) {
    const std::string text(bytes, letter);
    const bool lost = letter == ' ' && GetParam() == std::string("mistral");  // its decoder takes one space
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::clock_t begin = std::clock();  // the processor's time: other tests run beside
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text.substr(lost));
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  for (const char letter : {'a', ' ', '\n'}) {
    const double part = seconds(std::size_t{1} << 16, letter), whole = seconds(std::size_t{1} << 20, letter);
    EXPECT_LT(whole, 16 * 6 * part) << "quadratic growth would be 256 times";
    std::cout << GetParam() << ": a megabyte of one character in " << whole << " s\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerConformanceTest,
                         ::testing::Values("qwen3", "llama3", "phi-2", "mistral"), [](const auto& tokenizer) {
                           std::string name = tokenizer.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace quire
