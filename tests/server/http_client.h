#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace quire::server {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before one was whole
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunked coding
  bool whole = false;                          // false: it ended in the body
};

// A plain socket to 127.0.0.1. Waits at most 60 s for anything.
class HttpClient {
 public:
  // receive_buffer: bytes the system keeps for it; 0: as the system likes.
  explicit HttpClient(std::uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
  }
  ~HttpClient() { close(); }
  HttpClient(HttpClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), input_(std::move(other.input_)) {}
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  int fd() const { return fd_; }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void end_output() { ::shutdown(fd_, SHUT_WR); }

  // False: the connection has ended.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  // Reads until `text` has come and returns all up to its end; empty when the connection ends before.
  std::string read_until(std::string_view text) {
    for (;;) {
      const std::size_t at = input_.find(text);
      if (at != std::string::npos) return take(at + text.size());
      if (!read_more()) return {};
    }
  }
  std::string read_to_end() {
    while (read_more()) {
    }
    return std::exchange(input_, {});
  }
  // Whether the connection ends within the time; what comes before is dropped.
  bool ends_within(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !readable(left)) return false;
      if (!receive()) return true;
    }
  }

  // The next answer. to_head: it has no body.
  HttpReply read_reply(bool to_head = false) {
    HttpReply reply;
    const std::string head = read_until("\r\n\r\n");
    if (head.empty()) return reply;
    reply.status = std::stoi(head.substr(9, 3));
    std::size_t at = head.find("\r\n") + 2;
    while (at + 2 < head.size()) {
      const std::size_t end = head.find("\r\n", at);
      const std::size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      reply.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    read_body(reply, to_head);
    return reply;
  }

 private:
  void read_body(HttpReply& reply, bool to_head) {
    if (to_head || reply.status < 200 || reply.status == 204) {
      reply.whole = true;
    } else if (reply.headers.count("transfer-encoding")) {
      for (;;) {
        const std::string size = read_until("\r\n");
        if (size.empty()) return;
        const std::size_t n = std::stoul(size, nullptr, 16);
        if (!read_at_least(n + 2)) return;
        const std::string chunk = take(n + 2);
        if (n == 0) break;
        reply.body += chunk.substr(0, n);
      }
      reply.whole = true;
    } else if (reply.headers.count("content-length")) {
      const std::size_t n = std::stoul(reply.headers["content-length"]);
      reply.whole = read_at_least(n);
      reply.body = take(std::min(n, input_.size()));
    } else {
      reply.body = read_to_end();
      reply.whole = true;
    }
  }

  bool read_at_least(std::size_t n) {
    while (input_.size() < n)
      if (!read_more()) return false;
    return true;
  }
  std::string take(std::size_t n) {
    std::string text = input_.substr(0, n);
    input_.erase(0, n);
    return text;
  }
  bool readable(std::chrono::milliseconds limit) const {
    pollfd poll{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, static_cast<int>(limit.count())) == 1;
  }
  bool read_more() {
    if (!readable(std::chrono::seconds(60))) throw std::runtime_error("nothing came for 60 s");
    return receive();
  }
  bool receive() {
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    input_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }

  int fd_;
  std::string input_;  // came, and not yet taken
};

}  // namespace quire::server
