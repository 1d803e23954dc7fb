#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <limits>
#include <mutex>
#include <vector>

namespace quire {

constexpr double kForever = std::numeric_limits<double>::infinity();

// Waits until `holds`, for `patience` seconds at most, not counting those in which this process did not run
// (it was stopped, or the machine was). Whether it holds.
template <typename Condition>
bool wait_patiently(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, double patience,
                    const Condition& holds) {
  constexpr std::chrono::duration<double> kTurn{0.1};
  for (int turns = 0; !changed.wait_for(lock, kTurn, holds); ++turns)
    if (turns * kTurn.count() >= patience) return false;
  return true;
}

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
  void heard(int rank, Clock::time_point now) { heard_[rank] = now; }
  // When that rank has been silent for too long.
  Clock::time_point deadline(int rank) const { return heard_[rank] + limit_; }

 private:
  Clock::duration limit_;
  Clock::time_point last_turn_;
  std::vector<Clock::time_point> heard_;
};

}  // namespace quire
