#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct HttpOutcome {
  int status = 0;     // 0: there was no answer
  std::string error;  // why the answer is not whole; empty: it is
};

struct HttpCall {
  std::string url;  // http or https
  std::vector<std::string> headers;
  std::optional<std::string> body;  // a POST; without one a GET
  // From poll(), which they must not throw through.
  std::function<void(int status, std::string_view bytes)> on_bytes;
  std::function<void(const HttpOutcome& outcome)> on_done;
};

// Any number of HTTP requests at once, on the caller's thread: they go on while it is in poll(). Connections
// are kept for the next request. For one thread.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void start(HttpCall call);
  std::size_t num_under_way() const;
  // Until something came or the time is over.
  void poll(std::chrono::milliseconds timeout);
  void cancel_all();  // none of their callbacks is called again

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One request, waited for. Error where there is no whole answer, or one of a status other than 200.
std::string fetch(HttpCall call);

// What the body of an error says, on one line: an OpenAI error's message, or the body's beginning.
std::string error_text(std::string_view body);

}  // namespace quire
