#pragma once

#include <memory>
#include <mutex>

#include "server/http_server.h"

namespace quire::server {

class HttpConnection;

// How an answer is to be sent, as its request asked.
struct AnswerForm {
  bool body = true;     // not to HEAD
  bool chunked = true;  // not to HTTP/1.0
  bool keep_alive = true;
};

// The lines from the status to the empty one. length: of the body; unset: it is chunked, or as long as the
// connection lasts.
std::string answer_head(int status, const HttpHeaders& headers, std::optional<std::size_t> length,
                        AnswerForm form);

// The answer to the request that a connection has under way. Safe from any thread.
class Answer final : public HttpResponder {
 public:
  Answer(std::shared_ptr<HttpConnection> connection, AnswerForm form);
  ~Answer() override;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  void send(int status, HttpHeaders headers, std::string body) override;
  void begin(int status, HttpHeaders headers) override;
  void write(std::string bytes) override;
  void end() override;
  void on_disconnect(std::function<void()> gone) override;

  // For the connection.
  void disconnected();  // the client has gone
  // What the answer will go on with whatever it is. A client that is gone answers with a reset. Once.
  void send_first_bytes();
  // It will not be finished: a 500 if it was not begun, otherwise the client is cut.
  void abandon();

 private:
  enum class State { kWaiting, kStreaming, kEnded, kGone };

  void send_locked(int status, const HttpHeaders& headers, std::string body);
  std::string head_locked(int status, const HttpHeaders& headers, std::optional<std::size_t> length) const;

  const std::shared_ptr<HttpConnection> connection_;
  std::mutex mutex_;  // of all below; taken before the connection's
  AnswerForm form_;
  State state_ = State::kWaiting;
  bool first_bytes_sent_ = false;  // of the head
  std::function<void()> on_disconnect_;
};

}  // namespace quire::server
