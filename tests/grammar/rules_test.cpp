// Which texts rules and structural tags allow, and what is refused.
#include <gtest/gtest.h>

#include "grammar/language_cases.h"

namespace quire::grammar::test {
namespace {

TEST(Rules, AreGbnf) {
  check({Kind::kGrammar,
         "# arithmetic\nroot ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= "
         "[0-9]+ | \"(\" expr \")\"\nws ::= [ \\t]*\n",
         {"1=2\n", "(1+2)*3= 9\n", "1=1\n2=2\n"},
         {"1=2", "(1=2\n", ""}});
  check({Kind::kGrammar,
         "root ::= \"a\"{2,3} [^\"\\\\] \"\\x41\" \".\"",
         {"aabA.", "aaabA."},
         {"abA.", "aa\"A.", "aabAx"}});
}

TEST(Rules, AreLark) {
  check(
      {Kind::kGrammar,
       "start: pair (\",\" pair)*\npair: NAME \":\" value -> p\n?value: NUMBER | \"on\"i | /x+/ | [\"y\"] "
       "\"z\"\nNAME: \"a\"..\"c\" LETTERS?\nLETTERS: /[d-f]+/\n%import common.NUMBER\n%ignore \" \"\n// done",
       {"a:1", "b : ON, adef:xx", "c:yz,a:z"},
       {"d:1", "a def:1", "a:y"}});
}

TEST(Rules, MayIgnoreARegularExpressionAnywhereAndRepeatIt) {
  const std::vector<std::string_view> right = {"ab", " a \t b "}, wrong = {"a\nb", "a-b"};
  for (const char* ignoring :
       {"%ignore /[ \\t]+/\nstart: \"a\" \"b\"", "%ignore /[ \\t]/+\nstart: \"a\" \"b\"",
        "start: \"a\" c\n%ignore /[ \\t]/ +\n?c: \"b\"", "start: \"a\" c\n%ignore /[ \\t]/\n?c: \"b\""})
    check({Kind::kGrammar, ignoring, right, wrong});
}

TEST(Rules, MayHaveTokensInTerminals) {
  Matcher matcher(compiled(Kind::kGrammar, "start: A\nA: \"a\" <|call|>"));
  for (const int token : {int{'a'}, kSpecial, kEnd}) {
    EXPECT_TRUE(allowed(mask_of(matcher), token)) << token;
    ASSERT_TRUE(matcher.accept(token)) << token;
  }
}

TEST(Rules, ImportSpaceWithoutLineBreaks) {
  check({Kind::kGrammar,
         "start: \"a\" WS_INLINE \"b\"\n%import common.WS_INLINE\n%import common.WS_INLINE",
         {"a b", "a \t b"},
         {"ab", "a\nb"}});
}

TEST(Rules, MayBeginWithThemselves) {
  check({Kind::kGrammar,
         "root ::= root \"+\" term | term\nterm ::= term \"*\" [0-9] | [0-9]",
         {"1", "1+2*3+4"},
         {"+1", "1+", ""}});
  check({Kind::kGrammar,
         "root ::= a \"x\" | \"r\"\na ::= root \"y\" | a \"z\" | \"s\"",
         {"r", "sx", "ryx", "szx", "ryxyzx"},
         {"s", "xr", "rx"}});
  check(Refusal{Kind::kGrammar, "root ::= a* root \"x\" | \"y\"\na ::= \"a\"", {"left recursion"}});
  check(Refusal{
      Kind::kGrammar, "root ::= \"x\" a\na ::= e a \"y\" | \"z\"\ne ::= \"\" | \"e\"", {"left recursion"}});
}

TEST(Rules, ReadStringsAsTextAndClassesAsCharacters) {
  check({Kind::kGrammar,
         R"(root ::= "a.b*" [\U0001F600-\U0001F64F] "\U0001F600\x41\n\"")",
         {"a.b*\xF0\x9F\x98\x81\xF0\x9F\x98\x80"
          "A\n\""},
         {"axb\xF0\x9F\x98\x81\xF0\x9F\x98\x80"
          "A\n\""}});
  check({Kind::kGrammar,
         "start: \"\xC3\xA0\"..\"\xC3\xBC\" \"x1\"i",
         {"\xC3\xA9X1", "\xC3\xA0x1"},
         {"ex1", "\xC3\xBDx1"}});
  check({Kind::kGrammar, "root ::= a. \"z\"\na ::= \"x\"", {"xqz"}, {"xz"}});
  for (const char* token :
       {"root ::= <[257]junk>", "root ::= <[257>", "root ::= <[2 57]>", "root ::= <[318]]>"})
    check(Refusal{Kind::kGrammar, token, {"line 1", "no token"}});
  check(Refusal{Kind::kGrammar, R"(root ::= "\d")", {"line 1", "escape"}});
  check(Refusal{Kind::kGrammar, R"(root ::= "\x4")", {"line 1", "2 hexadecimal digits"}});
  check(Refusal{Kind::kGrammar, R"(root ::= "\UFFFFFFFF")", {"line 1", "escape"}});
  check(Refusal{Kind::kGrammar, "start: \"ab\"..\"cz\"", {"line 1", "range"}});
  check(Refusal{Kind::kGrammar, "start: \"a\"..", {"line 1", "range"}});
  check(Refusal{Kind::kGrammar, "start: \"b\"..\"a\"", {"line 1", "range"}});
  check(Refusal{Kind::kGrammar, "start: \"a\"\n%ignore", {"line 2", "ignore"}});
}

TEST(Rules, SayWhereTheyAreWrong) {
  check(Refusal{Kind::kGrammar, "root ::= other", {"\"other\"", "not defined"}});
  check(Refusal{Kind::kGrammar, "root ::= \"a\"\nroot ::= \"b\"", {"line 2", "twice"}});
  check(
      Refusal{Kind::kGrammar, "start: INT\nINT: \"x\"\n%import common.INT", {"line 3", "\"INT\"", "twice"}});
  check(
      Refusal{Kind::kGrammar, "start: INT\n%import common.INT\nINT: \"x\"", {"line 3", "\"INT\"", "twice"}});
  check(Refusal{Kind::kGrammar,
                "start: A b\nA: \"x\" (b | \"y\")\nb: \"z\"\n%ignore \" \"",
                {"line 2", "terminal", "the rule \"b\""}});
  check(Refusal{Kind::kGrammar, "root ::= (\"a\"", {"line 1, column", "not closed"}});
  check(Refusal{Kind::kGrammar, "root ::= <[9999]>", {"no token"}});
  check(Refusal{Kind::kGrammar, "root ::= <nothing>", {"no special token"}});
  check(Refusal{Kind::kGrammar, "other ::= \"a\"", {"root or start"}});
  check(Refusal{Kind::kGrammar, "start: \"a\"\n%declare X", {"line 2", "%ignore"}});
}

TEST(StructuralTag, MixesFreeTextWithTags) {
  constexpr std::string_view kTools =
      R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool>"],
      "tags": [{"begin": "<tool>{", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "}</tool>"}]}})";
  check({Kind::kStructuralTag,
         kTools,
         {"", "hello", "<too", "a<tool>{1}</tool>b", "<tool>{1}</tool><tool>{2}</tool>"},
         {"<tool>", "<tool>x", "a<tool>{x}</tool>", "<tool>{1}</tool"}});
  check(
      {Kind::kStructuralTag,
       R"({"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {"const": 1}, "end": "</a>"}], "triggers": ["<"]})",
       {"x", "x<a>1</a>y"},
       {"<", "<a>2</a>"}});
  check(
      {Kind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "aab"}})",
       {"<t>aab", "<t>xaaab"},
       {"<t>aabx", "<t>aa", "<t>aabaab"}});
  check(
      {Kind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type": "const_string", "value": "a"},
      {"type": "optional", "content": {"type": "regex", "pattern": "b+"}}, {"type": "repeat", "min": 1, "max": 2, "content": {"type": "grammar", "grammar": "root ::= \"c\""}},
      {"type": "or", "elements": [{"type": "const_string", "value": "x"}, {"type": "const_string", "value": "y"}]}]}})",
       {"acx", "abbccy"},
       {"ax", "acccx", "ac"}});
  check(
      {Kind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "tags_with_separator", "separator": ";", "at_least_one": true,
      "tags": [{"begin": "<", "content": {"type": "regex", "pattern": "[0-9]"}, "end": ">"}]}})",
       {"<1>", "<1>;<2>"},
       {"", "<1>;", "<1><2>"}});
}

TEST(StructuralTag, KeepsTextWithinItsExcludesAndItsLength) {
  check({Kind::kStructuralTag,
         R"({"type": "structural_tag", "format": {"type": "any_text", "excludes": ["bad"], "max_chars": 4}})",
         {"", "ba d", "good"},
         {"bad", "abad", "seven"}});
  check({Kind::kStructuralTag,
         R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<", "end": [">", "]"],
         "content": {"type": "any_text", "excludes": ["bad"], "max_chars": 4}}})",
         {"<>", "<good>", "<a]"},
         {"<bad>", "<seven>", "<a]>", "<a"}});
  check(
      {Kind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<"], "excludes": ["bad"],
         "tags": [{"begin": "<a>", "content": {"type": "const_string", "value": "bad"}, "end": "</a>"}]}})",
       {"", "x<a>bad</a>y"},
       {"bad", "bad<a>bad</a>", "<a>bad</a>bad"}});
  check(
      {Kind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<a>"], "excludes": [">"],
         "tags": [{"begin": "<a>", "content": {"type": "const_string", "value": "b"}, "end": "</a>"}]}})",
       {"x<a>b</a>y"},
       {"x>", "<a>b</a>>"}});
  check({Kind::kStructuralTag,
         R"({"type": "structural_tag", "format": {"type": "json_schema", "any_order": false, "style": "json",
         "json_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}})",
         {R"({"a": 1, "b": 2})"},
         {R"({"b": 1, "a": 2})"}});
}

TEST(StructuralTag, TakesSpecialTokensForTheTextThatNamesThem) {
  Matcher matcher(compiled(
      Kind::kStructuralTag,
      R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<|call|>"], "at_least_one": true,
      "stop_after_first": true, "tags": [{"begin": "<|call|>a", "content": {"type": "any_text"}, "end": "</s>"}]}})"));
  for (const int token : {int{'h'}, kSpecial, int{'a'}, int{'x'}})
    ASSERT_TRUE(matcher.accept(token)) << token;
  EXPECT_FALSE(matcher.complete());
  EXPECT_TRUE(matcher.accept(kEnd));
  EXPECT_TRUE(matcher.complete());
}

TEST(StructuralTag, SaysWhereItIsWrong) {
  check(Refusal{Kind::kStructuralTag, "{}", {"structural_tag"}});
  check(Refusal{Kind::kStructuralTag,
                R"({"type": "structural_tag", "format": {"type": "any_text", "excludes": [1]}})",
                {"#/format/excludes", "strings"}});
  check(Refusal{
      Kind::kStructuralTag,
      R"({"type": "structural_tag", "format": {"type": "json_schema", "style": "qwen_xml", "json_schema": {}}})",
      {"#/format/style", "json"}});
  check(Refusal{Kind::kStructuralTag,
                R"({"type": "structural_tag", "format": {"type": "regex", "pattern": "a", "flags": "i"}})",
                {"#/format/flags", "not supported"}});
  check(Refusal{Kind::kStructuralTag,
                R"({"type": "structural_tag", "format": {"type": "regex", "pattern": "a", "": "i"}})",
                {"#/format/\"", "not supported"}});
  check(Refusal{Kind::kStructuralTag,
                R"({"type": "structural_tag", "format": {"type": "any_text", "max_chars": -2}})",
                {"#/format/max_chars"}});
  check(Refusal{Kind::kStructuralTag,
                R"({"type": "structural_tag", "format": {"type": "dispatch"}})",
                {"#/format/type", "dispatch"}});
  check(Refusal{
      Kind::kStructuralTag,
      R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type": "regex"}]}})",
      {"#/format/elements/0", "pattern"}});
  check(Refusal{
      Kind::kStructuralTag,
      R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["a"], "tags": [{"begin": "b", "content": {"type": "any_text"}, "end": ""}]}})",
      {"#/format/tags/0/begin"}});
  check(Refusal{
      Kind::kStructuralTag,
      R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["a", "<tool>"], "excludes": ["b", "<"],
         "tags": [{"begin": "a", "content": {"type": "any_text"}, "end": ""}]}})",
      {"#/format/excludes", "\"<\" is a part of the trigger \"<tool>\""}});
}

}  // namespace
}  // namespace quire::grammar::test
