#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_answer.h"

namespace quire::server {

// HTTP/1.1 over TCP or TLS: requests in, answers out, limits and disconnects. It knows nothing of the API.

struct HttpRequest {
  std::string method;
  std::string target;  // path and query, as sent
  std::string host;  // HOST or HOST:PORT: of a target in absolute form, or else the Host header; may be empty
  HttpHeaders headers;  // in order, names as sent
  std::string body;

  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
  std::optional<std::string_view> header(std::string_view name) const;  // the first; case is ignored
};

// On an I/O thread: it must not block. What it throws becomes a 500.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;

// What a client may do. Whoever exceeds it gets an answer with the status named here, then the connection
// closes; where there is none it is cut.
struct HttpLimits {
  std::size_t max_header_bytes = 32 << 10;       // request line to empty line, both included: 431
  std::size_t max_headers = 100;                 // 431
  std::size_t max_target_bytes = 8 << 10;        // 414
  std::size_t max_body_bytes = 16 << 20;         // after chunked coding: 413
  std::size_t max_total_body_bytes = 256 << 20;  // of all requests that are being read: 503
  std::size_t max_connections = 4096;            // 503
  std::size_t max_unsent_bytes = 1 << 20;        // a write that finds more than this unsent cuts the client
  std::chrono::milliseconds header_timeout{10'000};  // from its first byte to its last, and to the first of a
                                                     // new connection: 408, without a byte just closed
  std::chrono::milliseconds body_timeout{30'000};    // between two pieces of a body: 408
  std::chrono::milliseconds idle_timeout{75'000};    // between two requests
  std::chrono::milliseconds write_timeout{60'000};   // without the client taking any of what waits for it
  std::chrono::milliseconds linger_timeout{2'000};   // for the client to close after a last answer
};

struct HttpServerConfig {
  std::string host = "127.0.0.1";  // a name or an address
  std::uint16_t port = 8000;       // 0: any that is free
  int num_threads = 2;             // at least 1
  HttpLimits limits;
  std::string tls_certificate;  // PEM file with the chain; empty: no TLS
  std::string tls_key;          // PEM file; empty: the key is in the certificate's file
  // The JSON body of an answer that is made here. Empty: {"error":{"message":...}}.
  std::function<std::string(int status, const std::string& message, const std::string& target)> error_body;
  // Told of a client that got such an answer to what was no request. On an I/O thread.
  std::function<void(int status)> on_refused;
  // A few connections more than max_connections are taken for requests of which this is true, one each, short
  // and soon. Others get the 503. Empty: all others. On an I/O thread.
  std::function<bool(const HttpRequest&)> is_urgent;
};

// EOF from a client while it waits for an answer may mean two things, which TCP does not tell apart until it
// is sent a byte: it has closed its side alone and reads on, or it is gone and its system answers with a
// reset. So it is sent the first bytes that any answer has. Who reads gets its answers whole, then the
// connection closes; who is gone is noticed a round trip later. Three are noticed only by what is written to
// them next: a client that goes some time after its EOF, one whose stream has no chunks (HTTP/1.0), and one
// that sends so many requests ahead that they fill the read buffer (max_header_bytes and 16 KiB).
class HttpServer {
 public:
  // Listens; nothing is accepted before start(). Error when host, port, certificate or key are not usable.
  HttpServer(HttpServerConfig config, HttpHandler handler);
  ~HttpServer();  // stop({})
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  bool on_loopback() const;         // listens there alone
  std::size_t connections() const;  // open now

  // Where the process cannot have the open files for max_connections there are fewer, and the log says so.
  void start();
  // Accepts no more, closes idle connections, lets requests under way be answered for so long. True: all
  // were. Neither this nor stop may be called from a handler.
  bool drain(std::chrono::milliseconds limit);
  // The same, then cuts what is left. Returns when all threads have ended. Responders may be used, in vain,
  // even after it.
  void stop(std::chrono::milliseconds limit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
