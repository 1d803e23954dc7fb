#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace quire {

using ControlClock = std::chrono::steady_clock;

// The text of an errno, as the end of a sentence: "connection refused".
std::string system_error_text(int error);

// "10.0.0.1:4711", "[::1]:4711"
std::string endpoint_text(const std::string& host, std::uint16_t port);

// The addresses of this machine's interfaces that are up. Those that mean this machine alone come last; those
// that need an interface's name beside them (fe80::) are left out, for that name is another elsewhere.
std::vector<std::string> own_addresses(bool with_ipv6);

struct ListeningSocket {
  Descriptor socket;  // does not block
  std::uint16_t port = 0;
  bool ipv6 = false;  // else IPv4 alone
};
// On a free port of all interfaces. Error where there is no network at all.
ListeningSocket listen_on_all_interfaces();

// A connection that is not waiting and does not block; none where nobody asks. Error where it cannot be had.
Descriptor accept_connection(const Descriptor& listener);

struct ConnectAttempt {
  Descriptor socket;  // does not block
  int error = 0;      // errno where there is no connection; ETIMEDOUT where it took too long
};
ConnectAttempt connect_to(const std::string& host, std::uint16_t port, ControlClock::time_point deadline);

// Until one of the poll events is there; false at the deadline.
bool wait_for(int fd, short events, ControlClock::time_point deadline);

// What poll takes for the time until then: milliseconds, rounded up.
int poll_timeout(ControlClock::time_point deadline);

// Fills `bytes`. Returns what came in between, or nothing: "it closed the connection", "it does not answer".
std::string read_exactly(int fd, std::span<std::byte> bytes, ControlClock::time_point deadline);

// Writes all the parts, one after the other, and waits as long as that takes; shutdown() ends the wait. False
// where the connection takes no more.
bool write_all(int fd, std::array<std::span<const std::byte>, 3> parts);

// Writes as much as goes at once: how many bytes that were.
std::size_t write_some(int fd, std::span<const std::byte> bytes);

}  // namespace quire
