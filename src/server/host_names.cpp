#include "server/host_names.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace quire::server {
namespace {

namespace ip = boost::asio::ip;

bool is_alnum(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }

// What may stand in a name (RFC 3986, reg-name), and in an address in brackets.
bool is_name_char(char c) {
  return is_alnum(c) || std::string_view("-._~%!$&'()*+,;=").find(c) != std::string_view::npos;
}
bool is_ipv6_char(char c) { return is_alnum(c) || c == ':' || c == '.'; }

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
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
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

bool is_authority(std::string_view text) {
  const std::string_view host = host_of(text);
  const std::string_view port = text.substr(std::min(text.size(), host.size() + 1));
  if (!std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; })) return false;
  if (!host.starts_with('[')) return !host.empty() && std::ranges::all_of(host, is_name_char);
  return host.size() > 2 && std::all_of(host.begin() + 1, host.end() - 1, is_ipv6_char) &&
         parse_address(host);
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
