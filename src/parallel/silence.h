#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace quire {

// Who has not been heard of for too long, from times alone. Thread contract: one thread.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  Silence(int size, Clock::duration limit, Clock::time_point now)
      : limit_(limit), last_turn_(now), heard_(static_cast<std::size_t>(size), now) {}

  // Opens a turn of the watchdog, before it reads what has come. Where its own process did not run for long
  // (it was stopped, or the machine was), that it heard nothing means nothing: every peer gets a new limit.
  void begin_turn(Clock::time_point now) {
    if (now - last_turn_ > limit_ / 2) heard_.assign(heard_.size(), now);
    last_turn_ = now;
  }
  void heard(int rank, Clock::time_point now) { heard_[static_cast<std::size_t>(rank)] = now; }
  // When that rank has been silent for too long.
  Clock::time_point deadline(int rank) const { return heard_[static_cast<std::size_t>(rank)] + limit_; }

 private:
  Clock::duration limit_;
  Clock::time_point last_turn_;
  std::vector<Clock::time_point> heard_;
};

}  // namespace quire
