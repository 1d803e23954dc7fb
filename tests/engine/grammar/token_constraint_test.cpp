// From which token on an output is held to its grammar.
#include "engine/grammar/token_constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <deque>

#include "base/error.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TokenId kEos = 0, kThink = 1, kEndThink = 2, kA = 3, kB = 4, kEnd = 5, kEndOfTag = 6,
                  kEndAndMore = 7;

constexpr std::size_t kConstrained = 320;

class TokenConstraintTest : public ::testing::Test {
 protected:
  // Of an output that is `text` in the end.
  TokenConstraint constraint(const std::string& text, const std::string& free_until = "",
                             const std::string& free_after = "",
                             grammar::Source::Kind kind = grammar::Source::Kind::kRegex) const {
    std::vector<grammar::TokenText> tokens = {{"<eos>", true},     {"<think>", true}, {"</think>", true},
                                              {"a", false},        {"b", false},      {"</", false},
                                              {"think>\n", false}, {"think>a", false}};
    tokens.resize(kConstrained);
    const auto vocabulary =
        std::make_shared<const grammar::Vocabulary>(std::move(tokens), std::vector<int>{kEos});
    const auto source = std::make_shared<const StructuredOutputs>(StructuredOutputs{
        .kind = kind, .source = text, .name = "regex", .free_until = free_until, .free_after = free_after});
    return {std::make_shared<const OutputGrammar>(grammar::compile(*source, vocabulary), source), time_left_};
  }
  TokenConstraint rules(const std::string& text) const {
    return constraint(text, "", "", grammar::Source::Kind::kGrammar);
  }

  // The tokens that may follow; none: any.
  static std::vector<TokenId> allowed(TokenConstraint& constraint, const std::vector<TokenId>& output) {
    std::vector<std::uint32_t> mask(kConstrained / 32);
    std::vector<TokenId> ids;
    if (!constraint.fill_mask(output, mask)) return ids;
    for (TokenId id = 0; id < 32; ++id)
      if ((mask[0] >> id & 1) != 0) ids.push_back(id);
    return ids;
  }

  std::shared_ptr<MaskTime> time_left_ = std::make_shared<MaskTime>(std::int64_t{1} << 40);
};

TEST_F(TokenConstraintTest, HoldsFromTheBeginningToTheEnd) {
  TokenConstraint held = constraint("ab?");
  EXPECT_THAT(allowed(held, {}), ElementsAre(kA));
  EXPECT_THAT(allowed(held, {kA}), ElementsAre(kEos, kB));
  EXPECT_THAT(allowed(held, {kA, kB}), ElementsAre(kEos));
}

TEST_F(TokenConstraintTest, TakesTokensItHasNotSeenAtOnce) {
  TokenConstraint held = constraint("ab?");
  EXPECT_THAT(allowed(held, {kA, kB}), ElementsAre(kEos));
}

TEST_F(TokenConstraintTest, WhatComesBeforeTheTagIsFree) {
  TokenConstraint held = constraint("a", "</think>");
  EXPECT_THAT(allowed(held, {}), ElementsAre());
  EXPECT_THAT(allowed(held, {kB, kB, kThink}), ElementsAre());
  EXPECT_THAT(allowed(held, {kB, kB, kThink, kEndThink}), ElementsAre(kA));
}

TEST_F(TokenConstraintTest, ATagMayTakeSeveralTokensAndEndInSpace) {
  TokenConstraint held = constraint("a", "</think>");
  EXPECT_THAT(allowed(held, {kEnd, kEnd}), ElementsAre());
  EXPECT_THAT(allowed(held, {kEnd, kEnd, kEndOfTag}), ElementsAre(kA));
}

TEST_F(TokenConstraintTest, TextThatATokenHasBehindTheTagIsAnError) {
  TokenConstraint held = constraint("a", "</think>");
  try {
    allowed(held, {kEnd, kEndAndMore});
    FAIL() << "it is taken";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("\"a\" follows \"</think>\" in one token"));
  }
}

TEST_F(TokenConstraintTest, IsFreeOnlyBehindWhatOpens) {
  TokenConstraint free = constraint("ab", "</think>", "<think>");
  EXPECT_THAT(allowed(free, {}), ElementsAre(kThink, kA));
  EXPECT_THAT(allowed(free, {kThink}), ElementsAre());
  EXPECT_THAT(allowed(free, {kThink, kB, kEndThink}), ElementsAre(kA));
  TokenConstraint held = constraint("ab", "</think>", "<think>");
  EXPECT_THAT(allowed(held, {kA}), ElementsAre(kB));
  TokenConstraint without = constraint("ab", "</think>", "[thought]");  // which no token begins
  EXPECT_THAT(allowed(without, {}), ElementsAre(kA));
}

TEST_F(TokenConstraintTest, WhatOpensMayTakeSeveralTokens) {
  TokenConstraint free = constraint("ab", "b", "</think>");
  EXPECT_THAT(allowed(free, {}), ElementsAre(kEndThink, kA, kEnd));
  EXPECT_THAT(allowed(free, {kEnd}), ElementsAre(kEndOfTag, kEndAndMore));
  EXPECT_THAT(allowed(free, {kEnd, kEndAndMore}), ElementsAre());
  EXPECT_THAT(allowed(free, {kEnd, kEndAndMore, kB}), ElementsAre(kA));
}

TEST_F(TokenConstraintTest, WhatOpensMayBeginLikeTheGrammar) {
  TokenConstraint either = constraint("</a", "b", "</think>");
  EXPECT_THAT(allowed(either, {}), ElementsAre(kEndThink, kEnd));
  EXPECT_THAT(allowed(either, {kEnd}), ElementsAre(kA, kEndOfTag, kEndAndMore));
  EXPECT_THAT(allowed(either, {kEnd, kA}), ElementsAre(kEos));
}

TEST_F(TokenConstraintTest, ForcedTokensGoOnToTheEndAndAreTakenBack) {
  TokenConstraint held = constraint("(a|b)bab");
  EXPECT_THAT(allowed(held, {}), ElementsAre(kA, kB));
  EXPECT_THAT(held.forced(10), ElementsAre());
  EXPECT_THAT(allowed(held, {kA}), ElementsAre(kB));
  EXPECT_THAT(held.forced(10), ElementsAre(kB, kA, kB, kEos));
  EXPECT_THAT(held.forced(2), ElementsAre(kB, kA));
  EXPECT_THAT(allowed(held, {kA, kB}), ElementsAre(kA));
}

TEST_F(TokenConstraintTest, NothingIsForcedWhileItIsFree) {
  TokenConstraint free = constraint("a", "</think>");
  EXPECT_THAT(allowed(free, {}), ElementsAre());
  EXPECT_THAT(free.forced(10), ElementsAre());
  TokenConstraint open = constraint("a", "</think>", "<think>");
  EXPECT_THAT(allowed(open, {}), ElementsAre(kThink, kA));
  EXPECT_THAT(open.forced(10), ElementsAre());
}

TEST_F(TokenConstraintTest, AnEndTokenThatRulesNameEndsTheTextOrMayNotCome) {
  TokenConstraint last = rules(R"(root ::= "a" <[0]>)");
  EXPECT_THAT(allowed(last, {kA}), ElementsAre(kEos));
  EXPECT_THAT(last.forced(10), ElementsAre(kEos));
  TokenConstraint either = rules(R"(root ::= "a" (<[0]> "b" | "b"))");
  EXPECT_THAT(allowed(either, {kA}), ElementsAre(kB));
  TokenConstraint middle = rules(R"(root ::= "a" <[0]> "b")");
  EXPECT_THAT(allowed(middle, {}), ElementsAre(kA));
  EXPECT_THAT(middle.forced(10), ElementsAre(kA));
  EXPECT_THROW(allowed(middle, {kA}), Error);
}

TEST_F(TokenConstraintTest, WhatMasksTakeIsLimitedForARequestAsAWhole) {
  const std::vector<TokenId> output(200'000, kA);  // which takes milliseconds
  TokenConstraint first = constraint("a*"), second = constraint("a*"), third = constraint("a*");
  EXPECT_THAT(allowed(first, output), ElementsAre(kEos, kA));
  const std::int64_t cost = (std::int64_t{1} << 40) - *time_left_;
  EXPECT_GT(cost, 0);
  *time_left_ = 1;
  try {
    allowed(second, output);
    FAIL() << "it takes what it wants";
  } catch (const Error& e) {  // the fault of whoever wrote the source
    EXPECT_THAT(e.what(), HasSubstr("regex cannot be met: it takes too long"));
  }
  EXPECT_THROW(allowed(third, output), Error) << "its sibling has taken all";
  EXPECT_THROW(allowed(third, {}), Error) << "which costs hardly anything";
}

TEST_F(TokenConstraintTest, WhatIsFreeInAStepIsFreeForARequestAsAWhole) {
  const std::vector<TokenId> output(20'000, kA);
  const std::int64_t all = *time_left_;
  std::deque<TokenConstraint> siblings;
  for (int i = 0; i < 64; ++i) siblings.push_back(constraint("a*"));
  const std::clock_t begin = std::clock();
  for (TokenConstraint& sibling : siblings) allowed(sibling, output);
  const std::int64_t taken = (std::clock() - begin) * (1'000'000'000 / CLOCKS_PER_SEC);
  EXPECT_GT(all - *time_left_, taken - 5'000'000) << "of " << taken << " ns";
}

TEST_F(TokenConstraintTest, WhatTakesLittleIsFree) {
  TokenConstraint held = constraint("ab?");
  allowed(held, {kA});  // which makes the mask
  const std::int64_t left = *time_left_;
  for (int i = 0; i < 20; ++i) allowed(held, {kA});
  EXPECT_EQ(*time_left_, left);
}

}  // namespace
}  // namespace quire
