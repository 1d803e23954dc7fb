#include "base/json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonTest, ParsesOrdinaryText) {
  const Json json = parse_json(R"({"a": [1, -2, 3.5, "x\u00e9"], "b": null})", "here");
  EXPECT_EQ(json["a"][1], -2);
  EXPECT_EQ(json["a"][3], "x\xC3\xA9");
  EXPECT_TRUE(json["b"].is_null());
}

TEST(JsonTest, RefusesMalformedTextAndNamesTheSource) {
  for (const char* text :
       {"",        "{",          "{]",       "[1,]",        "{\"a\":1,}",   "[1] 2",        "nul",
        "NaN",     "[Infinity]", "'a'",      "[01]",        "[+1]",         "[.5]",         "// c\n1",
        "[1e999]", "\"\t\"",     "\"\xFF\"", "\"\\ud800\"", "\"\xC0\xAF\"", "\xEF\xBB\xBF["}) {
    SCOPED_TRACE(text);
    expect_error([&] { parse_json(text, "some.json"); }, {"some.json", "not valid JSON"});
    expect_error([&] { parse_ordered_json(text, "some.json"); }, {"some.json", "not valid JSON"});
  }
}

TEST(JsonTest, RefusesNulBytes) {
  for (const std::string_view text : {std::string_view("{}\0", 3), std::string_view("{}\0x", 4),
                                      std::string_view("[1,\0 2]", 7), std::string_view("\0", 1)}) {
    expect_error([&] { parse_json(text, "f"); }, {"f: not valid JSON"});
  }
}

TEST(JsonTest, RefusesAKeyThatStandsTwice) {
  for (const char* text : {R"({"k": 1, "k": 1})", R"([{"x": {"k": 1, "l": 2, "k": 3}}])",
                           R"({"k": 1, "\u006b": 2})", R"({"k": {"k": 1}, "k": 2})"}) {
    SCOPED_TRACE(text);
    expect_error([&] { parse_json(text, "f"); }, {"f: the key \"k\" stands twice"});
    expect_error([&] { parse_ordered_json(text, "f"); }, {"f: the key \"k\" stands twice"});
  }
}

TEST(JsonTest, AllowsTheSameKeyInDifferentObjects) {
  EXPECT_NO_THROW(parse_json(R"({"k": {"k": {"k": 1}}, "l": [{"k": 1}, {"k": 2}]})", "f"));
}

TEST(JsonTest, BoundsNesting) {
  EXPECT_NO_THROW(parse_json(nested(64), "f"));
  expect_error([] { parse_json(nested(65), "f"); }, {"f: JSON nested deeper than 64"});
  expect_error([] { parse_json(nested(1'000'000), "f"); }, {"nested deeper"});
  EXPECT_NO_THROW(parse_json(R"({"a": [1]})", "f", {.max_depth = 2}));
  expect_error([] { parse_json(R"({"a": [{}]})", "f", {.max_depth = 2}); }, {"deeper than 2"});
}

TEST(JsonTest, BoundsSize) {
  EXPECT_NO_THROW(parse_json("[1]", "f", {.max_bytes = 3}));
  expect_error([] { parse_json("[12]", "f", {.max_bytes = 3}); }, {"f: 4 bytes", "limit of 3"});
}

TEST(JsonTest, BoundsTheNumberOfValues) {
  EXPECT_NO_THROW(parse_json(R"({"a": [1, {}]})", "f", {.max_values = 4}));
  for (const char* text : {R"({"a": [1, {}]})", "[[],[],[]]", "[1,2,3]", "[{},{},{}]"}) {
    expect_error([&] { parse_json(text, "f", {.max_values = 3}); }, {"f: more than 3 JSON values"});
  }
}

TEST(JsonTest, OrderedJsonKeepsTheOrderAndBoundsTheKeys) {
  EXPECT_EQ(parse_ordered_json(R"({"z":1,"a":2,"m":3})", "f").dump(), R"({"z":1,"a":2,"m":3})");
  const auto object = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
    return text + "}";
  };
  EXPECT_NO_THROW(parse_ordered_json(object(4096), "f"));
  expect_error([&] { parse_ordered_json(object(4097), "f"); }, {"f: an object of more than 4096 keys"});
  EXPECT_NO_THROW(parse_json(object(4097), "f"));
}

TEST(JsonTest, QuotedTextIsOneLineOfAsciiAndBounded) {
  EXPECT_EQ(in_quotes("plain"), "\"plain\"");
  EXPECT_EQ(in_quotes("a\nb\x1B[31m\""), "\"a\\nb\\u001b[31m\\\"\"");
  EXPECT_EQ(in_quotes("\xFF"), "\"\\ufffd\"");
  EXPECT_EQ(in_quotes(std::string(1000, 'x')), "\"" + std::string(200, 'x') + "...\"");
}

TEST(JsonFileTest, ReadsRegularFilesOnly) {
  const TempDir dir;
  EXPECT_EQ(read_json_file(dir.write("ok.json", "[7]"))[0], 7);
  EXPECT_EQ(read_text_file(dir.write("empty", ""), 10), "");
  expect_error([&] { read_json_file(dir.path() / "none.json"); }, {"none.json: no such file"});
  expect_error([&] { read_json_file(dir.path()); }, {dir.path().string(), "not a regular file"});
  expect_error([&] { read_text_file(dir.write("big", "12345"), 4); }, {"big: 5 bytes", "limit of 4"});
  const std::string fifo = (dir.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error([&] { read_text_file(fifo, 4); }, {"fifo: not a regular file"});
}

}  // namespace
}  // namespace quire
