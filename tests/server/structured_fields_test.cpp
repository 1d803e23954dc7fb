#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/api_request.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using Kind = StructuredOutputs::Kind;

std::shared_ptr<const StructuredOutputs> read_fields(const std::string& fields) {
  const OrderedJson body = parse_body("{" + fields + "}");
  return read_structured_outputs(JsonFields(body));
}

ApiError fields_error(const std::string& fields) {
  try {
    read_fields(fields);
  } catch (const ApiError& e) {
    return e;
  }
  ADD_FAILURE() << fields << " is taken";
  return ApiError(200, "");
}

void expect_read(const std::string& fields, Kind kind, const std::string& source) {
  const auto outputs = read_fields(fields);
  ASSERT_NE(outputs, nullptr) << fields;
  EXPECT_EQ(outputs->kind, kind) << fields;
  EXPECT_EQ(outputs->source, source) << fields;
}

TEST(StructuredFieldsTest, EverySpellingIsUnderstood) {
  const std::string schema = R"({"type":"object","properties":{"b":{},"a":{}}})";
  expect_read(R"("response_format": {"type": "json_object"})", Kind::kJsonObject, "");
  expect_read(R"("response_format": {"type": "json_object", "schema": )" + schema + "}", Kind::kJsonSchema,
              schema);
  expect_read(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": )" +
                  schema + R"(, "strict": true}})",
              Kind::kJsonSchema, schema);
  const std::string tag = R"({"type":"structural_tag","format":{"type":"const_string","value":"a"}})";
  expect_read(R"("response_format": )" + tag, Kind::kStructuralTag, tag);
  for (const char* name : {"guided_json", "json_schema"}) {
    expect_read(format_text("\"{}\": {}", name, schema), Kind::kJsonSchema, schema);
    expect_read(format_text("\"{}\": {{}}", name), Kind::kJsonSchema, "{}");
    expect_read(format_text("\"{}\": \"{{}}\"", name), Kind::kJsonSchema, "{}");
  }
  for (const char* name : {"guided_regex", "regex"})
    expect_read(format_text("\"{}\": \"a+\"", name), Kind::kRegex, "a+");
  for (const char* name : {"guided_grammar", "grammar", "ebnf"})
    expect_read(format_text("\"{}\": \"root ::= [a]\"", name), Kind::kGrammar, "root ::= [a]");
  expect_read(R"("guided_choice": ["a", "b\n"])", Kind::kChoice, R"(["a","b\n"])");
  expect_read(R"("guided_json_object": true)", Kind::kJsonObject, "");
  expect_read(R"("structured_outputs": {"json": )" + schema + "}", Kind::kJsonSchema, schema);
  expect_read(R"("structured_outputs": {"json": false})", Kind::kJsonSchema, "false");
  expect_read(R"("structured_outputs": {"json_object": true})", Kind::kJsonObject, "");
  expect_read(R"("structured_outputs": {"regex": "a", "choice": null, "json": null})", Kind::kRegex, "a");
  expect_read(R"("structured_outputs": {"choice": ["a"]})", Kind::kChoice, R"(["a"])");
  expect_read(R"("structured_outputs": {"grammar": "x", "disable_fallback": false, "backend": null})",
              Kind::kGrammar, "x");
  expect_read(R"("structured_outputs": {"structural_tag": "{}"})", Kind::kStructuralTag, "{}");
}

TEST(StructuredFieldsTest, WhitespaceAndPropertiesAreChosen) {
  const auto outputs = read_fields(R"("structured_outputs": {"json": {}, "whitespace_pattern": " ?",
                               "disable_any_whitespace": true, "disable_additional_properties": true})");
  EXPECT_EQ(outputs->whitespace_pattern, " ?");
  EXPECT_TRUE(outputs->disable_any_whitespace && outputs->disable_additional_properties);
  EXPECT_EQ(outputs->whitespace_name, "structured_outputs.whitespace_pattern");
  EXPECT_EQ(read_fields(R"("guided_json": {}, "guided_whitespace_pattern": "")")->whitespace_pattern, "");
}

TEST(StructuredFieldsTest, WhatAsksForNothingIsNothing) {
  EXPECT_EQ(read_fields(""), nullptr);
  EXPECT_EQ(
      read_fields(R"("response_format": {"type": "text"}, "structured_outputs": null, "grammar_lazy": false,
                    "guided_json": null, "json_schema": "", "grammar": "", "guided_json_object": false)"),
      nullptr);
}

TEST(StructuredFieldsTest, TwoOfThemAreOneTooMany) {
  const ApiError error = fields_error(R"("response_format": {"type": "json_object"},
                                     "structured_outputs": {"regex": "a"})");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "structured_outputs.regex");
  EXPECT_THAT(error.what(), HasSubstr("structured_outputs.regex and response_format exclude each other"));
}

TEST(StructuredFieldsTest, WhatIsOfAnotherTypeIsNamed) {
  EXPECT_EQ(fields_error(R"("guided_regex": 7)").param, "guided_regex");
  EXPECT_EQ(fields_error(R"("guided_choice": "a")").param, "guided_choice");
  EXPECT_EQ(fields_error(R"("guided_choice": ["a", 3])").param, "guided_choice[1]");
  EXPECT_EQ(fields_error(R"("guided_json": [1])").param, "guided_json");
  EXPECT_EQ(fields_error(R"("structured_outputs": {"json_object": 2})").param,
            "structured_outputs.json_object");
  EXPECT_EQ(fields_error(R"("response_format": {"type": "json_schema"})").param,
            "response_format.json_schema");
  EXPECT_EQ(fields_error(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})").param,
            "response_format.json_schema.schema");
  const std::string inner = "response_format.json_schema.";
  for (const auto& [name, value] : {std::pair("strict", "\"perhaps\""), {"name", "5"}, {"description", "[]"}})
    EXPECT_EQ(fields_error(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, ")" +
                           format_text("{}\": {}}}}}", name, value))
                  .param,
              inner + name);
  EXPECT_THAT(fields_error(R"("response_format": {"type": "xml"})").what(), HasSubstr("not supported"));
}

TEST(StructuredFieldsTest, WhatWouldNotBeEnforcedIsRefused) {
  const auto expect_refused = [](const std::string& fields, const std::string& param,
                                 const std::string& why) {
    const ApiError error = fields_error(fields);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_THAT(error.what(), HasSubstr(why));
  };
  expect_refused(R"("response_format": {"schema": {}})", "response_format.type", "is missing");
  expect_refused(R"("response_format": {"type": "json_object", "json_schema": {"schema": {}}})",
                 "response_format", "\"json_schema\", which is not supported");
  expect_refused(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, "any": 1}})",
                 "response_format.json_schema", "\"any\"");
  expect_refused(R"("structured_outputs": {})", "structured_outputs", "has no source");
  expect_refused(R"("structured_outputs": {"json_object": false})", "structured_outputs", "has no source");
  expect_refused(R"("structured_outputs": {"whitespace_pattern": ""})", "structured_outputs", "no source");
  expect_refused(R"("structured_outputs": {"json": {}, "backend": "x"})", "structured_outputs",
                 "\"backend\"");
  expect_refused(R"("guided_choice": [])", "guided_choice", "is empty");
  expect_refused(R"("structured_outputs": {"choice": []})", "structured_outputs.choice", "is empty");
  expect_refused(R"("grammar": "root ::= [a]", "grammar_lazy": true)", "grammar_lazy", "not supported");
}

TEST(StructuredFieldsTest, WhatSaysHowJsonIsWrittenNeedsSome) {
  const auto expect_refused = [](const std::string& fields, const std::string& param) {
    EXPECT_EQ(fields_error(fields).param, param) << fields;
    EXPECT_THAT(fields_error(fields).what(), HasSubstr("is for JSON")) << fields;
  };
  expect_refused(R"("guided_whitespace_pattern": " ")", "guided_whitespace_pattern");
  expect_refused(R"("guided_regex": "a", "guided_whitespace_pattern": " ")", "guided_whitespace_pattern");
  for (const std::string source : {R"("regex": "a")", R"("choice": ["a"])", R"("grammar": "root ::= [a]")"}) {
    const std::string begin = R"("structured_outputs": {)" + source;
    expect_refused(begin + R"(, "whitespace_pattern": " "})", "structured_outputs.whitespace_pattern");
    for (const std::string name : {"disable_any_whitespace", "disable_additional_properties"}) {
      expect_refused(begin + format_text(", \"{}\": true}}", name), "structured_outputs." + name);
      EXPECT_NE(read_fields(begin + format_text(", \"{}\": false}}", name)), nullptr);
    }
  }
  EXPECT_EQ(
      fields_error(R"("structured_outputs": {"json_object": true, "disable_additional_properties": true})")
          .param,
      "structured_outputs.disable_additional_properties");
  EXPECT_EQ(read_fields(R"("guided_whitespace_pattern": "")"), nullptr);
  EXPECT_FALSE(read_fields(R"("guided_regex": "a", "guided_whitespace_pattern": "")")->whitespace_pattern);
  EXPECT_EQ(fields_error(R"("structured_outputs": {"json": {}, "whitespace_pattern": " "},
                        "guided_whitespace_pattern": " ")")
                .param,
            "guided_whitespace_pattern");
}

TEST(StructuredFieldsTest, MessagesCallThemByTheirField) {
  EXPECT_EQ(read_fields(R"("response_format": {"type": "json_object"})")->name, "response_format");
  EXPECT_EQ(read_fields(R"("structured_outputs": {"regex": "a"})")->name, "structured_outputs.regex");
  EXPECT_EQ(read_fields(R"("guided_regex": "a")")->name, "guided_regex");
}

}  // namespace
}  // namespace quire::server
