// Masks are what accepting every token says, and what they lead to is what the source describes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "grammar/expressions.h"
#include "grammar/grammar_helpers.h"
#include "grammar/schemas.h"
#include "temp_dir.h"

namespace quire::grammar::test {
namespace {

// A random regular expression over few letters.
std::string random_regex(std::mt19937& random, int depth) {
  constexpr std::array kAtoms = {"a",   "b",  "[ab]", "[^a]",     "x{2,3}",     ".",
                                 "\\d", "ab", "xyz",  "\xC3\xA9", "(?:12|345)", "\""};
  if (depth == 0) return kAtoms.at(random() % kAtoms.size());
  const std::string one = random_regex(random, depth - 1);
  switch (random() % 6) {
    case 0:
      return "(" + one + "|" + random_regex(random, depth - 1) + ")";
    case 1:
      return "(" + one + ")*";
    case 2:
      return "(" + one + ")?";
    case 3:
      return "(" + one + "){1,3}";
    default:
      return one + random_regex(random, depth - 1);
  }
}

// Walks at random, and compares each mask with the naive one. Returns the text, if it came to its end.
std::optional<std::string> walk(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random,
                                int steps, bool compare) {
  Matcher matcher(grammar);
  std::string text;
  for (int step = 0; step < steps; ++step) {
    const auto mask = mask_of(matcher);
    if (compare) {
      const auto naive = naive_mask(matcher);
      for (int token = 0; token < vocabulary()->size(); ++token)
        EXPECT_EQ(allowed(mask, token), allowed(naive, token)) << "token " << token << " after " << text;
    }
    const int token = random_token(mask, random);
    EXPECT_TRUE(matcher.accept(token)) << token << " after " << text;
    if (token == kEnd) return text;
    text += vocabulary()->token(token).bytes;
  }
  return std::nullopt;
}

TEST(Mask, IsTheNaiveOneForRandomRegularExpressions) {
  std::mt19937 random(1);
  int ended = 0;
  for (int i = 0; i < 150; ++i) {
    const std::string regex = random_regex(random, 3);
    SCOPED_TRACE(regex);
    ended += walk(compiled(Source::Kind::kRegex, regex), random, 12, true).has_value();
  }
  EXPECT_GT(ended, 50);
}

TEST(Mask, IsTheNaiveOneForSchemas) {
  std::mt19937 random(2);
  for (const auto schema : kSchemas) {
    SCOPED_TRACE(schema);
    for (const bool any_order : {false, true}) {
      const auto grammar = compile({.source = std::string(schema), .any_order = any_order}, vocabulary());
      for (int i = 0; i < 2; ++i) walk(grammar, random, 25, true);
    }
  }
}

// Masks are kept by the hashes of lexemes. '?' and 'b' are those bits that a multiplication and a shift by 29
// would make nothing of 0x7F with.
TEST(Mask, IsNotThatOfALexemeWithASimilarSetOfBytes) {
  for (const char* regex : {"[?b]*", "\\x7f*"}) {
    SCOPED_TRACE(regex);
    const Matcher matcher(compiled(Kind::kRegex, regex));
    EXPECT_EQ(mask_of(matcher), naive_mask(matcher));
  }
}

// Rules have numbers, which are the same ones in every grammar.
TEST(Mask, IsNotThatOfAnotherGrammarsRecursiveTerminal) {
  for (const char* rules : {"start: A\nA: \"a\" A | \"b\"", "start: A\nA: \"c\" A | \"d\"",
                            "start: \"x\"\n%ignore A\nA: \"e\" A | \"f\""}) {
    SCOPED_TRACE(rules);
    const Matcher matcher(compiled(Kind::kGrammar, rules));
    EXPECT_EQ(mask_of(matcher), naive_mask(matcher));
  }
}

TEST(Mask, IsKeptForALexemeWhoseAlternativesComeInAnyOrder) {
  const auto hashes = [](std::vector<std::string_view> texts) {
    Expressions made;
    std::vector<ExprId> parts;
    for (const auto text : texts) parts.push_back(made.repeat(made.literal(text), 0, kNoLimit));
    const Expr any = made[made.any_of(parts)], all = made[made.all_of(parts)];
    return std::array{any.hash, all.hash};
  };
  EXPECT_EQ(hashes({"ab", "c", "xy"}), hashes({"xy", "c", "ab"}));
  EXPECT_NE(hashes({"ab", "c", "xy"}), hashes({"ab", "c", "xz"}));
}

// Far from a bound on characters or words, where states share their masks, and close to it.
TEST(Mask, IsTheNaiveOneAllAlongACounter) {
  std::mt19937 random(5);
  for (const char* schema :
       {R"({"type": "string", "minLength": 50, "maxLength": 110})",
        R"({"type": "string", "pattern": "^(?:[^ ]+ +){0,30}[^ ]+$", "maxLength": 90})",
        R"({"type": "string", "pattern": "^(?:[a-x]{3} ){0,60}[a-x]{3}$", "minLength": 9, "maxLength": 100})",
        R"({"type": "string", "pattern": "ab.{3}b", "maxLength": 80})",
        R"({"type": "string", "pattern": "^(?:[ab]|x[a]{60})*$", "minLength": 70, "maxLength": 100})",
        R"({"type": "string", "not": {"pattern": "^.{60,}$"}, "maxLength": 99})"}) {
    SCOPED_TRACE(schema);
    Matcher matcher(compiled(Kind::kJsonSchema, schema));
    ASSERT_TRUE(matcher.accept('"'));
    for (int step = 0; step < 120; ++step) {
      const auto mask = mask_of(matcher);
      ASSERT_EQ(mask, naive_mask(matcher)) << step;
      std::vector<int> inside;
      for (int token = 0; token < kEnd; ++token)
        if (allowed(mask, token) && token != '"') inside.push_back(token);
      if (inside.empty()) break;
      ASSERT_TRUE(matcher.accept(inside[random() % inside.size()]));
    }
  }
}

TEST(Mask, IsTheNaiveOneForRecursiveRules) {
  std::mt19937 random(3);
  for (const char* rules :
       {"root ::= \"a\" root \"b\" | \"x\"", "root ::= root \"a\" | \"x\" | \"[\" root \"]\"",
        "root ::= pair* \nname ::= [a-z]+\npair ::= name \": \" (name | \"{\" root \"}\") \",\"",
        "root ::= a | b\na ::= b \"a\" | \"x\"\nb ::= a \"b\" | \"y\"",
        "root ::= <[257]> \"a\"* <|call|> | \"hello\" .*"}) {
    SCOPED_TRACE(rules);
    const auto grammar = compiled(Source::Kind::kGrammar, rules);
    for (int i = 0; i < 6; ++i) walk(grammar, random, 15, true);
  }
}

TEST(Mask, WalksGiveWhatPythonsJsonschemaAccepts) {
  std::mt19937 random(4);
  const TempDir folder;
  const auto path = folder.path() / "walks.jsonl";
  std::ofstream file(path);
  std::size_t num_walks = 20;
  // QUIRE_GRAMMAR_WALKS sets how many of each schema.
  if (const char* more = std::getenv("QUIRE_GRAMMAR_WALKS")) num_walks = std::strtoul(more, nullptr, 10);
  for (const auto schema : kSchemas) {
    const auto grammar =
        compile({.source = std::string(schema), .any_order = random() % 2 == 0}, vocabulary());
    int ended = 0;
    for (std::size_t i = 0; i < num_walks; ++i) {
      const auto text = walk(grammar, random, 200, false);
      if (!text) continue;
      ++ended;
      file << Json{{"schema", schema}, {"instance", *text}}.dump() << "\n";
    }
    EXPECT_GT(ended, 0) << schema;
  }
  file.close();
  const std::string command =
      "python3 '" QUIRE_SOURCE_DIR "/tests/grammar/validate.py' '" + path.string() + "'";
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "Python has no jsonschema";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace quire::grammar::test
