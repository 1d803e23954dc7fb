#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_answer.h"

namespace quire::server {

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

}  // namespace quire::server
