#include "server/access_rules.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"

namespace quire::server {
namespace {

namespace ip = boost::asio::ip;

constexpr std::string_view kBlank = " \t";

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

// The key of "Bearer KEY"; empty: there is none.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer";
  authorization = without_blanks(authorization);
  const std::string_view scheme = authorization.substr(0, authorization.find_first_of(kBlank));
  if (!boost::beast::iequals(scheme, kScheme)) return {};
  return without_blanks(authorization.substr(kScheme.size()));
}

std::string digest_of(std::string_view key) {
  Digest digest(Digest::Kind::kSha256);
  digest.add(key);
  return digest.hex();
}

bool is_visible(char c) { return c > ' ' && c < 0x7f; }
bool is_alnum(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }
bool has_only_alnum_or(std::string_view others, std::string_view text) {
  return std::ranges::all_of(text,
                             [&](char c) { return is_alnum(c) || others.find(c) != std::string_view::npos; });
}
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// SCHEME://HOST or SCHEME://HOST:PORT, as browsers send it.
bool is_origin(std::string_view text) {
  const std::size_t end = text.find("://");
  if (end == 0 || end == std::string_view::npos || end + 3 == text.size()) return false;
  return std::ranges::all_of(text, is_visible) &&
         text.find_first_of("/?#@*,\"\\", end + 3) == std::string_view::npos;
}

// Names of headers with commas between.
bool is_header_list(std::string_view text) {
  constexpr std::size_t kMaxBytes = 4096;
  return !text.empty() && text.size() <= kMaxBytes && has_only_alnum_or("!#$%&'*+-.^_`|~, ", text);
}

// The address that stands there, if any; IPv6 with or without brackets.
std::optional<ip::address> parse_address(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  boost::system::error_code error;
  const ip::address address = ip::make_address(std::string(host), error);
  return error ? std::nullopt : std::optional(address);
}

// Without the port: it cannot be another one than the client has found us at.
std::string_view host_of(std::string_view authority) {
  const std::size_t colon = authority.rfind(':');
  if (colon == std::string_view::npos || authority.ends_with(']')) return authority;
  return authority.substr(0, colon);
}

// One way to write each name: lower case, no dot at the end, an address as the system writes it.
std::string normal(std::string_view host) {
  if (const auto address = parse_address(host)) return address->to_string();
  std::string name(host);
  std::ranges::transform(name, name.begin(), to_lower);
  if (name.size() > 1 && name.back() == '.') name.pop_back();
  return name;
}

bool is_loopback(const std::string& host) {
  const auto address = parse_address(host);
  if (address && address->is_v6() && address->to_v6().is_v4_mapped())
    return ip::make_address_v4(ip::v4_mapped, address->to_v6()).is_loopback();
  return address ? address->is_loopback() : host == "localhost" || host.ends_with(".localhost");
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].empty()) fail("API key {} is empty", i + 1);
    if (!std::ranges::all_of(keys[i], is_visible))
      fail("API key {} has a character that is not visible ASCII", i + 1);
    digests_.push_back(digest_of(keys[i]));
  }
}

std::optional<std::size_t> ApiKeys::find(std::string_view authorization, std::string_view x_api_key) const {
  if (digests_.empty()) return 0;
  const std::string_view bearer = bearer_key(authorization);
  const std::string given = digest_of(bearer.empty() ? without_blanks(x_api_key) : bearer);
  std::size_t found = digests_.size();
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    const bool same = CRYPTO_memcmp(given.data(), digests_[i].data(), given.size()) == 0;
    found = same ? i : found;
  }
  return found == digests_.size() ? std::nullopt : std::optional(found);
}

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

bool is_authority(std::string_view text) {
  const std::string_view host = host_of(text);
  const std::string_view port = text.substr(std::min(text.size(), host.size() + 1));
  if (!std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; })) return false;
  if (!host.starts_with('['))  // a name (RFC 3986, reg-name)
    return !host.empty() && has_only_alnum_or("-._~%!$&'()*+,;=", host);
  return host.size() > 2 && has_only_alnum_or(":.", host.substr(1, host.size() - 2)) && parse_address(host);
}

HostNames::HostNames(const std::string& bound, const std::vector<std::string>& allowed) {
  names_.push_back(normal(bound));
  for (const std::string& name : allowed) {
    if (name == "*") all_ = true;
    const bool is_host = parse_address(name) || (is_authority(name) && host_of(name) == name);
    if (name != "*" && !is_host)
      fail("allowed-hosts has {}; a host is *, a name or an address, without a port", in_quotes(name));
    names_.push_back(normal(name));
  }
}

bool HostNames::accept(std::string_view authority) const {
  if (all_ || authority.empty()) return true;
  const std::string host = normal(host_of(authority));
  return is_loopback(host) || std::ranges::find(names_, host) != names_.end();
}

}  // namespace quire::server
