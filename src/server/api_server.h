#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/access_log.h"
#include "server/api_service.h"
#include "server/http_server.h"
#include "server/window.h"

namespace quire::server {

struct ApiServerConfig {
  HttpServerConfig http;
  std::vector<std::string> api_keys;         // none: everybody may come in
  bool public_metrics = false;               // /metrics needs no key
  std::vector<std::string> allowed_origins;  // whose web pages may use it; none: no page
  // Names that requests may call it by, beside its own and those of loopback; "*": any. They are looked at
  // where there are some, and where it listens on loopback without keys.
  std::vector<std::string> allowed_hosts;
  std::string root_path;  // "/prefix" of a reverse proxy, with which paths are served, too; empty: none
  AccessLogFormat access_log = AccessLogFormat::kText;
  int num_workers = 2;  // threads that read large requests and turn them into tokens
  std::size_t max_waiting_body_bytes = 256 << 20;  // of the requests that wait for one: beyond it 503
};

// "METHOD path" of all that is served; a path that ends with a slash goes on.
std::vector<std::string> served_routes();

// The APIs over HTTP: routes, who may come in, and the server's life. Until it has a service it answers 503.
class ApiServer {
 public:
  explicit ApiServer(ApiServerConfig config);  // listens, and answers; Error when it cannot
  ~ApiServer();                                // stop({})
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  std::uint16_t port() const;
  std::size_t connections() const;  // open now
  void serve(std::shared_ptr<ApiService> service);
  // What /window shows; without one it is 404. Of the service's engine, or of a recording.
  void show(std::shared_ptr<Window> window);
  // Accepts no more; what is under way may take so long, then it is aborted, which its clients are told.
  void stop(std::chrono::milliseconds drain);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
