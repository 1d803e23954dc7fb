#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct HttpOutcome {
  int status = 0;                                   // 0: there was no answer
  std::string error = {};                           // why the answer is not whole; empty: it is
  std::map<std::string, std::string> headers = {};  // names in lower case; of several of a name the last
  std::chrono::seconds retry_after{};               // what the answer asks for; 0: it does not
};

struct HttpCall {
  std::string url;  // http or https
  std::vector<std::string> headers = {};
  std::optional<std::string> body = {};  // a POST; without one a GET
  // From poll(), which throws what they throw. After a false the rest is not read: the answer is not whole.
  std::function<bool(int status, std::string_view bytes)> on_bytes = {};
  std::function<void(const HttpOutcome& outcome)> on_done = {};
  bool head_only = false;                // a HEAD
  std::chrono::seconds stall_timeout{};  // no byte for so long, and some seconds: given up; 0: never
};

// Any number of HTTP requests at once, on the caller's thread: they go on while it is in poll(). Connections
// are kept for the next request. Redirects are not followed: they are answers. For one thread.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void start(HttpCall call);
  // Until something came or the time is over.
  void poll(std::chrono::milliseconds timeout);
  void cancel_all();  // none of their callbacks is called again
  // A request alone, in place of its on_done; none where `stopped`, asked some times a second, ends it.
  std::optional<HttpOutcome> run(HttpCall call, const std::function<bool()>& stopped = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One request, waited for. Error where there is no whole answer, or one of a status other than 200.
std::string fetch(HttpCall call);

// What the body of an error says, on one line: the message of OpenAI's form, or the body's beginning.
std::string error_text(std::string_view body);

// Where `location`, absolute or relative, leads to from `base`. Error when it is no http or https URL.
std::string join_url(const std::string& base, const std::string& location);

// Whether both have the same scheme, host and port. Both are http or https URLs.
bool same_origin(const std::string& a, const std::string& b);

bool is_https(const std::string& url);

// A segment of a path: all but letters, digits and -._~ as %XX.
std::string escape_segment(const std::string& text);

}  // namespace quire
