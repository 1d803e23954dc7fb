// One sequence's way through a grammar: accepting, taking back, forking, ending; and what a hostile grammar
// costs.
#include <gtest/gtest.h>

#include <thread>

#include "expect_error.h"
#include "grammar/grammar_helpers.h"

namespace quire::grammar::test {
namespace {

using Kind = Source::Kind;

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
  Matcher matcher(compile({.kind = Kind::kRegex, .text = "ab"}, letters));
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

TEST(Limits, AreKeptByHostileSources) {
  const Limits limits{.memory_bytes = 8u << 20,
                      .compile_time = std::chrono::milliseconds(500),
                      .mask_time = std::chrono::milliseconds(500)};
  std::string alternatives = "{\"enum\": [0", nested;
  for (int i = 0; i < 150'000; ++i) alternatives += "," + std::to_string(i * 7919);
  for (int i = 0; i < 300; ++i) nested += "(";
  std::string doubling = "{\"$defs\": {\"d0\": {\"type\": \"null\"}";
  for (int i = 1; i < 30; ++i) {
    const std::string before = "{\"$ref\": \"#/$defs/d" + std::to_string(i - 1) + "\"}";
    doubling += ", \"d" + std::to_string(i) + "\": {\"allOf\": [{\"anyOf\": [" + before +
                ", {\"minLength\": " + std::to_string(i) + "}]}, {\"anyOf\": [" + before +
                ", {\"maxLength\": " + std::to_string(i) + "}]}]}";
  }
  doubling += "}, \"$ref\": \"#/$defs/d29\"}";
  std::string enums = R"({"allOf": [{"enum": [0)", references = R"({"$ref": "#/$defs/0", "$defs": {)";
  std::string dependencies = R"({"dependencies": {"": [])", rules = "root ::= r0\n", characters;
  for (int i = 0; i < 12'000; ++i) {
    const std::string number = std::to_string(i), next = std::to_string(i + 1);
    enums += "," + next + (i == 6'000 ? "]}, {\"enum\": [-1" : "");
    references += "\"" + number + R"(": {"$ref": "#/$defs/)" + next + "\"}, ";
    if (i < 4'000) dependencies += ", \"" + number + R"(": ["x"])";
    rules += "r" + number + " ::= r" + next + " \"a\" | \"b\"\n";
  }
  for (unsigned i = 0xFFFF; i > 0xE000; i -= 2)
    characters += {static_cast<char>(0xE0 | i >> 12), static_cast<char>(0x80 | (i >> 6 & 63)),
                   static_cast<char>(0x80 | (i & 63))};
  enums += "]}]}";
  references += R"("12000": {}}})";
  dependencies += "}}";
  rules += "r12000 ::= r0 \"c\"\n";
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [kind, text] : std::vector<std::pair<Kind, std::string>>{
           {Kind::kJsonSchema, std::string(10u << 20, ' ')},
           {Kind::kJsonSchema, alternatives + "]}"},
           {Kind::kJsonSchema, doubling},
           {Kind::kJsonSchema, R"({"$ref": "#"})"},
           {Kind::kJsonSchema, R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"},
           {Kind::kJsonSchema,
            R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"},
           {Kind::kJsonSchema,
            R"({"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}$", "maxLength": 2})"},
           {Kind::kJsonSchema, enums},
           {Kind::kJsonSchema, references},
           {Kind::kJsonSchema, dependencies},
           {Kind::kRegex, "a" + std::string(500'000, '*')},
           {Kind::kRegex, "[" + characters + "]"},
           {Kind::kGrammar, rules},
           {Kind::kRegex, nested},
           {Kind::kRegex, "a{99999999999}"},
           {Kind::kGrammar, "root ::= root"},
           {Kind::kGrammar, "root ::= a* root \"x\"\na ::= \"a\"?"}}) {
    SCOPED_TRACE(text.substr(0, 60));
    try {
      const auto grammar = compiled(kind, text, limits);
      std::mt19937 random(5);
      Matcher matcher(grammar);
      for (int step = 0; step < 20 && !matcher.ended(); ++step)
        matcher.accept(random_token(mask_of(matcher), random));
    } catch (const GrammarError&) {
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Limits, ExponentialExpressionsCostTheirBudgetAndNoMore) {
  const Limits limits{.memory_bytes = 4u << 20};
  Matcher matcher(compiled(Kind::kRegex, "(a|b)*a(a|b){18}x(a|b)*b(a|b){17}", limits));
  std::mt19937 random(6);
  EXPECT_THROW(for (int step = 0; step < 2'000'000; ++step)
                   ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b')),
               GrammarError);
}

TEST(Limits, AFullGrammarStartsAfreshForNewMatchers) {
  const auto grammar = compiled(Kind::kRegex, "(a|b)*a(a|b){18}", {.memory_bytes = 4u << 20});
  std::mt19937 random(7);
  for (int i = 0; i < 3; ++i) {
    Matcher matcher(grammar);
    try {
      for (int step = 0; step < 20'000; ++step) ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b'));
    } catch (const GrammarError&) {
    }
    EXPECT_GT(matcher.num_tokens(), 100u);
  }
}

TEST(Limits, ACompilationStopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  std::string text = "[\"\"";
  for (int i = 0; i < 5000; ++i) text += ",\"" + std::to_string(i * 7919) + "\"";
  EXPECT_THROW(compile({.kind = Kind::kChoice, .text = text + "]"}, vocabulary(), {}, stop.get_token()),
               Stopped);
}

}  // namespace
}  // namespace quire::grammar::test
