// Exactness on published tokenizers, whose files are read in place where they are at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

#include "base/json.h"
#include "tokenizer/incremental_detokenizer.h"
#include "tokenizer/tokenizer.h"

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
  const Tokenizer tokenizer = Tokenizer::from_file(path_);
  const Json cases = read_json_file(kFolder / (std::string(GetParam()) + ".cases.json"));
  for (const Json& c : cases) {
    const std::string text = c["text"];
    const std::vector<TokenId> ids = c["ids"], plain = c["ids_plain"];
    EXPECT_EQ(tokenizer.encode(text), ids) << c["text"];
    EXPECT_EQ(tokenizer.encode(text, false), plain) << c["text"];
    EXPECT_EQ(tokenizer.decode(plain, false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, true), c["decoded_skip"].get<std::string>());
  }
  std::cout << GetParam() << ": " << cases.size() << " cases\n";
  EXPECT_GT(cases.size(), 100u);
}

TEST_P(TokenizerConformanceTest, StreamsWhatItDecodesAtOnceForAnyIds) {
  const Tokenizer tokenizer = Tokenizer::from_file(path_);
  std::mt19937 random(7);
  std::uniform_int_distribution<TokenId> any(-1, tokenizer.vocab_size()), low(0, 300);
  for (int round = 0; round < 2000; ++round) {
    const bool skip = round % 2 == 0;
    std::vector<TokenId> ids(random() % 20);
    for (TokenId& id : ids)
      id = random() % 2 == 0 ? any(random) : low(random);  // the low ones are single bytes
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
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
  };
  for (const char letter : {'a', ' ', '\n'}) {
    const double part = seconds(std::size_t{1} << 16, letter), whole = seconds(std::size_t{1} << 20, letter);
    EXPECT_LT(whole, 16 * 6 * part) << "quadratic growth would be 256 times";
    std::cout << GetParam() << ": a megabyte of one character in " << whole << " s\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerConformanceTest, ::testing::Values("qwen3", "llama3", "phi-2"),
                         [](const auto& tokenizer) {
                           std::string name = tokenizer.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(TokenizerConformanceTest, RefusesASentencePieceModelByName) {
  const std::filesystem::path path = kFolder / "mistral.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  try {
    Tokenizer::from_file(path);
    FAIL() << "was accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("byte_fallback"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace quire
