#include "server/api_error.h"

#include <algorithm>
#include <regex>

#include "base/json.h"
#include "engine/request.h"

namespace quire::server {
namespace {

// The text with `theirs` for each `word`; what stands in quotes, the client's own words, only `everywhere`.
std::string replaced(const std::string& text, const std::regex& word, const char* theirs, bool everywhere) {
  std::string result;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    const bool quoted = text[at] == '"';
    end = at + 1;
    while (end < text.size() && text[end] != '"') end += quoted && text[end] == '\\' ? 2 : 1;
    end = std::min(end + (quoted ? 1 : 0), text.size());
    const std::string part = text.substr(at, end - at);
    result += quoted && !everywhere ? part : std::regex_replace(part, word, theirs);
  }
  return result;
}

}  // namespace

std::string_view ApiError::type() const {
  constexpr std::pair<int, std::string_view> kTypes[] = {
      {401, "AuthenticationError"},   {403, "PermissionDeniedError"}, {404, "NotFoundError"},
      {405, "MethodNotAllowedError"}, {429, "RateLimitError"},        {503, "unavailable_error"}};
  for (const auto& [known, type] : kTypes) {
    if (known == status) return type;  // that of 503 is llama-server's, while it loads
  }
  return status < 500 ? "BadRequestError" : "InternalServerError";
}

ApiError renamed(const ApiError& error, std::span<const FieldName> names) {
  std::string message = error.what(), param = error.param;
  for (const auto& [theirs, ours] : names) {
    // A place in JSON may stand in quotes.
    const std::regex word(format_text(R"((?:\b|(?=\W)){}(?!\w))", ours));
    for (std::string* text : {&message, &param}) *text = replaced(*text, word, theirs, ours[0] == '/');
  }
  return {error.status, message, param, error.code};
}

ApiError to_api_error(const std::exception& caught) {
  if (const auto* error = dynamic_cast<const ApiError*>(&caught)) return *error;
  if (dynamic_cast<const QueueFullError*>(&caught) != nullptr) return {429, caught.what()};
  if (dynamic_cast<const Error*>(&caught) != nullptr) return {400, caught.what()};
  return {500, "an internal error; the server's log says more"};
}

OrderedJson openai_error(const ApiError& error, const std::string&) {
  return {{"error",
           {{"message", error.code.empty() ? error.what() : format_text("{} ({})", error.what(), error.code)},
            {"type", error.type()},
            {"param", error.param.empty() ? OrderedJson() : OrderedJson(error.param)},
            {"code", error.status}}}};
}

}  // namespace quire::server
