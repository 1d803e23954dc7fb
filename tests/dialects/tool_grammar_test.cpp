#include "dialects/tool_grammar.h"

#include <gmock/gmock.h>

#include <random>

#include "dialects/expect_parsed.h"
#include "dialects/output_format.h"
#include "expect_error.h"

namespace quire::dialects {
namespace {

using test::Parsed;
using ::testing::HasSubstr;
using ::testing::Not;

const OrderedJson kTools = OrderedJson::parse(R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city", "at"],
    "$defs": {"Point": {"type": "object", "required": ["x"],
                        "properties": {"x": {"type": "number"}, "label": {"type": "string"}}}},
    "properties": {"days": {"type": "integer"}, "city": {"type": "string"}, "hot": {"type": "boolean"},
      "unit": {"enum": ["C", "F"]}, "at": {"$ref": "#/$defs/Point"},
      "near": {"type": "array", "items": {"type": "string"}}}}}},
  {"type": "function", "function": {"name": "log.v-2", "parameters": {"type": "object", "properties": {
      "text": {"type": "string"}, "level": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "now"}}])");

// Draws texts of a structural tag, and notes what values they hold.
class Drawer {
 public:
  explicit Drawer(unsigned seed) : random_(seed) {}

  std::string draw(const OrderedJson& format) {
    const std::string type = format.at("type");
    if (type == "const_string") return format.at("value");
    if (type == "sequence") {
      std::string text;
      for (const OrderedJson& element : format.at("elements")) text += draw(element);
      return text;
    }
    if (type == "or") return draw(format.at("elements")[below(format.at("elements").size())]);
    if (type == "optional") return below(2) == 0 ? "" : draw(format.at("content"));
    if (type == "star") {
      std::string text;
      while (below(2) == 0) text += draw(format.at("content"));
      return text;
    }
    if (type == "repeat") {
      std::string text;
      for (std::size_t i = format.at("min"); i > 0 || below(2) == 0; i -= i > 0)
        text += draw(format.at("content"));
      return text;
    }
    if (type == "tags_with_separator") {
      const auto draw_tag = [&] {
        const OrderedJson& tag = format.at("tags")[below(format.at("tags").size())];
        EXPECT_TRUE(tag.at("begin") == "" && tag.at("end") == "");
        return draw(tag.at("content"));
      };
      std::string text = draw_tag();
      while (format.at("stop_after_first") == false && below(2) == 0)
        text += format.at("separator").get<std::string>() + draw_tag();
      return text;
    }
    if (type == "regex") return draw_regex(format.at("pattern"));
    if (type == "json_schema") {
      const OrderedJson value = draw_value(format.at("json_schema"), format.at("json_schema"));
      leaves(value, values_);
      return value.dump();
    }
    QUIRE_CHECK(type == "tag" && format.at("content").at("type") == "any_text");
    const std::string closing = format.at("end");
    std::string text = draw_text();
    while (text.find(closing) != text.npos) text = draw_text();
    values_.push_back(text);
    return format.at("begin").get<std::string>() + text + closing;
  }

  const std::vector<OrderedJson>& values() const { return values_; }

  static void leaves(const OrderedJson& value, std::vector<OrderedJson>& into) {
    if (!value.is_structured()) return into.push_back(value);
    for (const OrderedJson& part : value) leaves(part, into);
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }

  std::string draw_text() {
    constexpr std::string_view kPieces[] = {
        "a",          "Łódź", "\"", "\\", "'",  "}",  "]",           ")",           "<",           "</",
        "{\"a\": 1}", ",",    " ",  "b",  "<|", "\t", "</parameter", "<tool_call>", "[TOOL_CALLS]"};
    std::string text;
    for (std::size_t i = below(5); i > 0; --i) text += kPieces[below(std::size(kPieces))];
    return text;
  }

  std::string draw_regex(const std::string& pattern) {
    if (pattern == "\\n{1,2}") return below(2) == 0 ? "\n" : "\n\n";
    if (pattern == "[0-9]{1,3}") return std::to_string(below(1000));
    QUIRE_CHECK(pattern == "True|False");
    values_.push_back(below(2) == 0);
    return values_.back() == true ? "True" : "False";
  }

  OrderedJson draw_value(const OrderedJson& root, const OrderedJson& schema) {
    if (schema.contains("$ref")) return draw_value(root, root.at("$defs").at("Point"));
    if (schema.contains("enum")) return schema.at("enum")[below(schema.at("enum").size())];
    const std::string type = schema.at("type");
    if (type == "string") return draw_text();
    if (type == "integer") return static_cast<int>(below(100)) - 50;
    if (type == "number") return below(2) == 0 ? 1.5 : -2e30;
    if (type == "boolean") return below(2) == 0;
    if (type == "null") return nullptr;
    if (type == "array") {
      OrderedJson list = OrderedJson::array();
      while (below(2) == 0) list.push_back(draw_value(root, schema.at("items")));
      return list;
    }
    OrderedJson object = OrderedJson::object();
    const OrderedJson properties = schema.value("properties", OrderedJson::object());
    for (const auto& [key, value] : properties.items())
      if (schema.value("required", OrderedJson::array()).size() == 0 || below(4) > 0)
        object[key] = draw_value(root, value);
    return object;
  }

  std::mt19937 random_;
  std::vector<OrderedJson> values_;
};

const OrderedJson& function_of(const std::string& name) {
  for (const OrderedJson& tool : kTools)
    if (tool.at("function").at("name") == name) return tool.at("function");
  throw Error("no such tool: " + name);
}

// The values that the calls hold, but for those of enums, which a drawn text has as constants.
std::vector<OrderedJson> values_of(const Parsed& parsed, bool enums) {
  std::vector<OrderedJson> values;
  for (const test::Call& call : parsed.calls) {
    OrderedJson arguments = OrderedJson::parse(call.arguments);
    const OrderedJson schema = function_of(call.name).value("parameters", OrderedJson::object());
    for (const auto& [key, value] : arguments.items())
      EXPECT_TRUE(schema.at("properties").contains(key)) << key;
    if (!enums) arguments.erase("unit");
    Drawer::leaves(arguments, values);
  }
  return values;
}

std::string qwen_call(std::string_view name, std::string_view value) {
  return format_text("<tool_call>\n<function=f>\n<parameter={}>\n{}\n</parameter>\n</function>\n</tool_call>",
                     name, value);
}

TEST(ToolGrammarTest, DrawnTextsParseBackToTheCalls) {
  for (const ToolDialect& dialect : tool_dialects()) {
    const OrderedJson tag = OrderedJson::parse(tool_grammar(dialect, kTools, {}));
    EXPECT_EQ(tag.at("type"), "structural_tag");
    const std::string call = std::string(dialect.forms.front().call);
    const bool enums = call.find("$X") == call.npos && call.find("$G") == call.npos;
    const OutputFormat format{.tool_calls = &dialect};
    for (unsigned seed = 0; seed < 200; ++seed) {
      Drawer drawer(seed);
      const std::string text = drawer.draw(tag.at("format"));
      const auto parse = [&](std::size_t cut) {
        const auto parser = make_output_parser(
            format, "", {.new_id = test::counting_ids(), .tools = std::make_shared<OrderedJson>(kTools)});
        return test::parse_pieces(*parser, {text.substr(0, cut), text.substr(cut)});
      };
      const Parsed parsed = parse(seed % (text.size() + 1));
      ASSERT_EQ(parsed, parse(text.size())) << dialect.names.front();
      ASSERT_FALSE(parsed.calls.empty()) << dialect.names.front() << "\n" << text;
      ASSERT_EQ(parsed.content, "") << dialect.names.front() << "\n" << text;
      ASSERT_EQ(values_of(parsed, enums), drawer.values()) << dialect.names.front() << "\n"
                                                           << text << "\n"
                                                           << parsed;
    }
  }
}

TEST(ToolGrammarTest, ChoosesToolsAndCalls) {
  for (const ToolDialect& dialect : tool_dialects()) {
    const OrderedJson one =
        OrderedJson::parse(tool_grammar(dialect, kTools, {.name = "now", .parallel = false}));
    for (unsigned seed = 0; seed < 8; ++seed) {
      Drawer drawer(seed);
      const Parsed parsed = test::parse_pieces(*make_output_parser({.tool_calls = &dialect}, ""),
                                               {drawer.draw(one.at("format"))});
      ASSERT_EQ(parsed.calls.size(), 1U) << dialect.names.front();
      EXPECT_EQ(parsed.calls[0].name, "now");
      EXPECT_EQ(parsed.calls[0].arguments, "{}");
    }
  }
  expect_error([] { tool_grammar(tool_dialect("hermes"), kTools, {.name = "x"}); },
               {"no tool has the name \"x\""});
}

TEST(ToolGrammarTest, FreeTextBeginsNoCallOfAnyForm) {
  EXPECT_THAT(tool_grammar(tool_dialect("qwen3_coder"), kTools, {.required = false}),
              HasSubstr(R"("excludes":["<tool_call>","<function="])"));
}

TEST(ToolGrammarTest, AnswersStandInTheModelsTags) {
  const OrderedJson five = {{"type", "const_string"}, {"value", "5"}};
  const auto texts = [](const std::string& tag) {
    OrderedJson elements = OrderedJson::parse(tag)["format"]["elements"];
    std::string text;
    for (const OrderedJson& element :
         elements.back().contains("elements") ? elements.back()["elements"] : elements)
      text += element.value("value", "");
    return text;
  };
  EXPECT_EQ(texts(answer_grammar(reasoning_dialect("openai_gptoss"), five)), "<|channel|>final<|message|>5");
  EXPECT_EQ(texts(answer_grammar(reasoning_dialect("cohere"), five)), "<|START_RESPONSE|>5<|END_RESPONSE|>");
  EXPECT_EQ(
      texts(tool_grammar(tool_dialect("cohere"), kTools,
                         {.required = false, .answer = five, .reasoning = &reasoning_dialect("cohere")})),
      "<|START_RESPONSE|>5<|END_RESPONSE|>");
}

TEST(ToolGrammarTest, WhatStrictSchemasAskOfTextIsRefusedWhereItIsNotEnforced) {
  OrderedJson tools = OrderedJson::parse(R"([{"function": {"name": "f", "strict": true, "parameters": {
      "properties": {"a": {"type": "string", "pattern": "^a"}}}}}])");
  for (const std::string_view name : {"qwen3_coder", "gemma4"})
    expect_error([&] { tool_grammar(tool_dialect(name), tools, {}); },
                 {"/tools/0/function/parameters/properties/a/pattern", "not enforced"});
  EXPECT_NO_THROW(tool_grammar(tool_dialect("hermes"), tools, {}));
  tools[0]["function"]["strict"] = false;
  EXPECT_NO_THROW(tool_grammar(tool_dialect("qwen3_coder"), tools, {}));
  tools[0]["function"]["parameters"] = OrderedJson::parse(R"({"properties": {"a": {"$ref": "#/$defs/T"}},
      "$defs": {"T": {"type": "object", "properties": {"b": {"$ref": "#/$defs/T"}}}}})");
  expect_error([&] { tool_grammar(tool_dialect("gemma4"), tools, {}); }, {"refers to itself"});
  OrderedJson& properties = tools[0]["function"]["parameters"]["properties"];
  properties = OrderedJson::object();
  for (int i = 0; i < 400; ++i) properties[format_text("a{}", i)] = {{"type", "integer"}};
  expect_error([&] { tool_grammar(tool_dialect("olmo3"), tools, {}); },
               {"/properties/a", "more than can be"});
  properties = {{"a=b", OrderedJson::object()}};
  expect_error([&] { tool_grammar(tool_dialect("olmo3"), tools, {}); }, {"\"a=b\" cannot be written"});
  properties = {{" a", OrderedJson::object()}};  // would be read as that of "a"
  expect_error([&] { tool_grammar(tool_dialect("qwen3_coder"), tools, {}); }, {"\" a\" cannot be written"});
  tools[0]["function"]["name"] = "f (x)";
  expect_error([&] { tool_grammar(tool_dialect("olmo3"), tools, {}); }, {"\"f (x)\" cannot be written"});
  EXPECT_NO_THROW(tool_grammar(tool_dialect("hermes"), tools, {}));
}

TEST(ToolGrammarTest, NoKeywordOfAStrictSchemaIsPassedOverInSilence) {
  const auto tag = [](std::string_view dialect, const std::string& schema) {
    OrderedJson tools = OrderedJson::parse(
        R"([{"function": {"name": "f", "strict": true, "parameters": {"properties": {"a": )" + schema +
        "}}}}]");
    if (schema == "false") tools[0]["function"]["parameters"]["required"] = {"a"};
    return tool_grammar(tool_dialect(dialect), tools, {});
  };
  for (const std::string_view dialect : {"qwen3_coder", "gemma4"}) {
    const auto expect_refused = [&](const std::string& schema, const std::string& pointer) {
      SCOPED_TRACE(schema);
      expect_error([&] { tag(dialect, schema); }, {"/tools/0/function/parameters/properties/a" + pointer});
    };
    EXPECT_EQ(tag(dialect, R"({"type": "string", "maxLength": 5.0})"),
              tag(dialect, R"({"type": "string", "maxLength": 5})"));
    EXPECT_NE(tag(dialect, R"({"type": "string", "maxLength": 5.0})"), tag(dialect, R"({"type": "string"})"));
    EXPECT_NO_THROW(
        tag(dialect, R"({"type": "string", "$comment": "", "readOnly": true, "writeOnly": false})"));
    expect_refused(R"({"type": "string", "maxLength": 5.5})", "/maxLength must be an integer");
    expect_refused(R"({"type": "string", "maxLength": "5"})", "/maxLength must be an integer");
    expect_refused(R"({"type": "string", "minLength": -1})", "/minLength must be an integer");
    expect_refused(R"({"type": "string", "minLength": 70000})", "/minLength must be an integer");
    expect_refused(R"({"type": "string", "minLength": 3, "maxLength": 2})", ": minLength is above");
    expect_refused(R"({"type": "string", "$ref": "#/nowhere"})", "/$ref points to no schema");
    expect_refused(R"({"maxLength": 3, "anyOf": [{"type": "string"}, {"type": "null"}]})",
                   "/maxLength is not");
    expect_refused(R"({"enum": ["a", "b"], "pattern": "b"})", "/pattern is not");
    expect_refused(R"({"enum": ["a", "b"], "const": "b"})", "/const is not");
    expect_refused(R"({"type": "null", "enum": ["a", "b"]})", ": no value of it");
    expect_refused("false", ": no value of it");
    EXPECT_EQ(tag(dialect, R"({"type": "string", "enum": ["a", 1, null]})"),
              tag(dialect, R"({"type": "string", "enum": ["a"]})"));
    EXPECT_NO_THROW(tag(dialect, R"({"type": "string", "maxLength": 100000})"));
  }
  const std::string choices = R"("anyOf":[{"required":["x"]},{"required":["y"]}])";
  const std::string object = R"({"type":"object","properties":{"x":{},"y":{}},)" + choices + "}";
  EXPECT_THAT(tag("qwen3_coder", object), HasSubstr(R"("json_schema":)" + object));
  expect_error([&] { tag("gemma4", object); }, {"/properties/a/anyOf is not"});
  EXPECT_EQ(tag("gemma4", R"({"type": "array", "maxItems": 2.0})"),
            tag("gemma4", R"({"type": "array", "maxItems": 2})"));
  EXPECT_NE(tag("gemma4", R"({"type": "array", "maxItems": 2.0})"), tag("gemma4", R"({"type": "array"})"));
}

TEST(ToolGrammarTest, GemmasTuplesAreListsOfAnythingUnlessStrict) {
  const auto tag = [](std::string_view list, bool strict = false) {
    const OrderedJson schema = OrderedJson::parse(list);
    return tool_grammar(
        tool_dialect("gemma4"),
        {{{"function",
           {{"name", "f"}, {"strict", strict}, {"parameters", {{"properties", {{"a", schema}}}}}}}}},
        {});
  };
  const std::string any = tag(R"({"type": "array", "minItems": 2})");
  const char* const draft_7 = R"({"type": "array", "minItems": 2, "items": [{"type": "integer"}, {}]})";
  EXPECT_EQ(tag(draft_7), any);
  EXPECT_EQ(tag(R"({"type": "array", "minItems": 2, "prefixItems": [{}], "items": false})"), any);
  expect_error([&] { tag(draft_7, true); }, {"/properties/a/items must be a schema"});
}

TEST(ToolGrammarTest, ArgumentsOfAStrictToolAreAnObject) {
  const auto tag = [](const OrderedJson& type, bool strict) {
    return tool_grammar(
        tool_dialect("hermes"),
        {{{"function", {{"name", "f"}, {"strict", strict}, {"parameters", {{"type", type}}}}}}}, {});
  };
  for (const OrderedJson& wrong : {OrderedJson("nothing"), OrderedJson("string"), OrderedJson({"null"})}) {
    expect_error([&] { tag(wrong, true); }, {"/tools/0/function/parameters/type must be"});
    EXPECT_NO_THROW(tag(wrong, false));
  }
  EXPECT_EQ(tag({"object", "null"}, true), tag("object", true));
}

TEST(ToolGrammarTest, WhatIsNoSchemaIsRefused) {
  for (const bool strict : {false, true}) {
    const auto expect_refused = [&](std::string_view dialect, const std::string& schema,
                                    std::string_view message) {
      SCOPED_TRACE(schema);
      OrderedJson tools = {{{"function", {{"name", "f"}, {"strict", strict}}}}};
      tools[0]["function"]["parameters"] = OrderedJson::parse(schema);
      expect_error([&] { tool_grammar(tool_dialect(dialect), tools, {}); },
                   {"/tools/0/function/parameters", message});
    };
    for (const std::string_view dialect : {"qwen3_coder", "glm45", "pythonic", "gemma4"}) {
      expect_refused(dialect, R"({"properties": {"a": {}}, "required": "a"})", "/required must be");
      expect_refused(dialect, R"({"properties": {"a": {}}, "required": [1]})", "/required must be");
      expect_refused(dialect, R"({"properties": 5})", "/properties must be");
    }
    for (const std::string_view dialect : {"qwen3_coder", "glm45", "gemma4"}) {
      expect_refused(dialect, R"({"properties": {"a": 5}})", "/properties/a must be a schema");
      expect_refused(dialect, R"({"properties": {"a": {"anyOf": ["integer"]}}})", "/a must be a schema");
    }
    expect_refused("gemma4", R"({"properties": {"a": {"type": "array", "items": 5}}})",
                   "/properties/a/items must be a schema");
  }
}

TEST(ToolGrammarTest, PropertiesThatMayNotBeAreNotWritten) {
  for (const ToolDialect& dialect : tool_dialects()) {
    const auto tag = [&](const OrderedJson& schema) {
      OrderedJson tools = {{{"function", {{"name", "f"}, {"strict", true}}}}};
      tools[0]["function"]["parameters"]["properties"] = schema;
      return tool_grammar(dialect, tools, {});
    };
    const OrderedJson number = {{"type", "number"}};
    EXPECT_EQ(tag({{"a", false}, {"b", number}, {"c", false}}), tag({{"b", number}}));
  }
}

TEST(ToolGrammarTest, OnlyPlainBooleansAreWrittenAsPythons) {
  const auto tag = [](const OrderedJson& schema) {
    OrderedJson tools = {{{"function", {{"name", "f"}, {"strict", true}}}}};
    tools[0]["function"]["parameters"]["properties"]["a"] = schema;
    return tool_grammar(tool_dialect("pythonic"), tools, {});
  };
  EXPECT_THAT(tag({{"type", "boolean"}, {"title", "A"}}), HasSubstr("True|False"));
  EXPECT_THAT(tag({{"type", "boolean"}, {"const", true}}), Not(HasSubstr("True|False")));
}

TEST(ToolGrammarTest, KeywordsThatNoGrammarEnforcesAreLeftOutUnlessTheToolIsStrict) {
  for (const char* dialect : {"hermes", "pythonic", "qwen3_coder"}) {
    const auto tag = [&](const std::string& items, bool strict) {
      OrderedJson tools = {{{"function", {{"name", "f"}, {"strict", strict}}}}};
      tools[0]["function"]["parameters"] = OrderedJson::parse(
          R"({"properties": {"uniqueItems": {"type": "array", "items": {"type": "array")" + items + "}}}}");
      return tool_grammar(tool_dialect(dialect), tools, {});
    };
    const std::string unique = R"(, "uniqueItems": true, "unevaluatedItems": false)";
    EXPECT_EQ(tag(unique, false), tag("", false)) << dialect;
    EXPECT_NE(tag(unique, true), tag("", true)) << dialect;
  }
}

TEST(ToolGrammarTest, KeywordsThatNoGrammarEnforcesAreLeftOutWhereverASchemaStands) {
  const auto tag = [](const std::string& schema) {
    OrderedJson tools = {{{"function", {{"name", "f"}, {"strict", false}}}}};
    tools[0]["function"]["parameters"] = OrderedJson::parse(R"({"properties": {"a": )" + schema + "}}");
    return tool_grammar(tool_dialect("hermes"), tools, {});
  };
  for (const std::string key :
       {"then", "else", "contains", "propertyNames", "additionalItems", "items", "additionalProperties"})
    EXPECT_EQ(tag("{\"" + key + R"(": {"type": "array", "uniqueItems": true}})"),
              tag("{\"" + key + R"(": {"type": "array"}})"))
        << key;
  for (const std::string key : {"dependentSchemas", "dependencies"})
    EXPECT_EQ(tag("{\"" + key + R"(": {"b": {"minItems": 1, "maxContains": 2}}})"),
              tag("{\"" + key + R"(": {"b": {"minItems": 1}}})"))
        << key;
  // Of what they leave, not and if would ask for what the schema does not.
  EXPECT_EQ(tag(R"({"type": "array", "not": {"uniqueItems": true}})"), tag(R"({"type": "array"})"));
  EXPECT_EQ(tag(R"({"if": {"not": {"uniqueItems": true}}, "then": {"type": "array"}})"),
            tag(R"({"then": {"type": "array"}})"));
  EXPECT_NE(tag(R"({"not": {"type": "array"}})"), tag("{}"));
  EXPECT_EQ(tag(R"({"oneOf": [{"type": "array", "uniqueItems": true}, {"type": "array"}]})"),
            tag(R"({"anyOf": [{"type": "array"}, {"type": "array"}]})"));
}

// Without bounds these would take minutes, or all memory.
TEST(ToolGrammarTest, HostileSchemasEndSoon) {
  OrderedJson schema = {{"properties", {{"a", {{"$ref", "#/$defs/0"}}}}}};
  for (int i = 0; i < 20; ++i) {
    const OrderedJson next = {{"$ref", format_text("#/$defs/{}", i + 1)}};
    schema["$defs"][std::to_string(i)]["anyOf"] = OrderedJson(9, next);
  }
  schema["$defs"]["20"]["type"] = "string";
  const auto tools = [&] {
    return OrderedJson::array({{{"function", {{"name", "f"}, {"parameters", schema}}}}});
  };
  for (const char* dialect : {"qwen3_coder", "gemma4"})
    expect_error([&] { tool_grammar(tool_dialect(dialect), tools(), {}); },
                 {"/properties/a", "nests deeper"});
  const std::string call = qwen_call("a", "1");
  const auto parser = make_output_parser({.tool_calls = &tool_dialect("qwen3_coder")}, "",
                                         {.new_id = {}, .tools = std::make_shared<OrderedJson>(tools())});
  EXPECT_EQ(test::parse_pieces(*parser, {call}).calls.at(0).arguments, R"({"a": 1})");
  for (int i = 0; i < 4000; ++i) {
    schema["$defs"][format_text("d{}", i)] = {{"description", std::string(100, 'x')}};
    schema["properties"][format_text("p{}", i)] = {{"type", "array"}, {"items", {{"$ref", "#/$defs/20"}}}};
  }
  schema["properties"].erase("a");
  for (const char* dialect : {"qwen3_coder", "olmo3"})
    expect_error([&] { tool_grammar(tool_dialect(dialect), tools(), {}); }, {"more than can be written out"});
}

TEST(ToolGrammarTest, WhatIsCopiedOftenIsCountedInBytes) {
  const auto tag = [](std::string_view dialect, const OrderedJson& properties) {
    return tool_grammar(
        tool_dialect(dialect),
        OrderedJson::array({{{"function", {{"name", "f"}, {"parameters", {{"properties", properties}}}}}}}),
        {});
  };
  const auto expect_refused = [&](std::string_view dialect, const OrderedJson& properties,
                                  std::string_view message) {
    expect_error([&] { tag(dialect, properties); }, {"/tools/0/function/parameters", message});
  };
  const std::string too_much = "more than can be written out", text(40'000, 'x');
  for (const char* dialect : {"qwen3_coder", "gemma4"})
    expect_refused(dialect, {{"a", {{"type", OrderedJson(300, "integer")}}}}, "/properties/a/type must be");
  OrderedJson many = OrderedJson::object(), lists = {{"enum", {text}}}, names = many;
  for (int i = 0; i < 100; ++i) {
    many[format_text("a{}", i)] = {{"type", "integer"}, {"not", {{"const", text}}}};
    names[format_text("{}{}", text, i)] = {{"type", "string"}};
  }
  for (int i = 0; i < 10; ++i) lists = {{"type", "array"}, {"items", lists}};
  for (const char* dialect : {"pythonic", "gemma4", "qwen3_coder", "hermes"}) {
    expect_refused(dialect, many, too_much);
    expect_refused(dialect, names, too_much);
  }
  expect_refused("gemma4", {{"a", lists}}, too_much);
  for (const char* dialect : {"pythonic", "gemma4", "qwen3_coder", "hermes"}) {
    OrderedJson title = {{"title", {{"type", "array"}, {"items", {{"type", "integer"}}}}}}, told = title;
    told["title"]["items"]["description"] = std::string(2 << 20, 'x');
    EXPECT_EQ(tag(dialect, told), tag(dialect, title));
  }
}

}  // namespace
}  // namespace quire::dialects
