// Which texts each kind of source allows, and what is refused.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "grammar/grammar_helpers.h"

namespace quire::grammar::test {
namespace {

using Kind = Source::Kind;

struct Case {
  Kind kind;
  std::string_view source;
  std::vector<std::string_view> accepted, rejected;
};

void check(const Case& of) {
  SCOPED_TRACE(of.source);
  const auto grammar = compiled(of.kind, of.source);
  for (const auto text : of.accepted) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const auto text : of.rejected) EXPECT_FALSE(accepts(grammar, text)) << text;
}

struct Refusal {
  Kind kind;
  std::string_view source;
  std::vector<std::string_view> parts;
};

void check(const Refusal& of) {
  SCOPED_TRACE(of.source);
  try {
    compiled(of.kind, of.source);
    ADD_FAILURE() << "no error";
  } catch (const GrammarError& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(message.find('\n'), std::string_view::npos) << message;
    for (const auto part : of.parts) EXPECT_NE(message.find(part), std::string_view::npos) << message;
  }
}

TEST(Regex, MatchesTheWholeText) {
  check({Kind::kRegex, "a|bc*", {"a", "b", "bcc"}, {"", "ac", "ab"}});
  check({Kind::kRegex, "^(?:ab){2,3}$", {"abab", "ababab"}, {"ab", "abababab"}});
  check({Kind::kRegex, "[^\\d\\s]+?", {"abc", "\xC3\xA9"}, {"a1", " ", "\xC3"}});
  check({Kind::kRegex,
         "\\u00e9\\x41[\\w-]",
         {"\xC3\xA9"
          "A-"},
         {"\xC3\xA9"
          "A."}});
  check({Kind::kRegex, ".", {"x", "\xF0\x9F\x98\x80"}, {"\n", "xx"}});
  check({Kind::kRegex, "a{2}b{0,1}c{1,}", {"aabc", "aacc"}, {"abc", "aab"}});
  check({Kind::kRegex, "(^a|b)(c|d$)", {"ac", "bd"}, {"a", "cd"}});
}

TEST(Regex, RefusesWhatItDoesNotSupport) {
  check(Refusal{Kind::kRegex, "a(?=b)", {"character 3", "lookaround"}});
  check(Refusal{Kind::kRegex, "(a)\\1", {"references"}});
  check(Refusal{Kind::kRegex, "a\\b", {"word boundaries"}});
  check(Refusal{Kind::kRegex, "(a", {"not closed"}});
  check(Refusal{Kind::kRegex, "a)", {"closes no group"}});
  check(Refusal{Kind::kRegex, "*a", {"nothing to repeat"}});
  check(Refusal{Kind::kRegex, "a{2}{3}", {"is repeated"}});
  check(Refusal{Kind::kRegex, "[z-a]", {"wrong order"}});
  check(Refusal{Kind::kRegex, "a^b", {"^"}});
  check(Refusal{Kind::kRegex, "a[^\\s\\S]", {"no text"}});
}

TEST(Choice, IsOneOfItsTexts) {
  check({Kind::kChoice, R"(["a", "ab", "\u00e9"])", {"a", "ab", "\xC3\xA9"}, {"", "b", "abb"}});
  check(Refusal{Kind::kChoice, "[]", {"at least one"}});
  check(Refusal{Kind::kChoice, "[1]", {"array of at least one string"}});
}

TEST(JsonObject, IsAnyObjectWithBoundedSpace) {
  check({Kind::kJsonObject,
         "",
         {"{}", R"({"a": [1, {"b": null}], "c": -1.5e+3})", "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\"\n}"},
         {"[]", "{\"a\": 01}", "{\"a\":    1}", "{\"a\": \"\\ud800\"}", "{,}", "{\"a\": \"\n\"}",
          "{\"a\": tru}"}});
  const auto compact = compile({.kind = Kind::kJsonObject, .compact = true}, vocabulary());
  EXPECT_TRUE(accepts(compact, R"({"a":[1,2]})"));
  EXPECT_FALSE(accepts(compact, R"({"a": 1})"));
  const auto two = compile({.kind = Kind::kJsonObject, .whitespace_pattern = " {0,2}"}, vocabulary());
  EXPECT_TRUE(accepts(two, R"({  "a":1})"));
  EXPECT_FALSE(accepts(two, "{\n}"));
}

TEST(JsonSchema, EnforcesTheKeywordsOfStrings) {
  check({Kind::kJsonSchema,
         R"({"type": "string", "minLength": 1, "maxLength": 2})",
         {R"("a")", R"("\n\u00e9")"},
         {R"("")", R"("abc")", "1"}});
  check({Kind::kJsonSchema, R"({"type": "string", "pattern": "b+$"})", {R"("abb")"}, {R"("ba")"}});
  check({Kind::kJsonSchema, R"({"type": "string", "pattern": "^\"\\n$"})", {R"("\"\n")"}, {R"("\"n")"}});
  check({Kind::kJsonSchema,
         R"({"type": "string", "format": "date"})",
         {R"("2024-02-29")"},
         {R"("2023-02-29")", R"("2024-13-01")"}});
  check({Kind::kJsonSchema,
         R"({"type": "string", "format": "email"})",
         {R"("a.b@c.de")"},
         {R"("a@")", R"(".a@b.c")"}});
  check({Kind::kJsonSchema,
         R"({"type": "string", "format": "ipv6"})",
         {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("1::8")"},
         {R"("1::2::3")", R"("12345::")"}});
  check({Kind::kJsonSchema,
         R"({"type": "string", "format": "uri"})",
         {R"("https://a.b/c?d=e#f")", R"("urn:x")"},
         {R"("/a")", R"("a b:c")"}});
  check({Kind::kJsonSchema,
         R"({"type": "string", "not": {"pattern": "^a"}})",
         {R"("ba")", R"("")"},
         {R"("ab")"}});
}

TEST(JsonSchema, EnforcesTheKeywordsOfNumbers) {
  check({Kind::kJsonSchema,
         R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 12})",
         {"-3", "0", "11"},
         {"-4", "12", "1.5", "007"}});
  check({Kind::kJsonSchema,
         R"({"type": "number", "minimum": 0.25, "maximum": 10})",
         {"0.25", "0.3", "9.99", "10", "10.00"},
         {"0.24", "10.01", "-1", "100"}});
  check({Kind::kJsonSchema,
         R"({"type": "number", "exclusiveMinimum": -1.5})",
         {"-1.49", "0", "7"},
         {"-1.5", "-1.50", "-2"}});
  check({Kind::kJsonSchema,
         R"({"type": "number", "minimum": 0, "exclusiveMinimum": true})",
         {"0.1"},
         {"0", "0.0"}});
  check({Kind::kJsonSchema,
         R"({"type": "number", "multipleOf": 0.05})",
         {"0.05", "1", "-2.150"},
         {"0.07", "1.051"}});
  check({Kind::kJsonSchema,
         R"({"type": "integer", "multipleOf": 12, "minimum": 1})",
         {"12", "144"},
         {"0", "13"}});
  check({Kind::kJsonSchema, R"({"type": "number", "not": {"type": "integer"}})", {"0.5"}, {"1", "1.0"}});
  check({Kind::kJsonSchema, R"({"type": "integer", "not": {"const": 5}})", {"4", "55"}, {"5"}});
  check({Kind::kJsonSchema,
         R"({"type": "number", "not": {"const": 0}})",
         {"0.1", "-1"},
         {"0", "-0", "-0.0", "0.00"}});
}

TEST(JsonSchema, EnforcesTheKeywordsOfArrays) {
  check({Kind::kJsonSchema,
         R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
         {"[1]", "[1, 2]"},
         {"[]", "[1, 2, 3]", "[null]"}});
  check({Kind::kJsonSchema,
         R"({"prefixItems": [{"type": "null"}, {"const": 1}], "items": {"const": 2}, "type": "array"})",
         {"[]", "[null]", "[null, 1, 2, 2]"},
         {"[1]", "[null, 1, 3]"}});
  check({Kind::kJsonSchema,
         R"({"type": "array", "items": [{"const": 1}], "additionalItems": false})",
         {"[]", "[1]"},
         {"[1, 1]"}});
  check({Kind::kJsonSchema,
         R"({"type": "array", "contains": {"const": 1}})",
         {"[1]", "[0, 1, 2]"},
         {"[]", "[0]"}});
  check({Kind::kJsonSchema, R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}});
}

TEST(JsonSchema, EnforcesTheKeywordsOfObjects) {
  check({Kind::kJsonSchema,
         R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]})",
         {R"({"b": 2})", R"({"a": 1, "b": 2, "c": []})"},
         {"{}", R"({"a": 1})", R"({"b": 2, "a": 1})", R"({"b": 1})", R"({"b": 2, "b": 2})",
          R"({"b": 2, "\u0062": 1})"}});
  check(
      {Kind::kJsonSchema,
       R"({"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": {"const": 2}})",
       {R"({"x": 1, "a": 2})"},
       {R"({"x": 2})", R"({"a": 1})"}});
  check({Kind::kJsonSchema,
         R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
         {R"({"a": 1})", R"({"a": 1, "b": 2})"},
         {"{}", R"({"a": 1, "b": 2, "c": 3})"}});
  check(
      {Kind::kJsonSchema,
       R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "additionalProperties": false})",
       {R"({"a": 1, "c": 2})"},
       {R"({"a": 1})"}});
  check({Kind::kJsonSchema,
         R"({"type": "object", "propertyNames": {"maxLength": 1}})",
         {R"({"a": 1})"},
         {R"({"ab": 1})"}});
  check(
      {Kind::kJsonSchema,
       R"({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}, "additionalProperties": false})",
       {"{}", R"({"b": 1})", R"({"a": 1, "b": 1})"},
       {R"({"a": 1})"}});
  const auto any_order = compile(
      {.text =
           R"({"properties": {"a": {}, "b": {}}, "required": ["a"], "type": "object", "additionalProperties": false})",
       .any_order = true},
      vocabulary());
  EXPECT_TRUE(accepts(any_order, R"({"b": 1, "a": 2})"));
  EXPECT_FALSE(accepts(any_order, R"({"b": 1})"));
  EXPECT_FALSE(accepts(any_order, R"({"a": 1, "b": 1, "a": 2})"));
  const auto closed =
      compile({.text = R"({"properties": {"a": {}}, "type": "object"})", .additional_properties = false},
              vocabulary());
  EXPECT_FALSE(accepts(closed, R"({"b": 1})"));
}

TEST(JsonSchema, CombinesSchemas) {
  check({Kind::kJsonSchema,
         R"({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 5}], "maximum": 7})",
         {"null", "5", "7"},
         {"4", "8"}});
  check({Kind::kJsonSchema,
         R"({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"})",
         {"2", "9", "-4"},
         {"6", "0", "1"}});
  check({Kind::kJsonSchema,
         R"({"allOf": [{"type": ["integer", "null"]}, {"type": ["integer", "string"]}]})",
         {"1"},
         {"null", R"("")"}});
  check({Kind::kJsonSchema,
         R"({"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "null"}})",
         {"3", "null"},
         {"2", "true"}});
  check({Kind::kJsonSchema,
         R"({"not": {"anyOf": [{"type": "object"}, {"type": "array"}, {"enum": [1, "a", null]}]}})",
         {"2", R"("b")", "true"},
         {"1", R"("a")", "null", "[]", "1.0"}});
  check({Kind::kJsonSchema,
         R"({"enum": [1, "a", [2], {"b": 3}], "type": ["array", "string", "object"]})",
         {R"("a")", "[2]", R"({"b": 3})"},
         {"1", "[3]"}});
  check({Kind::kJsonSchema, R"({"enum": ["a", "abc"], "minLength": 2})", {R"("abc")"}, {R"("a")"}});
  check({Kind::kJsonSchema,
         R"({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}})",
         {"1"},
         {"2"}});
  check({Kind::kJsonSchema,
         R"({"$id": "http://x/y", "$defs": {"n": {"$anchor": "here", "type": "null"}, "one": {"const": 1}},
      "anyOf": [{"$ref": "#here"}, {"$ref": "http://x/y#/$defs/one"}]})",
         {"null", "1"},
         {"2"}});
}

TEST(JsonSchema, FollowsRecursionAsDeepAsItGoes) {
  check({Kind::kJsonSchema,
         R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": false})",
         {"{}", R"({"a": {}})", R"({"a": {"a": {"a": {}}}})"},
         {R"({"a": 1})", R"({"a": {"b": {}}})"}});
}

TEST(JsonSchema, RefusesWhatItDoesNotEnforceWithItsPointer) {
  check(Refusal{Kind::kJsonSchema,
                R"({"properties": {"a/b": {"unevaluatedProperties": false}}})",
                {"#/properties/a~1b/unevaluatedProperties"}});
  check(Refusal{Kind::kJsonSchema,
                R"({"items": {"uniqueItems": true, "type": "array"}, "type": "array"})",
                {"#/items/uniqueItems"}});
  check(Refusal{Kind::kJsonSchema, R"({"$ref": "http://elsewhere"})", {"#/$ref", "http://elsewhere"}});
  check(Refusal{Kind::kJsonSchema, R"({"$ref": "#/no/where"})", {"nothing at"}});
  check(Refusal{Kind::kJsonSchema,
                R"j({"anyOf": [{"type": "string", "pattern": "a(?!b)"}]
})j",
                {"#/anyOf/0/pattern", "lookaround"}});
  check(Refusal{Kind::kJsonSchema, R"({"type": "string", "format": "uri-template"})", {"#/format"}});
  check(Refusal{Kind::kJsonSchema, R"({"type": "text"})", {"#/type"}});
  check(Refusal{Kind::kJsonSchema,
                R"({"not": {"patternProperties": {"a": {}}}})",
                {"#/not/patternProperties", "opposite"}});
  check(Refusal{Kind::kJsonSchema, R"({"type": "integer", "minimum": 3, "maximum": 2})", {"no text"}});
  check(Refusal{Kind::kJsonSchema,
                R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"})",
                {"no text"}});
  check(Refusal{Kind::kJsonSchema, "{", {"JSON schema"}});
  check(Refusal{Kind::kJsonSchema, "3", {"a schema is"}});
  check(Refusal{Kind::kJsonSchema, R"({"$ref": "#/%zz"})", {"nothing at"}});
  check(Refusal{Kind::kJsonSchema, R"({"not": {"$ref": 5}})", {"wrong type"}});
  check(Refusal{Kind::kJsonSchema, R"({"not": {"required": [5]}})", {"wrong type"}});
  check(Refusal{Kind::kJsonSchema, R"({"required": [5]})", {"#/required", "array of strings"}});
}

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
}

TEST(Rules, SayWhereTheyAreWrong) {
  check(Refusal{Kind::kGrammar, "root ::= other", {"\"other\"", "not defined"}});
  check(Refusal{Kind::kGrammar, "root ::= \"a\"\nroot ::= \"b\"", {"line 2", "twice"}});
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
                {"wrong type"}});
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
}

}  // namespace
}  // namespace quire::grammar::test
