#pragma once

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>

namespace quire {

constexpr double kForever = std::numeric_limits<double>::infinity();

// Waits until `holds`, for `patience` seconds at most, not counting those in which this process did not run
// (it was stopped, or the machine was). Whether it holds.
template <typename Condition>
bool wait_patiently(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, double patience,
                    const Condition& holds) {
  constexpr std::chrono::duration<double> kTurn{0.1};
  for (int turns = 0; !changed.wait_for(lock, kTurn, holds); ++turns) {
    if (turns * kTurn.count() >= patience) return false;
  }
  return true;
}

}  // namespace quire
