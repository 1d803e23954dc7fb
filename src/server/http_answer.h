#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::server {

class HttpConnection;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// How an answer is to be sent, as its request asked.
struct AnswerForm {
  bool body = true;     // not to HEAD
  bool chunked = true;  // not to HTTP/1.0
  bool keep_alive = true;
  std::string target = {};  // the request's, for errors; empty: it is not known
};

// The answer to the request that a connection has under way: send, or begin, any number of writes, and end.
// Safe from any thread; no call waits for the client. Once the client is gone every call does nothing. One
// that is dropped unfinished becomes a 500, or, begun already, cuts the client.
class HttpResponder {
 public:
  HttpResponder(std::shared_ptr<HttpConnection> connection, AnswerForm form)
      : connection_(std::move(connection)), form_(std::move(form)) {}
  ~HttpResponder() { fail(); }
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  // A whole answer. Content-Length, Transfer-Encoding, Connection and Date are added. The body of an answer
  // to HEAD, and of status 204 and 304, is not sent.
  void send(int status, HttpHeaders headers, std::string body);
  // A chunked answer; every write is one chunk and leaves at once, together with others that still wait. For
  // an HTTP/1.0 client it is plain bytes up to the end of the connection.
  void begin(int status, HttpHeaders headers);
  void write(std::string bytes);
  void end();

  bool is_gone() const;  // the client
  // `gone` is called once if the client goes, or is cut, before send or end; at once if it has already. On an
  // I/O thread or on the caller's; it must not block. One per answer.
  void on_disconnect(std::function<void()> gone);

  // For the connection.
  void disconnected();  // the client has gone
  // What the answer will go on with whatever it is. A client that is gone answers with a reset. Once.
  void send_first_bytes();
  // It will not be finished: this error if it was not begun, otherwise the client is cut.
  void fail(int status = 500, std::string_view message = "internal server error");

 private:
  enum class State { kWaiting, kStreaming, kEnded, kGone };

  bool expect_locked(State state) const;  // false: the client is gone
  void send_locked(int status, const HttpHeaders& headers, std::string body);
  // What is still to be sent of the lines from the status to the empty one. length: of the body; unset: it is
  // chunked, or as long as the connection lasts.
  std::string head_locked(int status, const HttpHeaders& headers, std::optional<std::size_t> length) const;

  const std::shared_ptr<HttpConnection> connection_;
  mutable std::mutex mutex_;  // of all below; taken before the connection's
  AnswerForm form_;
  State state_ = State::kWaiting;
  bool first_bytes_sent_ = false;  // of the head
  std::function<void()> on_disconnect_;
};

}  // namespace quire::server
