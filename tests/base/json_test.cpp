#include "base/json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>

#include "allocations.h"
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

TEST(JsonTest, ErrorsSayWhatStandsWhereInOwnWords) {
  const auto message = [](std::string_view text) {
    try {
      parse_json(text, "f");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("parsed");
  };
  EXPECT_EQ(message("[1,\n 2,]"), R"(f: not valid JSON: unexpected "]" at line 2, column 4)");
  EXPECT_EQ(message("{\"\u00e4\u00f6\" 1}"), R"(f: not valid JSON: unexpected "1" at line 1, column 7)");
  EXPECT_EQ(message("{\"a\": [1"), "f: not valid JSON: it ends too early, at line 1, column 9");
  EXPECT_EQ(message(""), "f: not valid JSON: it ends too early, at line 1, column 1");
  EXPECT_EQ(message("[1e999]"), "f: not valid JSON: a number too large, up to line 1, column 6");
  EXPECT_EQ(message("[nul]"), R"(f: not valid JSON: unexpected "]" at line 1, column 5)");
  EXPECT_EQ(message({"[1]\n\0", 5}), "f: not valid JSON: a NUL byte at line 2, column 1");
  EXPECT_LT(message("[\"" + std::string(1 << 20, 'x') + "\t\"]").size(), 200U);
}

std::string repeated(std::size_t bytes, std::string_view piece) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

std::string list_of(std::size_t bytes, const std::string& piece) {
  return "[" + repeated(bytes, piece + ",") + piece + "]";
}

// Members of different keys.
std::string members(int count, const std::string& value) {
  std::string text = "\"\":0";
  for (int i = 0; i < count; ++i) text += ",\"" + std::to_string(i) + "\":" + value;
  return text;
}

template <typename Parse>
double seconds(const Parse& parse, const std::string& text) {
  double best = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::clock_t begin = std::clock();  // of this process alone: the machine may be busy
    try {
      parse(text);
    } catch (const Error&) {  // of a key that stands twice
    }
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return best;
}

class JsonTimeTest : public ::testing::TestWithParam<bool> {
 protected:
  double seconds_for(const std::string& text) const {
    if (GetParam()) return seconds([](const std::string& t) { parse_ordered_json(t, "f"); }, text);
    return seconds([](const std::string& t) { parse_json(t, "f"); }, text);
  }
};

// The bound is wide, for caches and sanitizers.
TEST_P(JsonTimeTest, GrowsLinearlyWhateverTheShape) {
  const std::map<std::string, std::function<std::string(std::size_t)>> shapes = {
      {"list of objects", [](std::size_t n) { return list_of(n, "{}"); }},
      {"list of messages", [](std::size_t n) { return list_of(n, R"({"role":"user","content":"a"})"); }},
      {"list of lists", [](std::size_t n) { return list_of(n, "[]"); }},
      {"objects of lists", [](std::size_t n) { return list_of(n, "{" + members(50, "[[],[]]") + "}"); }},
      {"objects of many keys",
       [](std::size_t n) {
         const std::string object = "{" + members(static_cast<int>(n >> 9), "0") + "}";
         return list_of(30 * object.size(), object);
       }},
      {"strings", [](std::size_t n) { return list_of(n, "\"ab\""); }},
      {"one string", [](std::size_t n) { return "\"" + repeated(n, "x") + "\""; }},
      {"escapes", [](std::size_t n) { return "\"" + repeated(n, R"(\n\ud83d\ude00\\)") + "\""; }},
      {"numbers", [](std::size_t n) { return list_of(n, "7"); }},
      {"fractions", [](std::size_t n) { return list_of(n, "-1.2345678901234567e-8"); }},
      {"digits", [](std::size_t n) { return "0." + repeated(n, "7"); }},
      {"nested", [](std::size_t n) { return list_of(n, nested(60)); }},
      {"keys that stand twice",
       [](std::size_t n) { return list_of(n, "{" + members(20, "0") + "}") + R"(,{"a":1,"a":2}])"; }},
      {"one key many times", [](std::size_t n) { return "{" + repeated(n, "\"k\":0,") + "\"k\":0}"; }},
  };
  for (const auto& [name, make] : shapes) {
    const double small = seconds_for(make(std::size_t{1} << 16)),
                 large = seconds_for(make(std::size_t{1} << 20));
    EXPECT_LT(large, 16 * 6 * small) << name << ": quadratic growth would be 256 times";
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, JsonTimeTest, ::testing::Bool(),
                         [](const auto& order) { return order.param ? "Ordered" : "Sorted"; });

// Were values copied when their object grows, those within 60 objects would be copied 60 times over.
TEST(JsonTest, ObjectsAroundAValueDoNotMultiplyTheTime) {
  const auto parse = [](const std::string& text) { parse_ordered_json(text, "f"); };
  const std::string list = list_of(1 << 19, "\"a text that no small string holds\"");
  std::string deep;
  for (int i = 0; i < 60; ++i) deep += "{\"a\":";
  deep += list;
  for (int i = 0; i < 60; ++i) deep += ",\"b\":0,\"c\":0,\"d\":0,\"e\":0}";
  EXPECT_LT(seconds(parse, deep), 6 * seconds(parse, list));
}

// Everything that a value and its end take, what becomes of a null, and what is compared.
template <typename J>
void expect_to_survive_failed_allocations() {
  const auto work = [] {
    J value;
    value["a"]["b"].push_back(1);
    value["list"].push_back({{"key", {1, 2}}, {"other", "a text that no small string holds"}});
    J copy = value;
    copy["a"] = J::array({value, {{"c", copy}}});
    EXPECT_TRUE(copy["list"][0]["other"] == "a text that no small string holds");
    EXPECT_TRUE("another text that no small string holds" != copy["list"][0]["other"]);
    EXPECT_FALSE(copy == "a value that is no text");
  };
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has its own operator new";
  int nth = 1;
  while (testing::fails_at(nth, work)) ++nth;
  EXPECT_GT(nth, 40);
}

TEST(JsonTest, AFailedAllocationIsSurvived) { expect_to_survive_failed_allocations<Json>(); }
TEST(JsonTest, AFailedAllocationIsSurvivedWhereKeysAreAsTheyCame) {
  expect_to_survive_failed_allocations<OrderedJson>();
}

TEST(JsonTest, TakesAKeyOutAndKeepsTheOrder) {
  const OrderedJson whole = {
      {"a key that no small string holds", {1, 2}}, {"another such key of many bytes", 3}, {"b", 4}};
  OrderedJson object = whole;
  EXPECT_FALSE(erase_key(object, "c"));
  EXPECT_FALSE(erase_key(object["b"], "c"));
  EXPECT_TRUE(erase_key(object, "another such key of many bytes"));
  EXPECT_EQ(object.dump(), R"({"a key that no small string holds":[1,2],"b":4})");
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has its own operator new";
  int nth = 1;
  while (testing::fails_at(nth, [&] {
    OrderedJson copy = whole;
    erase_key(copy, "a key that no small string holds");
  }))
    ++nth;
  EXPECT_GT(nth, 8);
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
