#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/rank.h"
#include "parallel/control_channel.h"

namespace quire {

// How orders reach the other ranks, and answers to those that have one come back.

// "rank 1 of 4: WHY"
std::string of_rank(int rank, int size, const std::string& why);

// A rank in a thread of this process. Thread contract: one thread.
class ThreadLink {
 public:
  // Both are called on its thread. before_step, if any: before each step; what it throws is that step's
  // failure. on_failure: where an order fails, with why, before it is answered.
  ThreadLink(int rank, int size, std::unique_ptr<Rank> it, std::function<void()> before_step,
             std::function<void(const std::string&)> on_failure);
  ~ThreadLink();
  ThreadLink(const ThreadLink&) = delete;
  ThreadLink& operator=(const ThreadLink&) = delete;

  void send(const RankOrder& order);  // does not wait for the rank
  // To the oldest order not yet answered; waits for it. Its error names the rank. Error where it takes longer
  // than `patience` seconds, not counting those in which this process did not run.
  RankAnswer answer(double patience);
  // Ends the thread, where it ends in time, and leaves the rank as it is: its device may still be at work.
  // Where it does not, on_failure is called no more.
  bool leave(std::chrono::milliseconds patience);

 private:
  void run();
  RankAnswer execute(const RankOrder& order);

  const int rank_;
  const int size_;
  std::unique_ptr<Rank> it_;  // the thread's
  std::string failure_;       // the thread's: of the step
  const std::function<void()> before_step_;
  std::mutex calling_;
  std::function<void(const std::string&)> on_failure_;  // guarded by calling_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RankOrder> orders_;    // guarded by mutex_
  std::deque<RankAnswer> answers_;  // guarded by mutex_
  bool ended_ = false;              // guarded by mutex_
  std::thread thread_;
};

// To ranks in processes of their own. Error where a rank is lost.

// To all; Error where the order is too large, and then nobody has it.
void send_order(ControlChannel& channel, const RankOrder& order);
// As ThreadLink's.
RankAnswer receive_answer(ControlChannel& channel, int rank, double patience);
// The other end: does what rank 0 says until it says stop. `make` is called with the first order. Error where
// a step fails or a rank is lost; an order that is answered may fail, and the answer says so.
void follow_orders(ControlChannel& channel, const std::function<std::unique_ptr<Rank>()>& make);

}  // namespace quire
