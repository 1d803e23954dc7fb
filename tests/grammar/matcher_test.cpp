// One sequence's way through a grammar: accepting, taking back, forking, ending.
#include <gtest/gtest.h>

#include <thread>

#include "expect_error.h"
#include "grammar/grammar_helpers.h"

namespace quire::grammar::test {
namespace {

TEST(Matcher, RefusesATokenOutsideTheMaskAndStaysAsItWas) {
  Matcher matcher(compiled(Kind::kRegex, "ab"));
  EXPECT_FALSE(matcher.accept('b'));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(vocabulary()->size()));
  EXPECT_FALSE(matcher.accept(kEnd));
  EXPECT_EQ(matcher.num_tokens(), 0u);
  EXPECT_TRUE(matcher.accept('a'));
}

TEST(Matcher, AllowsTheEndTokenOnlyWhereTheTextIsComplete) {
  Matcher matcher(compiled(Kind::kRegex, "a+"));
  EXPECT_FALSE(matcher.complete());
  EXPECT_FALSE(allowed(mask_of(matcher), kEnd));
  ASSERT_TRUE(matcher.accept('a'));
  EXPECT_TRUE(matcher.complete());
  EXPECT_TRUE(allowed(mask_of(matcher), kEnd));
  ASSERT_TRUE(matcher.accept(kEnd));
  EXPECT_TRUE(matcher.ended());
  EXPECT_FALSE(matcher.accept('a'));
  EXPECT_EQ(matcher.forced(), kEnd);
}

TEST(Matcher, TakesTokensBackOneOrSeveralAtOnceTheEndTokenToo) {
  Matcher matcher(compiled(Kind::kRegex, "abc?"));
  const auto first = mask_of(matcher);
  for (const int token : {int{'a'}, int{'b'}, kEnd}) ASSERT_TRUE(matcher.accept(token));
  matcher.roll_back(1);
  EXPECT_FALSE(matcher.ended());
  EXPECT_TRUE(matcher.accept('c'));
  matcher.roll_back(3);
  EXPECT_EQ(mask_of(matcher), first);
}

TEST(Matcher, ForksGoTheirOwnWays) {
  Matcher matcher(compiled(Kind::kRegex, "a(b|c)"));
  ASSERT_TRUE(matcher.accept('a'));
  Matcher fork = matcher;
  EXPECT_TRUE(matcher.accept('b'));
  EXPECT_TRUE(fork.accept('c'));
}

TEST(Matcher, KnowsTheOnlyTokenThatMayCome) {
  Matcher matcher(compiled(Kind::kRegex, "[xy]z"));
  EXPECT_EQ(matcher.forced(), std::nullopt);
  ASSERT_TRUE(matcher.accept('y'));
  EXPECT_EQ(matcher.forced(), int{'z'});
}

TEST(Matcher, MatchesNoTextWithSpecialTokensAndNoSpecialTokensWithText) {
  Matcher text(compiled(Kind::kRegex, "<\\|call\\|>"));
  EXPECT_FALSE(text.accept(kSpecial));
  EXPECT_TRUE(accepts(compiled(Kind::kRegex, "<\\|call\\|>"), "<|call|>"));
  const auto named = compiled(Kind::kGrammar, "root ::= <|call|> \"a\"");
  EXPECT_FALSE(accepts(named, "<|call|>a"));
  Matcher matcher(named);
  EXPECT_TRUE(matcher.accept(kSpecial));
  EXPECT_TRUE(matcher.accept('a'));
}

TEST(Matcher, TakesCharactersInPieces) {
  Matcher matcher(compiled(Kind::kRegex, "[\xC3\xA9\xC3\xA8]"));
  EXPECT_TRUE(matcher.accept(0xC3));
  EXPECT_FALSE(matcher.accept(0xC3));
  EXPECT_TRUE(matcher.accept(0xA9));
  EXPECT_TRUE(matcher.complete());
}

TEST(Matcher, SaysSoWhenNoTokenOfTheVocabularyCanContinue) {
  const auto letters = std::make_shared<const Vocabulary>(
      std::vector<TokenText>{{"a", false}, {"</s>", true}}, std::vector<int>{1});
  Matcher matcher(compile({.kind = Kind::kRegex, .source = "ab"}, letters));
  ASSERT_TRUE(matcher.accept(0));
  std::vector<std::uint32_t> mask(letters->mask_words());
  expect_error([&] { matcher.fill_mask(mask); }, {"no token"});
}

TEST(Matcher, OfOneGrammarWorksInManyThreads) {
  const auto grammar = compiled(Kind::kJsonObject, "");
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 20; ++i) {
        Matcher matcher(grammar);
        for (int step = 0; step < 60 && !matcher.ended(); ++step)
          EXPECT_TRUE(matcher.accept(random_token(mask_of(matcher), random)));
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(Vocabulary, RefusesAnEndTokenThatIsNone) {
  expect_error([] { Vocabulary({{"a", false}}, {1}); }, {"end token 1"});
}

}  // namespace
}  // namespace quire::grammar::test
