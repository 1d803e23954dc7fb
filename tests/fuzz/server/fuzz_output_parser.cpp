// Input: a byte that chooses how calls are written, one for the reasoning and options, the sizes of pieces, a
// zero byte, the text of an output. In pieces it parses as it does as a whole, and JSON passes for arguments
// exactly if the JSON parser takes it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "dialects/json_scanner.h"
#include "dialects/output_format.h"
#include "dialects/parse_pieces.h"
#include "tokenizer/unicode.h"

namespace {

using namespace quire;
using namespace quire::dialects;

// A tool f with arguments of many types.
std::shared_ptr<const OrderedJson> tools() {
  static const auto tools = std::make_shared<const OrderedJson>(OrderedJson::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"},
          "b": {"type": "number"}, "c": {"type": ["string", "null"]}, "d": {"type": "object"},
          "e": {"enum": ["x", 1, null]}, "g": {"allOf": [{"type": ["integer", "string"]}, {"const": 3}]},
          "h": {"$ref": "#/$defs/h"}, "i": {"$ref": "#/$defs/none"}},
          "$defs": {"h": {"anyOf": [{"type": "boolean"}, {"$ref": "#h"}]}}}}}])"));
  return tools;
}

test::Parsed parse(unsigned dialect, unsigned choice, const std::vector<std::string_view>& pieces) {
  const auto& tool_rows = tool_dialects();
  const auto& reasoning_rows = reasoning_dialects();
  OutputFormat format;
  if (dialect % (tool_rows.size() + 1) != 0)
    format.tool_calls = &tool_rows[dialect % (tool_rows.size() + 1) - 1];
  const unsigned reasoning = choice / 4 % (static_cast<unsigned>(reasoning_rows.size()) + 1);
  if (reasoning != 0) format.reasoning = &reasoning_rows[reasoning - 1];
  const ToolParserOptions options{.parallel_tool_calls = choice % 2 == 0,
                                  .new_id = [n = 0]() mutable { return std::to_string(++n); },
                                  .tools = tools()};
  return test::parse_pieces(*make_output_parser(format, choice / 2 % 2 == 0 ? "" : "<think>", options),
                            pieces);
}

void check_arguments(const std::string& text) {
  bool valid = false;
  try {
    valid = parse_json(text, "arguments").is_object();
  } catch (const Error&) {
  }
  const std::size_t begin = text.find_first_not_of(" \t\n\r");
  if (valid && text[begin] == '{') {  // no byte order mark, which that parser skips
    const test::Parsed parsed = parse(4, 0, {"[TOOL_CALLS]f[ARGS]", text});
    const std::size_t end = text.rfind('}');
    QUIRE_CHECK(parsed.calls.size() == 1 && parsed.content.empty());
    QUIRE_CHECK(parsed.calls[0].arguments == text.substr(begin, end - begin + 1));
  }

  JsonScanner<> scanner;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const ReadStatus status = scanner.push(text[i]);
    if (status == ReadStatus::kMore) continue;
    if (status == ReadStatus::kError) return;
    const std::string value = text.substr(0, i + 1);
    try {
      QUIRE_CHECK(!Json::parse(value).is_discarded());
    } catch (const Json::out_of_range&) {  // 1e999, which other parsers take
    }
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0', 2);
  if (zero == input.npos) return 0;
  const unsigned dialect = data[0], choice = data[1];
  const std::string_view sizes = input.substr(2, zero - 2);
  const std::string text = to_valid_utf8(input.substr(zero + 1));

  std::vector<std::string_view> pieces, bytes;
  std::string_view rest = text;
  for (const char piece : sizes) {
    pieces.push_back(rest.substr(0, static_cast<unsigned char>(piece)));
    rest.remove_prefix(pieces.back().size());
  }
  pieces.push_back(rest);
  for (std::size_t i = 0; i < text.size(); ++i) bytes.push_back(std::string_view(text).substr(i, 1));

  const test::Parsed whole = parse(dialect, choice, {text});
  QUIRE_CHECK(parse(dialect, choice, pieces) == whole);
  QUIRE_CHECK(parse(dialect, choice, bytes) == whole);
  check_arguments(text);
  return 0;
}
