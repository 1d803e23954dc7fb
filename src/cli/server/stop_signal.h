#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace quire::cli {

// SIGINT and SIGTERM end the program; without a handler the kernel would spare process 1 of a container.
// After arm() the first one ends wait(), a later one the program. One at a time.
class StopSignal {
 public:
  StopSignal() {
    event_ = ::eventfd(0, EFD_CLOEXEC);
    QUIRE_CHECK(event_ >= 0, "no eventfd");
    first_ = kLongAgo;
    struct sigaction action {};
    action.sa_handler = [](int signal) {
      const Ticks now = Clock::now().time_since_epoch().count();
      Ticks first = kNone;
      if (first_.compare_exchange_strong(first, now)) return raise();
      if (now - first > kOneSignal.count()) ::_exit(128 + signal);
    };
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
  }

  static void arm() { first_ = kNone; }
  // As if the first one had come.
  static void raise() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);
  }
  static void wait() {
    std::uint64_t count = 0;
    while (::read(event_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Ticks = Clock::rep;

  // Some send a signal twice: timeout(1) to its child and to its group, a terminal's shell beside it.
  static constexpr Clock::duration kOneSignal = std::chrono::milliseconds(100);
  static constexpr Ticks kNone = std::numeric_limits<Ticks>::max();
  static constexpr Ticks kLongAgo = std::numeric_limits<Ticks>::min() / 2;

  static inline int event_ = -1;
  static inline std::atomic<Ticks> first_{kLongAgo};  // when the first one came
};

}  // namespace quire::cli
