#include "engine/thinking_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using ::testing::ElementsAre;

// Only token 7 may come.
class SevenAlone final : public Constraint {
 public:
  bool fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) override {
    num_seen = output.size();
    std::ranges::fill(mask, 0U);
    mask[0] = 1U << 7;
    return true;
  }
  std::vector<TokenId> forced(int) override { return {7}; }
  std::size_t num_seen = 0;
};

class ThinkingLimitTest : public ::testing::Test {
 protected:
  ThinkingLimit limit(int max_tokens, const std::string& begin = "", std::shared_ptr<Constraint> other = {}) {
    return ThinkingLimit({.max_tokens = max_tokens, .begin = begin, .end = "</think>.."}, tokenizer_,
                         std::move(other));
  }
  std::vector<TokenId> ids(std::string_view text) const { return tokenizer_.encode(text, false); }
  // The only token that may follow; none: any may.
  std::optional<TokenId> only(ThinkingLimit& limit, const std::vector<TokenId>& output) {
    std::vector<std::uint32_t> mask(static_cast<std::size_t>(tokenizer_.vocab_size() + 31) / 32, 5U);
    EXPECT_TRUE(limit.fill_mask(output, mask));
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id)
      if ((mask[static_cast<std::size_t>(id) / 32] >> id % 32 & 1) != 0) allowed.push_back(id);
    if (allowed.size() == 1) return allowed[0];
    EXPECT_EQ(std::ssize(allowed), tokenizer_.vocab_size());
    return {};
  }
  // Follows it from `output` on while there is only one token, as a sequence that is made anew at each would.
  std::vector<TokenId> followed(int max_tokens, const std::string& begin, std::vector<TokenId> output) {
    ThinkingLimit kept = limit(max_tokens, begin);
    std::vector<TokenId> tokens;
    while (tokens.size() < 20) {
      ThinkingLimit anew = limit(max_tokens, begin);
      const std::optional<TokenId> next = only(kept, output);
      EXPECT_EQ(only(anew, output), next);
      if (!next) break;
      tokens.push_back(*next);
      output.push_back(*next);
    }
    return tokens;
  }

  const Tokenizer tokenizer_ = Tokenizer::from_file(QUIRE_SOURCE_DIR "/models/toy/tokenizer.json");
  const std::vector<TokenId> end_ = ids("</think>..");
};

TEST_F(ThinkingLimitTest, ForcesTheEndWhereTheTokensAreUsedUp) {
  ASSERT_GT(end_.size(), 1U);
  const std::vector<TokenId> text = ids("one two three four five six seven");
  ASSERT_GE(text.size(), 3U);
  EXPECT_EQ(followed(static_cast<int>(text.size()), "", text), end_);
  EXPECT_EQ(followed(static_cast<int>(text.size()) + 1, "", text), std::vector<TokenId>());
  EXPECT_EQ(followed(0, "", {}), end_);
}

TEST_F(ThinkingLimitTest, CountsFromBehindTheTagThatBeginsIt) {
  std::vector<TokenId> output = ids("\n<think>");
  EXPECT_EQ(followed(0, "<think>", output), end_);
  EXPECT_EQ(followed(1, "<think>", output), std::vector<TokenId>());
  output.push_back(ids("a")[0]);
  EXPECT_EQ(followed(1, "<think>", output), end_);
  EXPECT_EQ(followed(0, "<think>", ids("a <think>")), std::vector<TokenId>());
}

TEST_F(ThinkingLimitTest, LeavesAloneWhatHasEnded) {
  std::vector<TokenId> output = end_;
  output.push_back(ids("a")[0]);
  EXPECT_EQ(followed(static_cast<int>(end_.size()), "", output), std::vector<TokenId>());
  output.insert(output.begin(), output.back());
  EXPECT_EQ(followed(9, "", output), std::vector<TokenId>());
}

TEST_F(ThinkingLimitTest, AnotherConstraintHoldsBesideIt) {
  const auto other = std::make_shared<SevenAlone>();
  ThinkingLimit both = limit(2, "", other);
  EXPECT_EQ(only(both, {7}), 7);
  EXPECT_THAT(both.forced(3), ElementsAre(7));
  EXPECT_EQ(only(both, {7, 7}), end_[0]);
  EXPECT_EQ(both.forced(100), end_);
  EXPECT_THAT(both.forced(1), ElementsAre(end_[0]));
  EXPECT_EQ(other->num_seen, 1U);
  std::vector<TokenId> output = {7, 7};
  output.insert(output.end(), end_.begin(), end_.end());
  EXPECT_EQ(only(both, output), 7);
  EXPECT_EQ(other->num_seen, output.size());
}

}  // namespace
}  // namespace quire
