// Every numeric field of every request, at its edges and beyond, and with what is no number.
#include <limits>
#include <optional>

#include "protocol_fixtures.h"
#include "server/chat_request.h"
#include "server/completion.h"

namespace quire::server {
namespace {

using test::error_of;
using test::json;
using ::testing::StartsWith;

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMinInt = std::numeric_limits<int>::min();

struct Field {
  std::string name;
  std::string min, max;                     // legal, as JSON
  std::optional<std::string> below, above;  // illegal; unset: there is nothing beyond
  bool whole = true;
  std::string others = {};  // fields that make it legal: "\"logprobs\": true, "
  bool completions = true, chats = true;
};

std::string text(std::int64_t number) { return std::to_string(number); }

Field whole(std::string name, std::int64_t min, std::int64_t max) {
  return {.name = std::move(name),
          .min = text(min),
          .max = text(max),
          .below = min == std::numeric_limits<std::int64_t>::min() ? "-9223372036854775809" : text(min - 1),
          .above = max == std::numeric_limits<std::int64_t>::max() ? "9223372036854775808" : text(max + 1)};
}

Field real(std::string name, std::string min, std::string max, std::optional<std::string> below,
           std::optional<std::string> above) {
  return {.name = std::move(name),
          .min = std::move(min),
          .max = std::move(max),
          .below = std::move(below),
          .above = std::move(above),
          .whole = false};
}

Field only_chats(Field field, std::string others = {}) {
  field.completions = false;
  field.others = std::move(others);
  return field;
}
Field only_completions(Field field) {
  field.chats = false;
  return field;
}

std::vector<Field> fields() {
  return {
      whole("n", 1, 128),
      whole("best_of", 1, 128),
      whole("top_k", -1, kMaxInt),
      whole("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()),
      only_completions(whole("min_tokens", 0, 16)),  // max_tokens
      only_chats(whole("min_tokens", 0, 64)),        // the context
      whole("priority", kMinInt, kMaxInt),
      whole("prompt_logprobs", 0, 20),
      only_completions(whole("logprobs", 0, 20)),
      only_completions(whole("max_tokens", 1, kMaxInt)),
      only_chats(whole("max_tokens", 1, kMaxInt)),
      only_chats(whole("max_completion_tokens", 1, kMaxInt)),
      only_chats(whole("top_logprobs", 0, 20), "\"logprobs\": true, "),
      real("temperature", "0", "1e4", "-0.001", "10001"),
      real("top_p", "1e-6", "1", "0", "1.001"),
      real("min_p", "0", "1", "-0.001", "1.001"),
      real("presence_penalty", "-2", "2", "-2.001", "2.001"),
      real("frequency_penalty", "-2", "2", "-2.001", "2.001"),
      real("repetition_penalty", "0.0001", "1e4", "0", "10001"),
      real("length_penalty", "-1e300", "1e300", std::nullopt, std::nullopt),  // without a search no effect
  };
}

class ParameterSweepTest : public ::testing::TestWithParam<Field> {
 protected:
  static OrderedJson body(std::string_view endpoint, const Field& field, const std::string& value) {
    return parse_body("{" + field.others + std::string(endpoint) + ", \"" + field.name + "\": " + value +
                      "}");
  }
  // The errors of the endpoints that have the field.
  static std::vector<ApiError> errors(const Field& field, const std::string& value) {
    const ServedModel model = test::served_model();
    std::vector<ApiError> errors;
    if (field.completions) {
      errors.push_back(
          error_of([&] { parse_completion_request(body(R"("prompt": "x")", field, value), model); }));
    }
    if (field.chats) {
      constexpr const char* kMessages = R"("messages": [{"role": "user", "content": "x"}])";
      errors.push_back(error_of([&] { parse_chat_request(body(kMessages, field, value), model); }));
    }
    return errors;
  }
  static void expect_accepted(const std::string& value) {
    for (const ApiError& error : errors(GetParam(), value))
      EXPECT_EQ(error.status, 0) << value << ": " << error.what();
  }
  static void expect_refused(const std::string& value) {
    for (const ApiError& error : errors(GetParam(), value)) {
      EXPECT_EQ(error.status, 400) << value;
      EXPECT_EQ(error.param, GetParam().name) << value << ": " << error.what();
      EXPECT_THAT(error.what(), StartsWith(GetParam().name)) << value;
    }
  }
};

TEST_P(ParameterSweepTest, TheEdgesAreAccepted) {
  expect_accepted(GetParam().min);
  expect_accepted(GetParam().max);
  expect_accepted("null");
}

TEST_P(ParameterSweepTest, BeyondThemIsRefused) {
  if (GetParam().below) expect_refused(*GetParam().below);
  if (GetParam().above) expect_refused(*GetParam().above);
}

TEST_P(ParameterSweepTest, WhatIsNoNumberIsRefused) {
  for (const char* value :
       {"\"one\"", "\"1x\"", "\"1e\"", "\"nan\"", "\"inf\"", "true", "[1]", "[]", "{}", "\"\""})
    expect_refused(value);
}

TEST_P(ParameterSweepTest, ExtremeNumbersAreRefusedOrHaveNoEffect) {
  for (const char* value :
       {"1e308", "-1e308", "9223372036854775808", "18446744073709551615", "123456789012345678901234567890"}) {
    for (const ApiError& error : errors(GetParam(), value)) {
      const bool has_bound = GetParam().whole || GetParam().above;
      EXPECT_EQ(error.status, has_bound ? 400 : 0) << value << ": " << error.what();
    }
  }
  if (GetParam().whole) {
    for (const char* value : {"1.5", "-0.5", "1e-308"}) expect_refused(value);
  }
}

// -0, and whole numbers in the clothes of real ones, are what they are equal to.
TEST_P(ParameterSweepTest, SpellingDoesNotMatter) {
  for (const auto& [one, other] : {std::pair{"0", "-0"},
                                   {"0", "-0.0"},
                                   {"1", "1.0"},
                                   {"1", "10e-1"},
                                   {"1", "\"1\""},
                                   {"1", "\"1.0\""},
                                   {"-1", "\"-1\""},
                                   {"1e308", "\"1e308\""}}) {
    const auto expected = errors(GetParam(), one);
    const auto found = errors(GetParam(), other);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i].status, expected[i].status) << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Fields, ParameterSweepTest, ::testing::ValuesIn(fields()), [](const auto& param) {
  const Field& field = param.param;
  return field.name + (field.completions && field.chats ? "" : field.chats ? "_of_chats" : "_of_completions");
});

// truncate_prompt_tokens has a hole in its range.
TEST(TruncateSweepTest, IsAtLeastOneOrMinusOne) {
  const ServedModel model = test::served_model();
  const auto status = [&](const std::string& value) {
    return error_of([&] {
             parse_completion_request(
                 parse_body(R"({"prompt": "x", "truncate_prompt_tokens": )" + value + "}"), model);
           })
        .status;
  };
  for (const char* value : {"-1", "1", "2147483647", "null"}) EXPECT_EQ(status(value), 0) << value;
  for (const char* value : {"-2", "0", "2147483648", "\"1.5\"", "1.5", "[1]"})
    EXPECT_EQ(status(value), 400) << value;
}

}  // namespace
}  // namespace quire::server
