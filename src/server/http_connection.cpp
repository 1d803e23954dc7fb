#include "server/http_connection.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/log.h"

namespace quire::server {

namespace {

using ErrorCode = boost::system::error_code;

// The end of TCP's stream within TLS's.
constexpr asio::ssl::error::stream_errors kCutOff = asio::ssl::error::stream_truncated;
constexpr std::size_t kFirstReadBytes = 8 << 10;
constexpr std::size_t kReadAheadBytes = 16 << 10;  // beyond the largest head
constexpr std::size_t kCopiedBytes = 16 << 10;  // a piece of output up to this size is appended to the last
constexpr std::size_t kPieceBytes = 64 << 10;   // unless that has this size
constexpr std::size_t kWriteBytes = 1 << 20;    // offered to the system at once
// What the system holds of a stream beyond what is on its way. Without it a client that does not read has
// megabytes waiting for it that count as sent.
constexpr int kSystemUnsentBytes = 128 << 10;
constexpr const char* kTooMany = "too many connections";

}  // namespace

asio::mutable_buffer InputBuffer::room(std::size_t max_bytes) {
  if (begin_ > 0) {
    std::ranges::copy(view(), data_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ == data_.size()) data_.resize(std::min(max_bytes, std::max(kFirstReadBytes, 2 * data_.size())));
  return {data_.data() + end_, data_.size() - end_};
}

HttpConnection::HttpConnection(std::shared_ptr<HttpService> service, std::shared_ptr<IoThread> thread,
                               tcp::socket socket, OpenConnection open, bool reserved)
    : thread_(std::move(thread)),
      service_(std::move(service)),
      open_(std::move(open)),
      reserved_(reserved),
      limits_(reserved_ ? service_->reserve_limits : service_->config.limits),
      socket_(std::move(socket)),
      secured_(!service_->tls),
      parser_(limits_),
      timer_(thread_->io) {
  ErrorCode ignored;
  const tcp::endpoint remote = socket_.remote_endpoint(ignored);
  remote_ = format_text("{}:{}", remote.address().to_string(), remote.port());
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(tcp::socket::keep_alive(true), ignored);  // of a client that is lost without a word
  using NotSentLowAt = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;
  socket_.set_option(NotSentLowAt(kSystemUnsentBytes), ignored);
  if (service_->tls) tls_.emplace(socket_, *service_->tls);
}

// Where the reserve is full, its oldest gives way: an urgent request takes a moment, an idle stranger stays.
void HttpConnection::start() {
  if (reserved_) {
    service_->reserve.push_back(this);
    if (service_->reserve.size() > HttpService::kReserve) service_->reserve.front()->cut();
  }
  set_deadline(Clock::now() + limits_.header_timeout);
  start_reading();
}

void HttpConnection::drain() {
  if (stage_ == Stage::kReading && !parser_.started()) close();
}

void HttpConnection::cut() {
  if (stage_ == Stage::kClosed) return;
  ErrorCode ignored;
  socket_.set_option(tcp::socket::linger(true, 0), ignored);  // a reset: nothing looks like a regular end
  close();
}

void HttpConnection::abort() {
  const std::lock_guard lock(mutex_);
  if (!closed_) cut_soon();
}

void HttpConnection::cut_soon() {
  asio::post(thread_->io, [self = shared_from_this()] { self->cut(); });
}

std::string HttpConnection::error_body(int status, const std::string& message,
                                       const std::string& target) const {
  if (service_->config.error_body) return service_->config.error_body(status, message, target);
  return R"({"error":{"message":")" + message + R"("}})";
}

template <typename Work>
auto HttpConnection::guarded(Work work) {
  return [self = shared_from_this(), work = std::move(work)](auto... results) mutable {
    try {
      work(*self, results...);
    } catch (const std::exception& e) {
      self->cut();
      log_error("connection of {}: {}", self->remote_, e.what());
    }
  };
}

// Reading.

void HttpConnection::start_reading() {
  if (reading_ || input_ended_) return;
  reading_ = true;
  asio::co_spawn(thread_->io, read_loop(),
                 guarded([](HttpConnection& /*self*/, const std::exception_ptr& error) {
                   if (error) std::rethrow_exception(error);
                 }));
}

// Ends when the connection does, and when there is no room: then the end of an answer starts it again.
asio::awaitable<void> HttpConnection::read_loop() {
  ErrorCode error;
  if (!secured_) {
    co_await tls_->async_handshake(asio::ssl::stream_base::server,
                                   asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      close();
      co_return;
    }
    secured_ = true;
  }
  bool through_tls = tls_.has_value();
  while (stage_ != Stage::kClosed) {
    if (stage_ == Stage::kClosing) input_.clear();
    const asio::mutable_buffer room = input_.room(limits_.max_header_bytes + kReadAheadBytes);
    if (room.size() == 0) {
      reading_ = false;
      co_return;
    }
    std::size_t n = 0;
    if (through_tls) {
      n = co_await tls_->async_read_some(room, asio::redirect_error(asio::use_awaitable, error));
    } else {
      n = co_await socket_.async_read_some(room, asio::redirect_error(asio::use_awaitable, error));
    }
    if (error && error != kCutOff && through_tls && stage_ == Stage::kClosing) {
      through_tls = false;  // it takes no more once it is shut down, but the client may still send
      continue;
    }
    if (error) {
      on_input_end(error != asio::error::eof && error != kCutOff);
      co_return;
    }
    input_.commit(n);
    process_input();
  }
}

// Without a reset it may have closed only its side; HttpServer says more. The wait ends with a reset that
// comes from now on, the poll tells of one that has come.
void HttpConnection::on_input_end(bool reset) {
  input_ended_ = true;
  if (reset || stage_ != Stage::kAnswering) return close();
  socket_.async_wait(tcp::socket::wait_error,
                     guarded([](HttpConnection& self, const ErrorCode&) { self.close(); }));
  pollfd state{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  if (::poll(&state, 1, 0) > 0) return close();
  if (const std::shared_ptr<HttpResponder> answer = answer_.lock()) answer->send_first_bytes();
}

void HttpConnection::process_input() {
  if (stage_ != Stage::kReading) return;
  try {
    input_.consume(parser_.feed(input_.view()));
  } catch (const HttpError& error) {
    return reserved_ ? refuse(503, kTooMany) : refuse(error.status, error.what());
  }
  if (reserved_ && parser_.in_body()) return refuse(503, kTooMany);
  if (!count_body()) return refuse(503, "too many request bodies are arriving; try again later");
  if (parser_.complete()) return dispatch();
  if (parser_.in_body()) {
    if (parser_.take_expect_continue()) output("HTTP/1.1 100 Continue\r\n\r\n", {}, {}, Then::kMore);
    set_deadline(Clock::now() + limits_.body_timeout);
  } else if (parser_.started() && !head_timed_) {
    head_timed_ = true;
    set_deadline(Clock::now() + limits_.header_timeout);
  }
}

bool HttpConnection::count_body() {
  const std::size_t more = parser_.body_bytes() - counted_body_;
  counted_body_ += more;
  return service_->body_bytes.fetch_add(more) + more <= limits_.max_total_body_bytes;
}

void HttpConnection::dispatch() {
  stage_ = Stage::kAnswering;
  set_deadline(Clock::time_point::max());
  const bool http11 = parser_.http11();
  const bool keep_alive = parser_.keep_alive();
  HttpRequest request = parser_.take();
  release_body();
  if (reserved_ && !(service_->config.is_urgent && service_->config.is_urgent(request)))
    return refuse(503, kTooMany);
  AnswerForm form{.body = request.method != "HEAD",
                  .chunked = http11,
                  .keep_alive = keep_alive && !reserved_,
                  .target = request.target};
  const auto answer = std::make_shared<HttpResponder>(shared_from_this(), std::move(form));
  answer_ = answer;
  try {
    service_->handler(std::move(request), answer);
  } catch (const std::exception& error) {
    log_error("request of {}: {}", remote_, error.what());
    answer->fail();
  }
}

void HttpConnection::refuse(int status, const std::string& message) {
  stage_ = Stage::kAnswering;
  refused_ = true;
  if (service_->config.on_refused) service_->config.on_refused(status);
  AnswerForm form{.keep_alive = false, .target = std::string(parser_.target())};
  parser_.take();  // what has come of the request is of no use while the connection closes
  release_body();
  HttpResponder(shared_from_this(), std::move(form)).fail(status, message);
}

// Writing.

void HttpConnection::output(std::string_view before, std::string body, std::string_view after, Then then) {
  const std::lock_guard lock(mutex_);
  if (closed_ || broken_) return;
  broken_ = true;  // what does not come to its end here cannot be gone on with
  try {
    if (unsent_bytes_ > limits_.max_unsent_bytes) return cut_soon();
    unsent_bytes_ += before.size() + body.size() + after.size();
    append_locked(before);
    if (body.size() <= kCopiedBytes) {
      append_locked(body);
    } else {
      pending_.push_back(std::move(body));
    }
    append_locked(after);
    if (then != Then::kMore) then_ = then;
    if (!scheduled_) {
      send_now_locked();
      scheduled_ = !pending_.empty() || then_ != Then::kMore;
      if (scheduled_) asio::post(thread_->io, guarded([](HttpConnection& self) { self.write_pending(); }));
    }
    broken_ = false;
  } catch (const std::exception& e) {
    cut_soon();
    log_error("connection of {}: {}", remote_, e.what());
  }
}

void HttpConnection::append_locked(std::string_view bytes) {
  if (bytes.empty()) return;
  if (pending_.empty() || pending_.back().size() >= kPieceBytes) pending_.emplace_back();
  pending_.back() += bytes;
}

// Nothing is under way. What is small, such as an event of a stream, goes to the system on the thread that
// wrote it: to wake the I/O thread costs several times as much. An error is left for that thread to meet.
void HttpConnection::send_now_locked() {
  if (tls_ || pending_.size() != 1 || pending_[0].size() > kPieceBytes) return;
  std::string& bytes = pending_[0];
  const ssize_t sent =
      ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent <= 0) return;
  unsent_bytes_ -= static_cast<std::size_t>(sent);
  bytes.erase(0, static_cast<std::size_t>(sent));
  if (bytes.empty()) pending_.clear();
}

void HttpConnection::write_pending() {
  if (stage_ == Stage::kClosed) return;
  Then then = Then::kMore;
  {
    const std::lock_guard lock(mutex_);
    in_flight_.clear();
    in_flight_.swap(pending_);
    if (in_flight_.empty()) {
      scheduled_ = false;
      then = std::exchange(then_, Then::kMore);
    }
  }
  if (in_flight_.empty()) return on_all_sent(then);
  in_flight_sent_ = 0;
  if (tls_) {
    start_write(*tls_);
  } else {
    start_write(socket_);
  }
}

template <typename Stream>
void HttpConnection::start_write(Stream& stream) {
  std::vector<asio::const_buffer> buffers;
  for (const std::string& piece : in_flight_) buffers.push_back(asio::buffer(piece));
  asio::async_write(
      stream, std::move(buffers),
      [this](const ErrorCode& error, std::size_t sent) {
        on_progress(sent);
        return error ? 0 : kWriteBytes;
      },
      guarded([](HttpConnection& self, const ErrorCode& error, std::size_t sent) {
        self.on_progress(sent);
        if (error) return self.close();
        self.write_pending();
      }));
}

// sent: of what is in flight, so far.
void HttpConnection::on_progress(std::size_t sent) {
  if (stage_ == Stage::kClosed) return;
  if (stage_ == Stage::kAnswering) set_deadline(Clock::now() + limits_.write_timeout);
  const std::lock_guard lock(mutex_);
  unsent_bytes_ -= sent - std::exchange(in_flight_sent_, sent);
}

void HttpConnection::on_all_sent(Then then) {
  if (stage_ != Stage::kAnswering) return;
  set_deadline(Clock::time_point::max());
  if (then == Then::kMore) return;
  answer_.reset();
  if (then == Then::kNextRequest && !service_->draining) {
    stage_ = Stage::kReading;
    head_timed_ = false;
    set_deadline(Clock::now() + limits_.idle_timeout);
    process_input();
    if (!input_ended_ || stage_ != Stage::kReading) return start_reading();
  }
  const bool input_left = !input_ended_ && (refused_ || !input_.view().empty());
  input_left || tls_ ? begin_close() : close();
}

// Closing.

// First this side alone: a client that still sends would get a reset, which could overtake the answer.
void HttpConnection::begin_close() {
  stage_ = Stage::kClosing;
  set_deadline(Clock::now() + limits_.linger_timeout);
  auto end_output = guarded([](HttpConnection& self, const ErrorCode& error) {
    if (error == kCutOff || self.input_ended_) return self.close();
    ErrorCode ignored;
    self.socket_.shutdown(tcp::socket::shutdown_send, ignored);
  });
  if (tls_) {
    tls_->async_shutdown(std::move(end_output));
  } else {
    end_output(ErrorCode());
  }
  start_reading();
}

void HttpConnection::close() {
  if (stage_ == Stage::kClosed) return;
  stage_ = Stage::kClosed;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    pending_.clear();
  }
  release_body();
  timer_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  thread_->connections.erase(self);
  if (reserved_) std::erase(service_->reserve, this);
  const std::shared_ptr<HttpResponder> answer = answer_.lock();
  if (answer) answer->disconnected();
  open_.reset();
}

// Deadlines. They move with almost every event; the timer is touched only to come earlier.

void HttpConnection::set_deadline(Clock::time_point deadline) {
  deadline_ = deadline;
  if (deadline_ < timer_at_) wait_for_deadline();
}

void HttpConnection::wait_for_deadline() {
  timer_at_ = deadline_;
  timer_.expires_at(deadline_);
  timer_.async_wait(guarded([](HttpConnection& self, const ErrorCode& error) {
    if (error || self.stage_ == Stage::kClosed) return;
    self.timer_at_ = Clock::time_point::max();
    if (Clock::now() >= self.deadline_) return self.on_deadline();
    if (self.deadline_ != Clock::time_point::max()) self.wait_for_deadline();
  }));
}

void HttpConnection::on_deadline() {
  if (stage_ != Stage::kReading) return cut();
  if (!parser_.started()) return close();
  refuse(408, "the request did not arrive in time");
}

}  // namespace quire::server
