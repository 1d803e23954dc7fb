// What the masks of tool_grammar leave is read back into calls that are right, whatever is chosen of it.
#include <cstdlib>
#include <fstream>
#include <random>

#include "dialects/argument_types.h"
#include "dialects/expect_parsed.h"
#include "dialects/json_scanner.h"
#include "dialects/output_format.h"
#include "dialects/pattern.h"
#include "dialects/tool_grammar.h"
#include "expect_error.h"
#include "grammar/grammar.h"
#include "temp_dir.h"

namespace quire::dialects {
namespace {

using grammar::Matcher;
using test::Parsed;

constexpr int kEndOfText = 256;

const OrderedJson kWalkedTools = OrderedJson::parse(R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city", "at"],
    "$defs": {"Point": {"type": "object", "required": ["x"], "additionalProperties": false,
                        "properties": {"x": {"type": "number", "minimum": 0}, "label": {"type": "string"}}}},
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 14}, "city": {"type": "string"},
      "hot": {"type": "boolean"}, "unit": {"enum": ["C", "F", 3, null]}, "at": {"$ref": "#/$defs/Point"},
      "near": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
      "far": {"type": "array", "items": {"$ref": "#/properties/unit"}, "maxItems": 1}}}}},
  {"type": "function", "function": {"name": "log_v-2", "strict": true, "parameters": {"type": "object",
    "additionalProperties": false, "required": ["text", "who"], "properties": {
      "text": {"type": "string", "minLength": 1, "maxLength": 6},
      "who": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "level": {"type": ["integer", "string"]}, "state": {"anyOf": [{"enum": ["on", "off"]}, {"type": "null"}]},
      "what": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
      "short": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "integer", "maximum": 3}]},
      "sure": {"anyOf": [{"type": "string"}, {"const": true}]},
      "maybe": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 6}, {"enum": [false, null]}]}, "rest": {}}}}},
  {"type": "function", "function": {"name": "find", "parameters": {"$ref": "#/definitions/Find", "definitions": {
    "Find": {"type": "object", "required": ["what"], "additionalProperties": false,
             "properties": {"what": {"type": "string"}, "most": {"$ref": "#/definitions/Count"}}},
    "Count": {"type": "integer", "maximum": 99}}}}},
  {"type": "function", "function": {"name": "now"}}])");

const OrderedJson& schema_of(const std::string& name) {
  static const OrderedJson empty = {{"type", "object"}, {"additionalProperties", false}};
  const OrderedJson* schema = parameters_of(&kWalkedTools, name);
  return schema == nullptr ? empty : *schema;
}

// Bytes, an end of text, and the texts of the dialect's tags; those in brackets are special tokens where the
// model's are.
std::shared_ptr<const grammar::Vocabulary> vocabulary_of(const OutputFormat& format) {
  std::vector<grammar::TokenText> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte)), false});
  tokens.push_back({"<|end_of_text|>", true});
  std::vector<std::string> texts = tags_of(format);
  for (const Element& element : compiled(*format.tool_calls).forms[0].parts[CompiledForm::kParameter])
    if (element.kind == Element::Kind::kLiteral) texts.push_back(element.text);
  texts.push_back(std::string(format.tool_calls->quote));
  const bool special = format.tool_calls->ends_reasoning;
  for (const std::string& text : texts) {
    tokens.push_back({text, false});
    for (std::size_t at = 0; special && (at = text.find_first_of("<[", at)) != text.npos;) {
      const std::size_t end = std::min(text.find_first_of(">]", at), text.size() - 1) + 1;
      if (end > at + 2) tokens.push_back({text.substr(at, end - at), true});
      at = end;
    }
  }
  return std::make_shared<const grammar::Vocabulary>(std::move(tokens), std::vector<int>{kEndOfText});
}

// A text that the masks allow; nothing for one that does not end.
std::optional<std::string> walk(const std::shared_ptr<const grammar::Grammar>& compiled_grammar,
                                std::mt19937& random) {
  const grammar::Vocabulary& vocabulary = compiled_grammar->vocabulary();
  Matcher matcher(compiled_grammar);
  std::vector<std::uint32_t> mask(vocabulary.mask_words());
  std::string text;
  for (int step = 0; step < 600; ++step) {
    matcher.fill_mask(mask);
    std::vector<int> all, closing;
    for (int id = 0; id < vocabulary.size(); ++id) {
      if ((mask[static_cast<std::size_t>(id) / 32] >> id % 32 & 1) == 0) continue;
      const bool closes =
          id >= kEndOfText || std::string_view("\"}])").find(static_cast<char>(id)) != std::string_view::npos;
      (closes ? closing : all).push_back(id);
    }
    if (all.empty() || (!closing.empty() && random() % 3 != 0)) all = closing;
    const int token = all.at(random() % all.size());
    EXPECT_TRUE(matcher.accept(token));
    if (token == kEndOfText) return text;
    text += vocabulary.token(token).bytes;
  }
  return {};
}

std::unique_ptr<OutputParser> parser_of(const OutputFormat& format) {
  return make_output_parser(
      format, "", {.new_id = test::counting_ids(), .tools = std::make_shared<OrderedJson>(kWalkedTools)});
}

// Read in two pieces, and the same byte by byte.
Parsed parsed(const OutputFormat& format, std::string_view text, std::size_t cut) {
  std::vector<std::string_view> bytes;
  for (std::size_t at = 0; at < text.size(); ++at) bytes.push_back(text.substr(at, 1));
  Parsed whole = test::parse_pieces(*parser_of(format), {text.substr(0, cut), text.substr(cut)});
  EXPECT_EQ(test::parse_pieces(*parser_of(format), bytes), whole);
  return whole;
}

class ForcedCallsTest : public ::testing::Test {
 protected:
  // Walks through the grammar of every dialect; `check` looks at what is read of each text.
  void walk_all(const ToolGrammarOptions& options, const std::function<void(const Parsed&)>& check) {
    std::mt19937 random(3);
    const char* more = std::getenv("QUIRE_GRAMMAR_WALKS");
    const int num_walks = more == nullptr ? 25 : std::atoi(more);
    for (const ToolDialect& dialect : tool_dialects()) {
      const OutputFormat format{.reasoning = options.reasoning, .tool_calls = &dialect};
      const std::string tag = tool_grammar(dialect, kWalkedTools, options);
      const auto compiled_grammar =
          grammar::compile({grammar::Source::Kind::kStructuralTag, tag}, vocabulary_of(format));
      int ended = 0;
      for (int i = 0; i < num_walks; ++i) {
        const std::optional<std::string> text = walk(compiled_grammar, random);
        if (!text) continue;
        ++ended;
        SCOPED_TRACE(format_text("{}: {}", dialect.names.front(), *text));
        const Parsed whole = parsed(format, *text, random() % (text->size() + 1));
        check(whole);
        for (const test::Call& call : whole.calls)
          calls_ << Json{{"schema", schema_of(call.name).dump()}, {"instance", call.arguments}}.dump()
                 << "\n";
      }
      EXPECT_GT(ended, num_walks / 5) << dialect.names.front();
    }
  }

  // By Python's jsonschema: 0, or 77 where there is none.
  int validate() {
    calls_.close();
    const std::string command =
        "python3 '" QUIRE_SOURCE_DIR "/tests/grammar/validate.py' '" + path_.string() + "'";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : status;
  }

  const TempDir folder_;
  const std::filesystem::path path_ = folder_.path() / "calls.jsonl";
  std::ofstream calls_{path_};
};

TEST_F(ForcedCallsTest, AreReadBackAndHaveTheirSchemas) {
  walk_all({}, [](const Parsed& text) {
    EXPECT_FALSE(text.calls.empty());
    EXPECT_EQ(text.content, "");
    for (const test::Call& call : text.calls) EXPECT_TRUE(is_json(call.arguments)) << call.arguments;
  });
  walk_all({.name = "log_v-2", .parallel = false}, [](const Parsed& text) {
    ASSERT_EQ(text.calls.size(), 1U);
    EXPECT_EQ(text.calls[0].name, "log_v-2");
    EXPECT_EQ(text.content, "");
  });
  const int status = validate();
  if (status == 77) GTEST_SKIP() << "Python has no jsonschema";
  EXPECT_EQ(status, 0);
}

TEST_F(ForcedCallsTest, OrTextComesInstead) {
  int texts = 0, calls = 0;
  const auto count = [&](const Parsed& text) {
    ++(text.calls.empty() ? texts : calls);
    for (const test::Call& call : text.calls) EXPECT_TRUE(is_json(call.arguments)) << call.arguments;
  };
  walk_all({.required = false}, count);
  walk_all({.required = false, .reasoning = &reasoning_dialect("cohere")}, count);
  EXPECT_GT(texts, 50);
  EXPECT_GT(calls, 50);
  const OrderedJson answer = {{"type", "json_schema"},
                              {"json_schema", {{"type", "integer"}, {"minimum", 7}}}};
  walk_all({.required = false, .answer = answer, .reasoning = &reasoning_dialect("openai_gptoss")},
           [&](const Parsed& text) {
             ASSERT_NE(text.content.empty(), text.calls.empty());
             if (!text.content.empty()) {
               EXPECT_GE(std::stod(text.content), 7) << text.content;
             }
           });
  const int status = validate();
  if (status == 77) GTEST_SKIP() << "Python has no jsonschema";
  EXPECT_EQ(status, 0);
}

bool allows(const std::shared_ptr<const grammar::Grammar>& compiled_grammar, std::string_view text) {
  Matcher matcher(compiled_grammar);
  for (const char byte : text)
    if (!matcher.accept(static_cast<unsigned char>(byte))) return false;
  return matcher.accept(kEndOfText);
}

// Between tags a text may look like a value of another type, which has other bounds.
TEST(ForcedTextTest, IsNotWrittenWhereItIsReadAsAnotherType) {
  const OutputFormat format{.tool_calls = &tool_dialect("qwen3_coder")};
  const auto check = [&](const std::string& schema,
                         const std::vector<std::pair<std::string, OrderedJson>>& right,
                         const std::vector<std::string>& wrong) {
    SCOPED_TRACE(schema);
    const OrderedJson tools = OrderedJson::parse(
        R"([{"function": {"name": "f", "strict": true, "parameters": {"required": ["x"], "properties": {"x": )" +
        schema + "}}}}]");
    const std::string tag = tool_grammar(*format.tool_calls, tools, {});
    const auto compiled_grammar =
        grammar::compile({grammar::Source::Kind::kStructuralTag, tag}, vocabulary_of(format));
    const auto call = [](const std::string& value) {
      return "<tool_call>\n<function=f>\n<parameter=x>\n" + value +
             "\n</parameter>\n</function>\n</tool_call>";
    };
    for (const auto& [text, value] : right) {
      EXPECT_TRUE(allows(compiled_grammar, call(text))) << text;
      const auto parser =
          make_output_parser(format, "", {.new_id = {}, .tools = std::make_shared<OrderedJson>(tools)});
      EXPECT_EQ(OrderedJson::parse(test::parse_pieces(*parser, {call(text)}).calls.at(0).arguments)["x"],
                value);
    }
    for (const std::string& text : wrong) EXPECT_FALSE(allows(compiled_grammar, call(text))) << text;
  };
  check(R"({"anyOf": [{"type": "string", "maxLength": 4}, {"type": "integer", "maximum": 3}]})",
        {{"abcd", "abcd"}, {"3", 3}, {"-12345", -12345}, {"", ""}, {"[\"", "[\""}, {"null", "null"}},
        {"1234", "4", "-1.5", "abcde", "99999999999999999999999"});
  check(R"({"anyOf": [{"type": "string"}, {"const": true}]})",
        {{"true", true},
         {" tru", " tru"},
         {"trues", "trues"},
         {"true story", "true story"},
         {"<b", "<b"},
         {"null", "null"},
         {"f", "f"},
         {"", ""},
         {"[\"a", "[\"a"},
         {"12", "12"},
         {"fals\n", "fals\n"}},
        {"false", "False", " false\n", "True\n"});
  check(R"({"anyOf": [{"type": "string", "minLength": 2, "maxLength": 6}, {"enum": [false, null]}]})",
        {{"false", false},
         {"null", nullptr},
         {"nul", "nul"},
         {"fals", "fals"},
         {"Trues", "Trues"},
         {"no", "no"}},
        {"true", "True", "n", "falsehood", ""});
  check(R"({"type": ["string", "null"]})",
        {{"None of it", "None of it"}, {"null", nullptr}, {"{\"a", "{\"a"}, {"  x", "  x"}},
        {"x</parameter>"});
  OrderedJson tools = OrderedJson::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"x": {"enum": ["1", 2]}}}}}])");
  expect_error([&] { tool_grammar(*format.tool_calls, tools, {}); },
               {"/tools/0/function/parameters/properties/x: the value \"1\" cannot be written"});
  EXPECT_NO_THROW(tool_grammar(tool_dialect("deepseek_v32"), tools, {}));  // its tags say what is text
  tools[0]["function"]["parameters"]["properties"]["x"]["enum"][0] = "true";
  EXPECT_NO_THROW(tool_grammar(*format.tool_calls, tools, {}));
}

}  // namespace
}  // namespace quire::dialects
