#include "dialects/json_scanner.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "dialects/argument_reader.h"

namespace quire::dialects {
namespace {

// Whether `text` is one value, with white space around at most.
bool accepts(std::string_view text) {
  JsonScanner<> scanner;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const ReadStatus status = scanner.push(text[i]);
    if (status == ReadStatus::kMore) continue;
    if (status == ReadStatus::kError) return false;
    const std::string_view rest = text.substr(i + 1);
    return rest.find_first_not_of(" \t\n\r") == rest.npos;
  }
  return scanner.push(' ') == ReadStatus::kEnd;  // a number, or nothing complete
}

TEST(JsonScannerTest, AgreesWithTheParserOnEveryShortText) {
  constexpr std::string_view kBytes = "{}[]\",:-0.1e+ \\u";
  std::size_t accepted = 0;
  for (std::size_t length = 1; length <= 5; ++length) {
    std::size_t count = 1;
    for (std::size_t i = 0; i < length; ++i) count *= kBytes.size();
    for (std::size_t n = 0; n < count; ++n) {
      std::string text;
      for (std::size_t rest = n; text.size() < length; rest /= kBytes.size())
        text += kBytes[rest % kBytes.size()];
      const bool expected = Json::accept(text);
      accepted += expected;
      ASSERT_EQ(accepts(text), expected) << text;
    }
  }
  EXPECT_GT(accepted, 1000U);
}

TEST(JsonScannerTest, AgreesWithTheParserOnWordsAndEscapes) {
  for (const std::string_view text : {"true",
                                      "false",
                                      "null",
                                      "nul",
                                      "nulll",
                                      "tru e",
                                      "True",
                                      "[true,false,null]",
                                      R"("\b\f\n\r\t\/\\\"")",
                                      R"("\a")",
                                      R"("\u00e9\uD83D\uDE00")",
                                      R"("\uD83D")",
                                      R"("\uD83Dx")",
                                      R"("\uD83D\n")",
                                      R"("\uD83D\u0041")",
                                      R"("\uDE00")",
                                      R"("\u12")",
                                      R"("\u12G4")",
                                      "\"a\nb\"",
                                      "\"\x1f\"",
                                      "\"\x7f\"",
                                      "{\"a\":1,\"b\":{\"c\":[1,[2,{}]]}}",
                                      "{\"a\":1,}",
                                      "{\"a\" 1}",
                                      "{1:2}",
                                      "{\"a\":}",
                                      "[1,]",
                                      "[,1]",
                                      "[1 2]",
                                      "{\"a\":1]",
                                      "[1}",
                                      "-",
                                      "-0",
                                      "00",
                                      "1.",
                                      ".5",
                                      "1e",
                                      "1e+",
                                      "1E-7",
                                      "+1",
                                      "12.50e07",
                                      "1.5.5",
                                      "NaN",
                                      "Infinity",
                                      "'a'",
                                      "// x\n1"}) {
    EXPECT_EQ(accepts(text), Json::accept(text)) << text;
  }
}

TEST(JsonScannerTest, DecodesStrings) {
  const std::string_view text = R"({"name":"a\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\uD83D\uDE00é")";
  std::string name;
  const auto reader = make_call_reader(true, name);
  for (const char c : text) ASSERT_EQ(reader->push(c), ReadStatus::kMore);
  EXPECT_EQ(reader->push('}'), ReadStatus::kEnd);
  EXPECT_EQ(name, "a\"\\/\b\f\n\r\tAé€😀é");
}

TEST(JsonScannerTest, WholeTextsAreOneValue) {
  for (const std::string_view text : {"1", " -2e999 ", "true", "[1, {}]", "\"a b\"", "null\n",
                                      "[7e+99999999999, \"\\\"e1\", 1e00000000001]"})
    EXPECT_TRUE(is_json(text)) << text;
  for (const std::string_view text : {"", " ", "12a", "12l", "1 2", "tru", "[1", "{}]", "nan", "1e", "[1e+]",
                                      "1e123456789x", "\"1e123456789", "\"a", "01"})
    EXPECT_FALSE(is_json(text)) << text;
}

}  // namespace
}  // namespace quire::dialects
