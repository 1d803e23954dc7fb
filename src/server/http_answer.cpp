#include "server/http_answer.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <ctime>

#include "base/error.h"
#include "base/log.h"
#include "server/http_connection.h"

namespace quire::server {

namespace http = boost::beast::http;

namespace {

// As RFC 9110, 5.6.7 wants it.
const std::string& http_date() {
  thread_local std::time_t second = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != second) {
    text = utc_text(now, "%a, %d %b %Y %H:%M:%S GMT");
    second = now;
  }
  return text;
}

// A control character would end the line, and let who chose the value write headers.
std::string on_one_line(std::string value) {
  std::ranges::replace_if(
      value, [](unsigned char c) { return c < 0x20; }, ' ');
  return value;
}

constexpr std::string_view kFirstBytes = "HTTP/1.1 ";

bool has_body(int status) { return status >= 200 && status != 204 && status != 304; }

}  // namespace

bool HttpResponder::expect_locked(State state) const {
  if (state_ == State::kGone) return false;
  QUIRE_CHECK(state_ == state, "an answer to one request that is not open, or is begun twice");
  return true;
}

void HttpResponder::send(int status, HttpHeaders headers, std::string body) {
  std::function<void()> dropped;  // after the unlocking: it may own this answer
  const std::lock_guard lock(mutex_);
  dropped.swap(on_disconnect_);
  send_locked(status, headers, std::move(body));
}

void HttpResponder::send_locked(int status, const HttpHeaders& headers, std::string body) {
  if (!expect_locked(State::kWaiting)) return;
  form_.keep_alive = form_.keep_alive && connection_->may_stay_open();
  const std::string head = head_locked(status, headers, body.size());
  if (!form_.body || !has_body(status)) body.clear();
  state_ = State::kEnded;
  connection_->output(head, std::move(body), {}, form_.keep_alive ? Then::kNextRequest : Then::kClose);
}

void HttpResponder::begin(int status, HttpHeaders headers) {
  const std::lock_guard lock(mutex_);
  if (!expect_locked(State::kWaiting)) return;
  form_.body = form_.body && has_body(status);
  form_.keep_alive = form_.keep_alive && form_.chunked && connection_->may_stay_open();
  state_ = State::kStreaming;
  connection_->output(head_locked(status, headers, std::nullopt), {}, {}, Then::kMore);
}

void HttpResponder::write(std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (!expect_locked(State::kStreaming)) return;
  if (!form_.body || bytes.empty()) return;  // an empty chunk would end the body
  const std::string size_line = form_.chunked ? format_text("{:x}\r\n", bytes.size()) : "";
  connection_->output(size_line, std::move(bytes), form_.chunked ? "\r\n" : "", Then::kMore);
}

void HttpResponder::end() {
  std::function<void()> dropped;  // as in send()
  const std::lock_guard lock(mutex_);
  if (!expect_locked(State::kStreaming)) return;
  state_ = State::kEnded;
  dropped.swap(on_disconnect_);
  connection_->output(form_.body && form_.chunked ? "0\r\n\r\n" : "", {}, {},
                      form_.keep_alive ? Then::kNextRequest : Then::kClose);
}

bool HttpResponder::is_gone() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kGone;
}

void HttpResponder::on_disconnect(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return;
    if (state_ != State::kGone) return on_disconnect_.swap(gone);
  }
  gone();
}

void HttpResponder::disconnected() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded || state_ == State::kGone) return;
    state_ = State::kGone;
    gone = std::exchange(on_disconnect_, nullptr);
  }
  if (gone) gone();
}

// A chunk's size may begin with a zero (RFC 9112, 7.1).
void HttpResponder::send_first_bytes() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kWaiting) {
    first_bytes_sent_ = true;
    connection_->output(kFirstBytes, {}, {}, Then::kMore);
  } else if (state_ == State::kStreaming && form_.body && form_.chunked) {
    connection_->output("0", {}, {}, Then::kMore);
  }
}

std::string HttpResponder::head_locked(int status, const HttpHeaders& headers,
                                       std::optional<std::size_t> length) const {
  const std::string_view reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  std::string head = format_text("{}{} {}\r\n", first_bytes_sent_ ? "" : kFirstBytes, status, reason);
  for (const auto& [name, value] : headers) head += format_text("{}: {}\r\n", name, on_one_line(value));
  head += "Date: " + http_date() + "\r\n";
  if (has_body(status)) {
    if (length) head += format_text("Content-Length: {}\r\n", *length);
    if (!length && form_.chunked) head += "Transfer-Encoding: chunked\r\n";
  }
  if (!form_.keep_alive) head += "Connection: close\r\n";
  return head += "\r\n";
}

void HttpResponder::fail(int status, std::string_view message) {
  const std::lock_guard lock(mutex_);
  try {
    if (state_ == State::kStreaming) connection_->abort();
    if (state_ != State::kWaiting) return;
    HttpHeaders headers = {{"Content-Type", "application/json"}};
    if (status == 503) headers.emplace_back("Retry-After", "1");
    send_locked(status, headers, connection_->error_body(status, std::string(message), form_.target));
  } catch (const std::exception& error) {  // no memory for an answer
    state_ = State::kEnded;
    connection_->abort();
    log_error("connection of {}: {}", connection_->remote(), error.what());
  }
}

}  // namespace quire::server
