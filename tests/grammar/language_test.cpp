// Which texts regular expressions, choices and schemas allow, and what is refused.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "grammar/language_cases.h"

namespace quire::grammar::test {
namespace {

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
  check({Kind::kRegex, "\\U0001F600", {"\xF0\x9F\x98\x80"}, {"U0001F600"}});
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
  check(Refusal{Kind::kRegex, "(^a)*", {"anchor", "repeated"}});
  check(Refusal{Kind::kRegex, "\\U00110000", {"no character"}});
  for (const char* cut :
       {"\\", "\\c", "\\c1", "\\x4", "\\u12", "\\u{}", "\\u{12", "[a-", "[\\c", "(?<", "(?"})
    check(Refusal{Kind::kRegex, cut, {"regular expression, character"}});
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
  const auto compact = compile({.kind = Kind::kJsonObject, .disable_any_whitespace = true}, vocabulary());
  EXPECT_TRUE(accepts(compact, R"({"a":[1,2]})"));
  EXPECT_FALSE(accepts(compact, R"({"a": 1})"));
  const auto two = compile({.kind = Kind::kJsonObject, .whitespace_pattern = " {0,2}"}, vocabulary());
  EXPECT_TRUE(accepts(two, R"({  "a":1})"));
  EXPECT_FALSE(accepts(two, "{\n}"));
}

TEST(WhitespacePattern, IsRefusedWhereThereIsNoJson) {
  const auto with_pattern = [](Kind kind, std::string text) {
    return compile({.kind = kind, .source = std::move(text), .whitespace_pattern = ""}, vocabulary());
  };
  for (const auto& [kind, text] : std::vector<std::pair<Kind, const char*>>{
           {Kind::kRegex, "a"}, {Kind::kChoice, R"(["a"])"}, {Kind::kGrammar, "root ::= \"a\""}})
    expect_error([&, kind = kind, text = text] { with_pattern(kind, text); },
                 {"whitespace_pattern is for JSON"});
  const auto tag = with_pattern(
      Kind::kStructuralTag,
      R"({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "array"}}})");
  EXPECT_TRUE(accepts(tag, "[1,2]"));
  EXPECT_FALSE(accepts(tag, "[1, 2]"));
}

TEST(JsonSchema, EnforcesTheKeywordsOfStrings) {
  check({Kind::kJsonSchema,
         R"({"type": "string", "minLength": 1, "maxLength": 2})",
         {R"("a")", R"("\n\u00e9")"},
         {R"("")", R"("abc")", "1"}});
  check({Kind::kJsonSchema, R"({"type": "string", "pattern": "b+$"})", {R"("abb")"}, {R"("ba")"}});
  check({Kind::kJsonSchema,
         R"j({"type": "string", "pattern": "(^|,)a(,|$)"})j",
         {R"("a")", R"("b,a")", R"("a,b")", R"("x,a,y")"},
         {R"("ab")", R"("ba,")", R"("")"}});
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
         R"({"type": "integer", "multipleOf": 1000003, "minimum": 1})",
         {"1000003", "5000015"},
         {"0", "1000004"}});
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
  for (const char* both : {R"({"allOf": [{"contains": {"const": 1}}, {"uniqueItems": true}]})",
                           R"({"allOf": [{"uniqueItems": true}, {"contains": {"const": 1}}]})"})
    check(Refusal{Kind::kJsonSchema, both, {"uniqueItems", "at most one item"}});
}

TEST(JsonSchema, EnforcesTheKeywordsOfObjects) {
  check({Kind::kJsonSchema,
         R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]})",
         {R"({"b": 2})", R"({"a": 1, "b": 2, "c": []})", R"({"c": [], "b": 2, "a": 1})"},
         {"{}", R"({"a": 1})", R"({"b": 1})", R"({"b": 2, "b": 2})", R"({"b": 2, "\u0062": 1})"}});
  check(
      {Kind::kJsonSchema,
       R"({"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": {"const": 2}})",
       {R"({"x": 1, "a": 2})"},
       {R"({"x": 2})", R"({"a": 1})"}});
  check(
      {Kind::kJsonSchema,
       R"({"properties": {"x": {"$ref": "#/definitions/D/patternProperties/^a"}, "y": {"$ref": "#/definitions/D"}},
      "definitions": {"D": {"type": "object", "patternProperties": {"^a": {"type": "string"}},
      "additionalProperties": false}}})",
       {R"({"y": {"ab": "s"}})", R"({"x": "s", "y": {}})"},
       {R"({"y": {"b": "s"}})", R"({"y": {"ab": 1}})"}});
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
  check(Refusal{
      Kind::kJsonSchema,
      R"({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2, "maxProperties": 1})",
      {"no text"}});
  const auto in_order =
      compile({.source = R"({"properties": {"a": {}, "b": {}}, "required": ["a"], "type": "object"})",
               .any_order = false},
              vocabulary());
  EXPECT_TRUE(accepts(in_order, R"({"a": 1, "b": 2, "c": 3})"));
  EXPECT_FALSE(accepts(in_order, R"({"b": 1, "a": 2})"));
  EXPECT_FALSE(accepts(in_order, R"({"c": 1, "a": 2})"));
  const auto closed = compile(
      {.source = R"({"properties": {"a": {}}, "type": "object"})", .disable_additional_properties = true},
      vocabulary());
  EXPECT_FALSE(accepts(closed, R"({"b": 1})"));
}

// Two others may have one name, so that they are not known to be two.
TEST(JsonSchema, BeginsNoMemberBehindWhichTheObjectCouldNotEnd) {
  Matcher matcher(
      compiled(Kind::kJsonSchema,
               R"({"type": "object", "properties": {"a": {}}, "minProperties": 2, "maxProperties": 2})"));
  for (const char byte : std::string_view(R"({"x": 1, ")")) ASSERT_TRUE(matcher.accept(byte));
  EXPECT_FALSE(Matcher(matcher).accept('y'));
  for (const char byte : std::string_view(R"(a": 2})")) ASSERT_TRUE(matcher.accept(byte));
  EXPECT_TRUE(matcher.complete());
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
         R"({"type": "integer", "enum": [1.0, 2, -1e15, 0.5]})",
         {"1", "2", "-1000000000000000"},
         {"0", "0.5", "-1"}});
  check({Kind::kJsonSchema, R"({"enum": [1.0, 1e15], "minimum": 1})", {"1.0", "1000000000000000"}, {"2"}});
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

// As pydantic says a union whose tags have defaults. Each of them excluded from all others is too much.
// As pydantic writes Decimal, and zod an e-mail's address.
TEST(JsonSchema, PatternsLookAheadWhereTheTextBegins) {
  check({Kind::kJsonSchema,
         R"j({"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})j",
         {R"("1.5")", R"("-0")", R"("+.5")"},
         {R"("")", R"("-")", R"("+.")", R"("1-")"}});
  check({Kind::kJsonSchema,
         R"j({"type": "string", "pattern":
             "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"})j",
         {R"("a.b@c.de")", R"("ab@c-d.ef.gh")"},
         {R"(".a@c.de")", R"("a..b@c.de")", R"("a.@c.de")", R"("a@c..de")"}});
  check({Kind::kJsonSchema,
         R"j({"type": "string", "pattern": "^(?=..b)a|^c"})j",
         {R"("axb")", R"("axbx")", R"("cx")"},
         {R"("ab")", R"("axc")", R"("bxb")"}});
  check({Kind::kRegex, "(?!ab|c$)[a-c]+", {"a", "ac", "cc"}, {"ab", "abc", "c"}});
  check(Refusal{Kind::kJsonSchema, R"j({"pattern": "(?=a)b"})j", {"#/pattern", "lookaround"}});
  check(Refusal{Kind::kRegex, "(?=(?!a)b)c", {"character 5", "lookaround"}});
}

TEST(JsonSchema, TellsAlternativesApartByTheirDiscriminator) {
  std::string schema = R"({"discriminator": {"propertyName": "kind"}, "oneOf": [false)";
  for (int i = 0; i < 12; ++i)
    schema += format_text(R"(, {{"type": "object", "properties": {{"kind": {{"const": {0}, "default": {0}}}}},
                          "required": ["f{0}"]}})",
                          i);
  check({Kind::kJsonSchema,
         schema += "]}",
         {R"({"kind": 1, "f1": 1})", R"({"f7": 7, "kind": 7, "f6": 0})"},
         {R"({"f1": 1})", R"({"kind": 1, "f2": 1})"}});
  check({Kind::kJsonSchema,
         R"({"discriminator": {"propertyName": "kind"}, "oneOf": [
             {"type": "object", "properties": {"a": {}}, "additionalProperties": false},
             {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": false}]})",
         {R"({"a": 1})", R"({"b": 1})"},
         {R"({"a": 1, "b": 1})"}});
}

TEST(JsonSchema, TakesUnknownKeywordsForAnnotationsInWhatItNegates) {
  check({Kind::kJsonSchema,
         R"({"oneOf": [{"type": "integer", "x-unit": "s"}, {"type": "number", "": 1}]})",
         {"0.5"},
         {"1", R"("")"}});
  check({Kind::kJsonSchema,
         R"({"type": "string", "not": {"format": "phone", "minLength": 2, "maxlength": 3}})",
         {R"("a")"},
         {R"("ab")", R"("abcd")"}});
  check({Kind::kJsonSchema,
         R"({"if": {"type": "integer", "markdownDescription": "a"}, "then": {"minimum": 3}})",
         {"3", "2.5", "null"},
         {"2"}});
  check(Refusal{Kind::kJsonSchema, R"({"not": {"x-unit": "s", "format": "phone"}})", {"no text"}});
  for (const char* asserts : {R"("format": "date")", R"("uniqueItems": true)", R"("maxContains": 1)",
                              R"("if": {}, "then": {})", R"("prefixItems": [])"})
    check(Refusal{Kind::kJsonSchema, std::string(R"({"not": {)") + asserts + "}}", {"#/not/", "opposite"}});
}

TEST(JsonSchema, ResolvesReferencesWithinTheNearestId) {
  check(
      {Kind::kJsonSchema,
       R"({"$ref": "#/$defs/a", "$defs": {"b": {"type": "string"}, "a": {"$id": "http://x/a", "$ref": "#/$defs/b",
         "$defs": {"b": {"type": "integer"}}}}})",
       {"1"},
       {R"("s")"}});
  check(
      {Kind::kJsonSchema,
       R"({"$ref": "#/$defs/a", "$defs": {"b": {"type": "string"}, "a": {"$id": "http://x/a", "required": ["default"],
         "properties": {"default": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}}}})",
       {R"({"default": 1})"},
       {R"({"default": "s"})"}});
  check({Kind::kJsonSchema,
         R"({"$ref": "#/$defs/a", "$defs": {"b": {"type": "string"}, "a": {"id": "no keyword since draft 6",
         "$ref": "#/$defs/b"}}})",
         {R"("s")"},
         {"1"}});
  check(Refusal{Kind::kJsonSchema,
                R"({"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#/$defs/a",
                "$defs": {"b": {"type": "string"}, "a": {"id": "x", "$ref": "#/$defs/b"}}})",
                {"nothing at"}});
  check(Refusal{
      Kind::kJsonSchema,
      R"({"$ref": "x", "$defs": {"a": {"$id": "x", "type": "null"}, "b": {"$id": "x", "type": "string"}}})",
      {"#/$ref", "more than one"}});
}

TEST(JsonSchema, RefersToWhatANegationNegates) {
  // Eleven levels of eight references: each schema is negated once.
  std::string schema = R"({"not": {"$ref": "#/$defs/0"}, "$defs": {)";
  for (int level = 0; level < 11; ++level) {
    schema += (level > 0 ? ",\"" : "\"") + std::to_string(level) + R"(": {"anyOf": [)";
    for (int i = 0; i < 8; ++i)
      schema += std::string(i > 0 ? "," : "") +
                (level < 10 ? R"({"$ref": "#/$defs/)" + std::to_string(level + 1) + "\"}"
                            : R"({"type": "string"})");
    schema += "]}";
  }
  const auto grammar = compiled(Kind::kJsonSchema, schema + "}}", {.compile_time = std::chrono::seconds(5)});
  EXPECT_TRUE(accepts(grammar, "1"));
  EXPECT_FALSE(accepts(grammar, "\"\""));
  check({Kind::kJsonSchema,
         R"({"not": {"$ref": "#/$defs/n"}, "type": "array",
         "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}})",
         {"[1]", "[[], [[2]]]"},
         {"[]", "[[], [[]]]"}});
}

TEST(JsonSchema, TellsNumbersAndValuesExactlyOrRefusesThem) {
  check({Kind::kJsonSchema,
         R"({"type": "integer", "maximum": 18446744073709551615000})",
         {"18446744073709540000000"},
         {"18446744073709551615001"}});
  check({Kind::kJsonSchema,
         R"({"type": "integer", "minimum": 18446744073709551617})",
         {"18446744073709560000"},
         {"18446744073709551616"}});
  check({Kind::kJsonSchema,
         R"({"type": "integer", "minimum": -9223372036854777000})",
         {"-9223372036854775807", "-9223372036854775808"},
         {"-9223372036854777800"}});
  check({Kind::kJsonSchema,
         R"({"type": "integer", "minimum": -9223372036854775808})",
         {"-9223372036854775808"},
         {"-9223372036854775809"}});
  check({Kind::kJsonSchema, R"({"minimum": 1.7976931348623157e308})", {"null"}, {"1000", "-1"}});
  check({Kind::kJsonSchema, R"({"maximum": -1.7976931348623157e308})", {"null"}, {"-1000", "1"}});
  check(Refusal{Kind::kJsonSchema, R"({"const": 18446744073709551617})", {"#/const", "2^64"}});
  check(Refusal{Kind::kJsonSchema, R"({"enum": [1, -9223372036854775809]})", {"#/enum", "-2^63"}});
  check(Refusal{Kind::kJsonSchema, R"({"const": {"a": [18446744073709551617]}})", {"#/const", "2^64"}});
  check(Refusal{Kind::kJsonSchema, R"({"not": {"enum": [1e40]}})", {"#/not/enum", "2^64"}});
  check({Kind::kJsonSchema,
         R"({"allOf": [{"enum": [{"x": 1, "y": 2}]}, {"const": {"y": 2, "x": 1}}]})",
         {R"({"x": 1, "y": 2})"},
         {"1"}});
  check(Refusal{Kind::kJsonSchema,
                R"({"oneOf": [{"const": {"x": 1, "y": 2}}, {"const": {"y": 2, "x": 1}}]})",
                {"opposite"}});
  std::string host;
  for (int i = 0; i < 28; ++i) host += "abcdefgh.";
  const auto hosts = compiled(Kind::kJsonSchema, R"({"type": "string", "format": "hostname"})");
  EXPECT_TRUE(accepts(hosts, '"' + host + "c\""));
  EXPECT_FALSE(accepts(hosts, '"' + host + "co\""));
  EXPECT_FALSE(accepts(hosts, R"("a.xn--x.b")"));
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
  check(Refusal{
      Kind::kJsonSchema, R"({"properties": {"a": {"required": true}}})", {"#/properties/a/required"}});
  check(
      Refusal{Kind::kJsonSchema, R"({"type": "integer", "exclusiveMinimum": "5"})", {"#/exclusiveMinimum"}});
  check(Refusal{Kind::kJsonSchema,
                R"j({"type": "object", "patternProperties": {"(?=a)": {}}, "properties": {"a": {}}})j",
                {"#/patternProperties/(?=a)", "lookaround"}});
}

}  // namespace
}  // namespace quire::grammar::test
