#pragma once

#include <gtest/gtest.h>

#include <ctime>
#include <span>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/chat_template.h"

namespace quire::test {

inline std::tm fixed_time() {  // 2026-01-02T03:04:05, a Friday
  std::tm time = {};
  time.tm_year = 126;
  time.tm_mday = 2;
  time.tm_hour = 3;
  time.tm_min = 4;
  time.tm_sec = 5;
  time.tm_wday = 5;
  time.tm_yday = 1;
  return time;
}

inline std::string render(std::string_view source, const OrderedJson& context,
                          const ChatTemplateLimits& limits = {}) {
  return join_pieces(ChatTemplate(source, "template", limits).render(context, {fixed_time()}));
}

// The text of the Error, or "" if there is none.
inline std::string error_of(std::string_view source, const OrderedJson& context = OrderedJson::object(),
                            const ChatTemplateLimits& limits = {}) {
  try {
    render(source, context, limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// What the templates of the tables read.
inline OrderedJson case_context() {
  return parse_ordered_json(R"json({
    "s": "Hello", "u": "Grüße, Straße 日本", "n": 5, "f": 2.5, "b": true, "z": null,
    "l": [3, 1, 2], "d": {"b": 1, "a": {"x": [1, 2]}, "items": 7}, "e": [],
    "ms": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": null, "n": 1},
           {"role": "user", "content": "<b>&'\"", "n": 3}],
    "ws": "  a  b c \n", "quote": "it's", "both": "'\"",
    "ctl": "\u0000\u001f\u007f\u00ad\u2028\u00e9\ud83d\ude00", "lines": "a\nb\r\nc\n\nd", "bos_token": "<s>"})json",
                            "context");
}

// A template and what Jinja2 3.1 renders it to, set up as transformers does.
struct Case {
  const char* source;
  const char* expected;
};

inline void expect_cases(std::span<const Case> cases) {
  const OrderedJson context = case_context();
  for (const auto& [source, expected] : cases) {
    SCOPED_TRACE(source);
    try {
      EXPECT_EQ(render(source, context), expected);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

}  // namespace quire::test
