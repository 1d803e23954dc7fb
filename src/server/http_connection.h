#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "server/http_server.h"
#include "server/request_parser.h"

namespace quire::server {

namespace asio = boost::asio;
using asio::ip::tcp;

class HttpConnection;

// What the connections of one server share. They and their answers may outlive the server.
struct HttpService {
  HttpServerConfig config;
  HttpLimits reserve_limits;  // of connections beyond the limit
  HttpHandler handler;
  std::optional<asio::ssl::context> tls;
  std::atomic<bool> draining{false};
  std::atomic<std::size_t> body_bytes{0};  // of the requests that are being read
  // Connections beyond the limit, the oldest first; at most kReserve. All are on the first I/O thread, which
  // alone touches this.
  std::deque<HttpConnection*> reserve;
  static constexpr std::size_t kReserve = 32;

  std::mutex mutex;  // of what follows
  struct {
    std::size_t ordinary = 0, beyond_limit = 0;
    std::size_t all() const { return ordinary + beyond_limit; }
  } open;  // connections
  std::condition_variable closed_one;
};

// A connection counts among its service's open ones until this is gone.
using OpenConnection = std::shared_ptr<void>;

// One thread and the connections that live on it.
struct IoThread {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{io.get_executor()};
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;  // touched on the thread alone
};

// Bytes that came and were not yet looked at, with room behind them for a read. Unlike Beast's buffers, it
// may be consumed while one is under way.
class InputBuffer {
 public:
  std::string_view view() const { return {data_.data() + begin_, end_ - begin_}; }
  void consume(std::size_t n) { begin_ += n; }
  void commit(std::size_t n) { end_ += n; }
  void clear() { begin_ = end_ = 0; }
  // Moves what there is, so not during a read. No room: it holds max_bytes.
  asio::mutable_buffer room(std::size_t max_bytes);

 private:
  std::vector<char> data_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

// What follows once the bytes given out so far are sent.
enum class Then { kMore, kNextRequest, kClose };

// A client: reads requests, hands them to the handler one at a time, sends what their answers put out. A read
// is always pending, so that a client that goes is noticed at once.
//
// Threads: everything belongs to the I/O thread, but for output, abort, may_stay_open, error_body and remote.
// output also sends, unless closed_, so the socket is closed only after that is set.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // reserved: it is beyond the limit, for one urgent request.
  HttpConnection(std::shared_ptr<HttpService> service, std::shared_ptr<IoThread> thread, tcp::socket socket,
                 OpenConnection open, bool reserved);

  void start();
  void drain();  // closes where no request has begun
  void cut();    // the client sees a reset

  // Appends to what is to be sent, and sees to it that it is.
  void output(std::string_view before, std::string body, std::string_view after, Then then);
  void abort();  // cut(), soon
  bool may_stay_open() const { return !service_->draining; }
  std::string error_body(int status, const std::string& message, const std::string& target) const;
  const std::string& remote() const { return remote_; }  // "ADDRESS:PORT" of the client

 private:
  enum class Stage {
    kReading,    // a request, or waiting for one
    kAnswering,  // one; what is read is kept for later
    kClosing,    // all is sent; what is read is dropped until the client closes too
    kClosed
  };
  using Clock = std::chrono::steady_clock;

  // Reading.
  // A handler that does `work`. What that throws, for want of memory say, ends the connection.
  template <typename Work>
  auto guarded(Work work);

  void start_reading();
  asio::awaitable<void> read_loop();
  void on_input_end(bool reset);
  void process_input();
  bool count_body();  // false: together with the others' it is too large
  void release_body() { service_->body_bytes -= std::exchange(counted_body_, 0); }
  void dispatch();
  void refuse(int status, const std::string& message);

  // Writing.
  void append_locked(std::string_view bytes);
  void send_now_locked();
  void write_pending();
  template <typename Stream>
  void start_write(Stream& stream);
  void on_progress(std::size_t sent);
  void on_all_sent(Then then);

  void cut_soon();
  void begin_close();
  void close();
  void set_deadline(Clock::time_point deadline);
  void wait_for_deadline();
  void on_deadline();

  const std::shared_ptr<IoThread> thread_;  // the first member: its io_context outlives the others
  const std::shared_ptr<HttpService> service_;
  OpenConnection open_;
  const bool reserved_;
  const HttpLimits& limits_;
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  std::string remote_;

  Stage stage_ = Stage::kReading;
  bool secured_ = false;  // after the TLS handshake, or without TLS
  bool reading_ = false;  // the read loop runs
  bool input_ended_ = false;
  bool refused_ = false;     // the rest of its input is not wanted
  bool head_timed_ = false;  // the deadline is that of the head
  InputBuffer input_;
  RequestParser parser_;
  std::size_t counted_body_ = 0;  // in the service's body_bytes
  std::weak_ptr<HttpResponder> answer_;

  asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point timer_at_ = Clock::time_point::max();  // the timer's: never after the deadline

  std::vector<std::string> in_flight_;
  std::size_t in_flight_sent_ = 0;

  std::mutex mutex_;  // of what follows
  std::vector<std::string> pending_;
  std::size_t unsent_bytes_ = 0;  // pending and in flight
  Then then_ = Then::kMore;
  bool scheduled_ = false;  // write_pending will run, or runs when what is in flight is sent
  bool broken_ = false;     // it takes no more output, and is about to be cut
  bool closed_ = false;
};

}  // namespace quire::server
