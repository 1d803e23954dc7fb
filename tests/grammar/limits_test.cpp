// What hostile grammars cost: their limits of time and memory, and nothing else.
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include <functional>

#include "grammar/grammar_helpers.h"

extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace quire::grammar::test {
namespace {

using std::chrono::milliseconds;

// Of this thread, so that other work on the machine does not count.
milliseconds time_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
  };
  const auto start = now();
  work();
  return now() - start;
}

std::string repeated(int count, const std::function<std::string(int)>& part,
                     const std::string& between = ",") {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? between : "") + part(i);
  return text;
}

std::string number(int i) { return std::to_string(i); }

// What all of this process takes, by the allocator's own count.
std::int64_t heap_bytes() {
  if (&__sanitizer_get_current_allocated_bytes != nullptr)
    return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
  const auto info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// A hostile source, and a part of the message that refuses it; none, if it is compiled.
struct Hostile {
  const char* name;
  Kind kind;
  std::string source;
  std::string_view refusal;
};

std::vector<Hostile> hostile_schemas() {
  const auto make = [](const char* name, std::string text, std::string_view refusal) {
    return Hostile{name, Kind::kJsonSchema, std::move(text), refusal};
  };
  const auto all_of = [](int count, const std::string& part) {
    return R"("allOf": [)" + repeated(count, [&](int) { return part; }) + "]";
  };
  return {
      make("too long", std::string(10u << 20, ' '), "bytes"),
      make("many values", R"({"enum": [)" + repeated(20'000, [](int i) { return number(i * 7919); }) + "]}",
           ""),
      make("doubled again and again",
           R"({"$defs": {"d0": {"type": "null"}, )" +
               repeated(29,
                        [](int i) {
                          const std::string before = R"({"$ref": "#/$defs/d)" + number(i) + "\"}";
                          return "\"d" + number(i + 1) + R"(": {"allOf": [{"anyOf": [)" + before +
                                 R"(, {"minLength": )" + number(i) + R"(}]}, {"anyOf": [)" + before +
                                 R"(, {"maxLength": )" + number(i) + "}]}]}";
                        }) +
               R"(}, "$ref": "#/$defs/d29"})",
           "grammar takes"),
      make("a circle", R"({"$ref": "#"})", "without end"),
      make("a circle of a choice", R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "without end"),
      make("without end", R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
           "no text"),
      make("a long way",
           R"({"$ref": "#/$defs/0", "$defs": {)" +
               repeated(12'000,
                        [](int i) {
                          return "\"" + number(i) + R"(": {"$ref": "#/$defs/)" + number(i + 1) + "\"}";
                        }) +
               "}}",
           "4096"),
      make("deep by references and choices",
           R"({"$ref": "#/$defs/0", "$defs": {)" +
               repeated(150,
                        [&](int i) {
                          return "\"" + number(i) +
                                 R"(": {"type": "object", "properties": {"a": {"$ref": "#/$defs/)" +
                                 number(i + 1) + "\"}}, " + all_of(150, R"({"anyOf": [{}]})") + "}";
                        }) +
               R"(, "150": {}}})",
           "nested too deep"),
      make("choices of many",
           "{" + all_of(200, R"({"anyOf": [)" + repeated(300, [](int) { return "{}"; }) + "]}") + "}",
           "grammar takes"),
      make("one place of many", "{" + all_of(8, "{" + all_of(4000, "{}") + "}") + "}", "4096"),
      make("impossible in 2^60 ways", "{" + all_of(60, R"({"anyOf": [{}, {}]})") + R"(, "anyOf": [false]})",
           "limit"),
      make("contradicting lengths",
           R"({"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}$", "maxLength": 2})", ""),
      make("a long value among many",
           R"({"const": [)" + repeated(50'000, number) + R"(], "enum": [)" +
               repeated(50'000, [](int) { return "[]"; }) + "]}",
           "no text"),
      make("a long value beside many",
           R"({"enum": [)" + repeated(50'000, [](int) { return "[]"; }) + R"(], "allOf": [{"const": [)" +
               repeated(50'000, number) + "]}]}",
           "no text"),
      make("no schema at all", "true", ""),
      make("dependencies",
           R"({"dependencies": {)" + repeated(4'000, [](int i) { return "\"" + number(i) + R"(": ["x"])"; }) +
               "}}",
           "nested too deep"),
      make("names that are copied again and again",
           R"({"$defs": {"d": {"dependencies": {"a": [)" +
               repeated(2'000, [](int i) { return "\"" + number(i) + "\""; }) + R"(]}}}, "anyOf": [)" +
               repeated(400, [](int) { return R"({"allOf": [{"$ref": "#/$defs/d"}, false]})"; }) + "]}",
           "of memory"),
      make("members",
           R"({"type": "object", "properties": {)" +
               repeated(1'500, [](int i) { return "\"" + number(i) + R"(": {})"; }) + "}}",
           ""),
  };
}

std::vector<Hostile> hostile_texts() {
  std::string characters;
  for (unsigned i = 0xFFFF; i > 0xE000; i -= 2)
    characters += {static_cast<char>(0xE0 | i >> 12), static_cast<char>(0x80 | (i >> 6 & 63)),
                   static_cast<char>(0x80 | (i & 63))};
  const auto tag = [](const std::string& format) {
    return R"({"type": "structural_tag", "format": )" + format + "}";
  };
  return {
      {"stars", Kind::kRegex, "a" + std::string(100'000, '*'), "repeated"},
      {"a long one", Kind::kRegex, std::string(200'000, 'a'), "131072"},
      {"characters", Kind::kRegex, "[" + characters + "]", ""},
      {"groups", Kind::kRegex, std::string(300, '('), "groups"},
      {"a large count", Kind::kRegex, "a{99999999999}", "more than"},
      {"cut off", Kind::kRegex, "\\c", "not supported"},
      {"itself", Kind::kGrammar, "root ::= root", "left recursion"},
      {"itself behind nothing", Kind::kGrammar, "root ::= a* root \"x\"\na ::= \"a\"?", "no text"},
      {"a circle of rules", Kind::kGrammar,
       repeated(
           12'000,
           [](int i) { return "r" + number(i) + " ::= r" + number((i + 1) % 12'000) + " \"a\" | \"b\"\n"; },
           "") +
           "root ::= r0",
       "limit"},
      {"nothing to ignore", Kind::kGrammar, "start: \"a\"\n%ignore", "ignore"},
      {"half a range", Kind::kGrammar, "start: \"a\"..", "range"},
      {"a tail of many", Kind::kGrammar,
       "root ::= \"x\" " +
           repeated(
               20'000, [](int) { return "\"a\"? "; }, "") +
           "y?\ny ::= \"(\" y \")\" | \"z\"",
       ""},
      {"triggers times tags", Kind::kStructuralTag,
       tag(R"({"type": "triggered_tags", "triggers": [)" +
           repeated(5'000, [](int i) { return "\"q" + number(i) + "\""; }) + R"(], "tags": [)" +
           repeated(3'000,
                    [](int) { return R"({"begin": "q1x", "content": {"type": "any_text"}, "end": "y"})"; }) +
           "]}"),
       "grammar takes"},
      {"many texts at once", Kind::kStructuralTag,
       tag(R"({"type": "or", "elements": [)" +
           repeated(2'000,
                    [](int i) {
                      std::string letters;
                      for (int bit = 0; bit < 16; ++bit)
                        if ((i >> bit & 1) != 0) letters += static_cast<char>('a' + bit);
                      return R"({"type": "regex", "pattern": "[^A)" + letters + R"(]*"})";
                    }) +
           "]}"),
       ""},
  };
}

// Compiles it and follows it for some tokens; whatever it costs lies within the limits.
void check_costs(const Hostile& hostile) {
  SCOPED_TRACE(hostile.name);
  // What is not refused has time enough under sanitizers, too.
  const Limits limits{.memory_bytes = 64u << 20,
                      .compile_time = milliseconds(hostile.refusal.empty() ? 5000 : 500),
                      .mask_time = milliseconds(100)};
  const milliseconds slack(300);  // for what is read before, under sanitizers
  const std::int64_t before = heap_bytes();
  std::shared_ptr<const Grammar> grammar;
  std::string message;
  const auto within = [&](milliseconds limit, const std::function<void()>& work) {
    EXPECT_LT(time_of([&] {
                try {
                  work();
                } catch (const GrammarError& error) {
                  message = error.what();
                }
              }),
              limit + slack);
  };
  within(limits.compile_time, [&] { grammar = compiled(hostile.kind, hostile.source, limits); });
  EXPECT_NE(message.find(hostile.refusal), std::string::npos) << message;
  EXPECT_EQ(message.empty(), hostile.refusal.empty()) << message;
  if (grammar == nullptr) return;
  Matcher matcher(grammar);
  std::mt19937 random(5);
  for (int step = 0; step < 20 && !matcher.ended() && message.empty(); ++step) {
    std::vector<std::uint32_t> mask;
    within(limits.mask_time, [&] { mask = mask_of(matcher); });
    if (message.empty()) within(limits.mask_time, [&] { matcher.accept(random_token(mask, random)); });
    const std::size_t counted = std::min(grammar->memory_bytes(), limits.memory_bytes);
    EXPECT_LE(heap_bytes() - before, static_cast<std::int64_t>(2 * counted + (1u << 20)));
  }
}

TEST(Limits, AreKeptByHostileSchemas) {
  for (const Hostile& hostile : hostile_schemas()) check_costs(hostile);
}

TEST(Limits, AreKeptByHostileTexts) {
  for (const Hostile& hostile : hostile_texts()) check_costs(hostile);
}

// States without end: each step of this makes new ones.
constexpr std::string_view kGrowing = "(a|b)*a(a|b){18}x(a|b)*b(a|b){17}";

TEST(Limits, AnOutputGoesOnInFreshStatesWhereTheOldOnesAreFull) {
  const std::int64_t limit = 4 << 20, before = heap_bytes();
  const auto grammar = compiled(Kind::kRegex, kGrowing, with_memory(limit));
  Matcher matcher(grammar);
  std::mt19937 random(6);
  for (int step = 0; step < 300'000; ++step) {
    ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b')) << step;
    if (step % 256 == 0) {
      ASSERT_LE(heap_bytes() - before, 2 * limit + 32 * step) << step;
    }
  }
}

TEST(Limits, StatesThatWereLeftAreFoundAgain) {
  const auto grammar = compiled(Kind::kRegex, "(a|b)*a(a|b){18}", with_memory(2u << 20));
  Matcher matcher(grammar);
  std::mt19937 random(7);
  std::vector<std::vector<std::uint32_t>> masks;
  for (int step = 0; step < 15'000; ++step) {
    if (step % 500 == 0) masks.push_back(mask_of(matcher));
    ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b'));
  }
  for (std::size_t at = masks.size(); at-- > 0;) {
    Matcher back = matcher;
    back.roll_back(15'000 - 500 * at);
    EXPECT_EQ(back.num_tokens(), 500 * at);
    EXPECT_EQ(mask_of(back), masks[at]);
  }
}

TEST(Limits, ATokenLongerThanAnyTextNeedsIsNotAllowed) {
  const std::vector<TokenText> tokens = {
      {"a", false}, {std::string(4096, 'a'), false}, {std::string(400'000, 'a'), false}, {"</s>", true}};
  const auto long_ones = std::make_shared<const Vocabulary>(tokens, std::vector<int>{3});
  Matcher matcher(compile({.kind = Kind::kRegex, .source = "a*"}, long_ones));
  std::vector<std::uint32_t> mask(1);
  matcher.fill_mask(mask);
  EXPECT_EQ(mask[0], 0b1011u);
  EXPECT_FALSE(matcher.accept(2));
  EXPECT_TRUE(matcher.accept(1));
}

TEST(Limits, AllCopiesShareOneBudgetOfMemory) {
  const std::int64_t budget = 4 << 20, before = heap_bytes();
  const auto grammar = compiled(Kind::kRegex, kGrowing, with_memory(budget));
  std::vector<Matcher> matchers(12, Matcher(grammar));
  std::mt19937 random(8);
  int refused = 0;
  for (Matcher& matcher : matchers) {  // each stays, with its states
    try {
      for (int step = 0; step < 3'000; ++step) ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b'));
    } catch (const LimitError& error) {
      EXPECT_NE(std::string_view(error.what()).find("memory"), std::string_view::npos) << error.what();
      ++refused;
    }
    EXPECT_LE(heap_bytes() - before, 2 * budget);
  }
  matchers.clear();
  EXPECT_LE(heap_bytes() - before, budget);
  Matcher matcher(grammar);
  for (int step = 0; step < 3'000; ++step) ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b'));
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 12);
}

TEST(Limits, TwoHundredThousandCharactersAreCountedWithinTheBudget) {
  const auto grammar =
      compiled(Kind::kJsonSchema, R"({"type": "string", "maxLength": 200000})", with_memory(8u << 20));
  const int thirty = [] {
    for (int token = 0; token < vocabulary()->size(); ++token)
      if (vocabulary()->token(token).bytes == std::string(30, 'a')) return token;
    return -1;
  }();
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.accept('"'));
  for (int i = 0; i < 200'000 / 30; ++i) {
    ASSERT_TRUE(allowed(mask_of(matcher), thirty)) << i;
    ASSERT_TRUE(matcher.accept(thirty)) << i;
  }
  EXPECT_FALSE(allowed(mask_of(matcher), thirty));
  for (int i = 0; i < 200'000 % 30; ++i) ASSERT_TRUE(matcher.accept('a'));
  EXPECT_FALSE(matcher.accept('a'));
  EXPECT_TRUE(matcher.accept('"'));
  EXPECT_TRUE(matcher.complete());
}

TEST(Limits, AnOutputsMasksHaveOneAllowanceOfTime) {
  const auto grammar =
      compiled(Kind::kRegex, "(.*[a-m].{15}|.*[c-q].{16})*", {.output_time = milliseconds(20)});
  Matcher matcher(grammar);
  std::mt19937 random(9);
  const auto walk = [&] {
    for (int step = 0; step < 100'000; ++step) {
      mask_of(matcher);
      matcher.accept(static_cast<int>('a' + random() % 17));
    }
  };
  EXPECT_LT(time_of([&] { EXPECT_THROW(walk(), LimitError); }), milliseconds(5000));
  Matcher other(grammar);
  EXPECT_NO_THROW(mask_of(other));
}

TEST(Limits, ACompilationStopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  std::string text = "[\"\"";
  for (int i = 0; i < 5000; ++i) text += ",\"" + std::to_string(i * 7919) + "\"";
  EXPECT_THROW(compile({.kind = Kind::kChoice, .source = text + "]"}, vocabulary(), {}, stop.get_token()),
               Stopped);
}

}  // namespace
}  // namespace quire::grammar::test
