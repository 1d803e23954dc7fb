#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_answer.h"

namespace quire::server {

// The keys that open the server. Thread contract: constant, so from any thread.
class ApiKeys {
 public:
  // No keys: everybody may come in. Error where no header could carry a key.
  explicit ApiKeys(const std::vector<std::string>& keys = {});

  // Which of the keys a request brings, in Authorization ("Bearer KEY") or in x-api-key; 0 where there are no
  // keys; nothing: none of them. How long it takes says nothing of the keys.
  std::optional<std::size_t> find(std::string_view authorization, std::string_view x_api_key = {}) const;

 private:
  std::vector<std::string> digests_;  // SHA-256 in hexadecimal digits: all of one length
};

// Which web pages may read the answers. Credentials of a browser (cookies, say) are never asked for; an API
// key is a header that a page sets itself. Thread contract: constant, so from any thread.
class Cors {
 public:
  // allowed: origins such as https://example.com or http://localhost:3000, or "*" for all. Error of others.
  explicit Cors(std::vector<std::string> allowed = {});

  // What an answer gets. origin: the request's header, or empty.
  HttpHeaders headers(std::string_view origin) const;
  // What the answer to an OPTIONS request, which is 204 and needs no key, gets beside them: a browser refuses
  // an answer that allows its origin twice. wanted: the request's Access-Control-Request-Headers, or empty.
  HttpHeaders preflight_headers(std::string_view origin, std::string_view wanted) const;
  bool allows(std::string_view origin) const;

 private:
  std::vector<std::string> allowed_;
  bool all_ = false;
};

// Whether text is HOST or HOST:PORT as a request may name the server (RFC 9110, 7.2).
bool is_authority(std::string_view text);

// The names by which a request may call this server. A web page whose own name was made to point to this
// machine (DNS rebinding) calls it by another one. Thread contract: constant, so from any thread.
class HostNames {
 public:
  // bound: what it listens on. allowed: names or addresses beside it and loopback's, or "*". Error of others.
  HostNames(const std::string& bound, const std::vector<std::string>& allowed);

  // authority: one that is_authority, or empty, where a request names none, as no browser's does.
  bool accept(std::string_view authority) const;

 private:
  std::vector<std::string> names_;
  bool all_ = false;
};

}  // namespace quire::server
