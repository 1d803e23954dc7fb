#include "parallel/control_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/error.h"

namespace quire {
namespace {

constexpr int kBacklog = 1024;  // connections that wait to be accepted

// Where a socket is bound or connected to: IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }

  template <typename T>
  static SocketAddress from(const T& address) {
    SocketAddress result;
    std::memcpy(&result.storage, &address, sizeof(T));
    result.length = sizeof(T);
    return result;
  }
};

// Of a numeric host; length 0 where it is none.
SocketAddress parse_address(const std::string& host, std::uint16_t port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) return SocketAddress::from(v4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) return SocketAddress::from(v6);
  return {};
}

Descriptor tcp_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set_option(const Descriptor& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof(value));
}

// Orders are small and each is waited for.
void send_at_once(const Descriptor& socket) { set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

// A socket that listens on every interface, or none with errno set.
Descriptor listen_on(SocketAddress address) {
  Descriptor socket = tcp_socket(address.family());
  if (!socket) return {};
  if (address.family() == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), address.get(), address.length) != 0) return {};
  if (::listen(socket.get(), kBacklog) != 0) return {};
  return socket;
}

std::uint16_t port_of(const Descriptor& socket) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  QUIRE_CHECK(getsockname(socket.get(), address.get(), &address.length) == 0);
  sockaddr_in v4{};  // the port lies at the same place in both
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  std::memcpy(&v4, &address.storage, sizeof(v4));
  return ntohs(v4.sin_port);
}

}  // namespace

std::string system_error_text(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z') text[0] = static_cast<char>(text[0] - 'A' + 'a');
  return text;
}

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? format_text("{}:{}", host, port)
                                             : format_text("[{}]:{}", host, port);
}

std::vector<std::string> own_addresses(bool with_ipv6) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("this machine's addresses cannot be read: {}", system_error_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<std::string> groups[4];  // IPv4, IPv6, then those of the loopback
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    char text[INET6_ADDRSTRLEN] = "";
    if (family == AF_INET) {
      sockaddr_in address{};
      std::memcpy(&address, entry->ifa_addr, sizeof(address));
      inet_ntop(family, &address.sin_addr, text, sizeof(text));
    } else if (family == AF_INET6 && with_ipv6) {
      sockaddr_in6 address{};
      std::memcpy(&address, entry->ifa_addr, sizeof(address));
      if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) continue;
      inet_ntop(family, &address.sin6_addr, text, sizeof(text));
    } else {
      continue;
    }
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    groups[(loopback ? 2 : 0) + (family == AF_INET6 ? 1 : 0)].emplace_back(text);
  }
  std::vector<std::string> addresses;
  for (const auto& group : groups) addresses.insert(addresses.end(), group.begin(), group.end());
  return addresses;
}

ListeningSocket listen_on_all_interfaces() {
  sockaddr_in6 v6{};  // zeros: any interface, any port
  v6.sin6_family = AF_INET6;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  ListeningSocket result;
  result.socket = listen_on(SocketAddress::from(v6));
  result.ipv6 = static_cast<bool>(result.socket);
  if (!result.socket) result.socket = listen_on(SocketAddress::from(v4));
  if (!result.socket) fail("this process cannot listen for its peers: {}", system_error_text(errno));
  result.port = port_of(result.socket);
  return result;
}

Descriptor accept_connection(const Descriptor& listener) {
  Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) {
    send_at_once(socket);
    return socket;
  }
  // Network errors of a connection that has already gone come out of accept, too.
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    fail("this process cannot accept its peers: {}", system_error_text(errno));
  return socket;
}

ConnectAttempt connect_to(const std::string& host, std::uint16_t port, ControlClock::time_point deadline) {
  const SocketAddress address = parse_address(host, port);
  if (address.length == 0) return {{}, EINVAL};
  ConnectAttempt attempt{tcp_socket(address.family()), 0};
  if (!attempt.socket) return {{}, errno};
  const int fd = attempt.socket.get();
  if (::connect(fd, address.get(), address.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return {{}, errno};
    if (!wait_for(fd, POLLOUT, deadline)) return {{}, ETIMEDOUT};
    socklen_t length = sizeof(attempt.error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &attempt.error, &length);
    if (attempt.error != 0) return {{}, attempt.error};
  }
  send_at_once(attempt.socket);
  return attempt;
}

int poll_timeout(ControlClock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - ControlClock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

bool wait_for(int fd, short events, ControlClock::time_point deadline) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int timeout = poll_timeout(deadline);
    const int ready = ::poll(&entry, 1, timeout);
    if (ready > 0) return true;
    if (ready == 0 && timeout == 0) return false;
    QUIRE_CHECK(ready == 0 || errno == EINTR, "poll: {}", system_error_text(errno));
  }
}

std::string read_exactly(int fd, std::span<std::byte> bytes, ControlClock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (n == 0) {
      return "it closed the connection";
    } else if (errno != EAGAIN && errno != EINTR) {
      return system_error_text(errno);
    } else if (!wait_for(fd, POLLIN, deadline)) {
      return "it does not answer";
    }
  }
  return {};
}

bool write_all(int fd, std::array<std::span<const std::byte>, 3> parts) {
  while (true) {
    std::array<iovec, parts.size()> vectors{};
    std::size_t left = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
      left += parts[i].size();
    }
    if (left == 0) return true;
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN) {
        wait_for(fd, POLLOUT, ControlClock::now() + std::chrono::seconds(1));
      } else if (errno != EINTR) {
        return false;
      }
      continue;
    }
    auto written = static_cast<std::size_t>(n);
    for (auto& part : parts) {
      const std::size_t of_part = std::min(written, part.size());
      part = part.subspan(of_part);
      written -= of_part;
    }
  }
}

std::size_t write_some(int fd, std::span<const std::byte> bytes) {
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

}  // namespace quire
