#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_fwd.h"

namespace quire::server {

// Tokens of a prompt, and of the output that it asks for, of which the context or the KV cache holds `limit`.
struct ContextOverrun {
  std::int64_t prompt = 0, output = 0, limit = 0;
};

// A request that is answered with an error. The body is OpenAI's, with vLLM's types.
struct ApiError : Error {
  // `param`: the field that is wrong. `code`: what programs look for (context_length_exceeded). Empty: none.
  ApiError(int http_status, const std::string& message, std::string wrong_param = {},
           std::string error_code = {}, std::optional<ContextOverrun> the_overrun = {})
      : Error(message),
        status(http_status),
        param(std::move(wrong_param)),
        code(std::move(error_code)),
        overrun(the_overrun) {}

  std::string_view type() const;
  // Of 429 and 503: seconds until it is worth trying again, for the header retry-after; 0: none.
  int retry_after() const { return status == 429 || status == 503 ? 1 : 0; }

  int status;
  std::string param;
  std::string code;
  std::optional<ContextOverrun> overrun;  // of context_length_exceeded, where there is a prompt
};

// 400 and what is wrong with a field, which the message begins with.
template <typename... Args>
[[noreturn]] void refuse(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, param + " " + format_text(format, std::forward<Args>(args)...), param);
}

// What a request calls a field, and what it was translated to, as a regular expression of whole words.
struct FieldName {
  const char *theirs, *ours;
};
// The error in the request's names.
ApiError renamed(const ApiError& error, std::span<const FieldName> names);

// What was caught, as the client may see it: an ApiError as it is, a full queue as 429, another Error as 400,
// and of anything else only that it happened.
ApiError to_api_error(const std::exception& caught);

// The body of an answer that is an error, as an API has it.
using ErrorBody = OrderedJson (*)(const ApiError& error, const std::string& request_id);
// {"error": {message, type, param, code}}. The code is the status, as vLLM's; a code in words stands in
// parentheses behind the message, where clients look for it (langchain-openai in the whole body's text).
OrderedJson openai_error(const ApiError& error, const std::string& request_id = {});

}  // namespace quire::server
