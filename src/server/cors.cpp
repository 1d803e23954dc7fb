#include "server/cors.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/json.h"

namespace quire::server {
namespace {

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// SCHEME://HOST or SCHEME://HOST:PORT, as browsers send it.
bool is_origin(std::string_view text) {
  const std::size_t end = text.find("://");
  if (end == 0 || end == std::string_view::npos || end + 3 == text.size()) return false;
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; }) &&
         text.find_first_of("/?#@*,\"\\", end + 3) == std::string_view::npos;
}

// Names of headers with commas between.
bool is_header_list(std::string_view text) {
  constexpr std::size_t kMaxBytes = 4096;
  const auto may_be = [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("!#$%&'*+-.^_`|~, ").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kMaxBytes && std::ranges::all_of(text, may_be);
}

}  // namespace

Cors::Cors(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {
  for (std::string& origin : allowed_) {
    if (origin == "*") all_ = true;
    if (origin != "*" && !is_origin(origin))
      fail("allowed-origins has {}; an origin is * or like https://example.com or http://localhost:3000",
           in_quotes(origin));
    std::ranges::transform(origin, origin.begin(), to_lower);
  }
}

bool Cors::allows(std::string_view origin) const {
  return all_ || std::ranges::find(allowed_, origin) != allowed_.end();
}

HttpHeaders Cors::headers(std::string_view origin) const {
  if (allowed_.empty()) return {};
  HttpHeaders headers;
  if (!all_) headers.emplace_back("Vary", "Origin");  // a cache must not give any answer to another page
  if (all_ ? origin.empty() : !allows(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", all_ ? "*" : origin);
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

HttpHeaders Cors::preflight_headers(std::string_view origin, std::string_view wanted) const {
  if (origin.empty() || !allows(origin)) return {};
  HttpHeaders headers{{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"}};
  if (is_header_list(wanted)) headers.emplace_back("Access-Control-Allow-Headers", wanted);
  headers.emplace_back("Access-Control-Max-Age", "600");  // seconds
  return headers;
}

}  // namespace quire::server
