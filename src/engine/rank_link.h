#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/rank.h"
#include "parallel/control_channel.h"
#include "parallel/thread_ranks.h"

namespace quire {

// "rank 1 of 4: WHY"
std::string of_rank(int rank, int size, const std::string& why);

// Another rank, as rank 0 sees it: orders go there, and answers to those that have one come back. Thread
// contract: one thread.
class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual void send(const RankOrder& order) = 0;  // does not wait for the rank
  // To the oldest order not yet answered; waits for it. Its error names the rank.
  virtual RankAnswer answer() = 0;
};

// A rank in a thread of this process. Where it fails in a step, the ranks' meeting fails.
class ThreadLink final : public RankLink {
 public:
  // `meeting` must outlive it.
  ThreadLink(int rank, int size, std::unique_ptr<Rank> it, ThreadRanks& meeting);
  ~ThreadLink() override;
  void send(const RankOrder& order) override;
  RankAnswer answer() override;

 private:
  void run();
  RankOrder next_order();
  RankAnswer execute(const RankOrder& order);

  const int rank_;
  const int size_;
  const std::unique_ptr<Rank> it_;  // the thread's
  std::string failure_;             // the thread's: of the step
  ThreadRanks& meeting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RankOrder> orders_;    // guarded by mutex_
  std::deque<RankAnswer> answers_;  // guarded by mutex_
  std::thread thread_;
};

// A rank in a process of its own, which runs follow_orders. Error of every call where a rank is lost.
class ProcessLink final : public RankLink {
 public:
  // `channel` must outlive it.
  ProcessLink(int rank, ControlChannel& channel) : rank_(rank), channel_(channel) {}
  void send(const RankOrder& order) override;
  RankAnswer answer() override;

 private:
  const int rank_;
  ControlChannel& channel_;
};

// Why a rank was lost: what it said itself, if it could.
std::string describe(const Loss& loss, ControlChannel& channel);

// The other end: does what rank 0 says until it says stop. Error where a step fails or a rank is lost; an
// order that is answered may fail, and the answer says so.
void follow_orders(Rank& rank, ControlChannel& channel);

}  // namespace quire
