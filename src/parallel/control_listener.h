#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "parallel/control_channel.h"

namespace quire {

// How the processes of one engine find each other: rank 0 listens and its invitation reaches the others by
// Processes::broadcast. Each side proves to the other that it knows the invitation. The connections are not
// encrypted, as those of MPI and NCCL are not: they are for a network that can be trusted.

struct ControlInvitation {
  ControlSecret follower_secret{};  // a follower's proof to rank 0
  ControlSecret leader_secret{};    // rank 0's proof to a follower
  std::uint16_t port = 0;
  std::vector<std::string> hosts;  // rank 0's addresses, in the order they are tried

  std::string text() const;
  // Error where the text is none.
  static ControlInvitation parse(const std::string& text);
};

// How long the processes wait for each other at the start.
inline constexpr std::chrono::seconds kJoinTimeout{30};

// Rank 0's side. Thread contract: one thread.
class ControlListener {
 public:
  // Listens on a free port, on loopback alone where all processes are on_one_host, else on all interfaces.
  // Error where that is not possible.
  explicit ControlListener(bool on_one_host = false);

  // What a follower has to know to join.
  std::string invitation() const { return invitation_.text(); }

  // Waits until ranks 1 to size - 1 have joined, once. Who does not prove within 5 s that it knows the
  // invitation is dropped and disturbs nobody. watchdog: seconds, of all processes; from 0.5 to 3600, else
  // Error. Error that names the ranks that have not joined in time. The port is closed afterwards.
  std::unique_ptr<ControlChannel> accept(int size, double watchdog = kDefaultWatchdog,
                                         std::chrono::milliseconds timeout = kJoinTimeout);

 private:
  ControlInvitation invitation_;
  Descriptor socket_;
};

// A follower's side: returns once all ranks have joined. Error that names the rank and the addresses that
// were tried: "rank 2 cannot reach rank 0 at 10.0.0.1:4711: connection refused".
std::unique_ptr<ControlChannel> join_control(const std::string& invitation, int rank,
                                             std::chrono::milliseconds timeout = kJoinTimeout);

}  // namespace quire
