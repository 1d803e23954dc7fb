#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

// Whether text is HOST or HOST:PORT as a request may name the server (RFC 9110, 7.2).
bool is_authority(std::string_view text);

// The names by which a request may call this server. A web page whose own name was made to point to this
// machine (DNS rebinding) calls it by another one. Thread contract: constant, so from any thread.
class HostNames {
 public:
  // bound: what it listens on. allowed: names or addresses beside it and those of loopback, or "*" for all.
  // Error of others.
  HostNames(const std::string& bound, const std::vector<std::string>& allowed);

  // authority: one that is_authority, or empty, where a request names none, as no browser's does.
  bool accept(std::string_view authority) const;

 private:
  std::vector<std::string> names_;
  bool all_ = false;
};

}  // namespace quire::server
