#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "base/threads.h"
#include "engine/request.h"
#include "scheduler/scheduler.h"

namespace quire {

// What other threads have the engine's do, and how many requests wait for their first step, in here or in the
// scheduler. Thread contract: any thread may call any method, but as is said.
class Mailbox {
 public:
  using Task = std::function<void()>;
  struct Load {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;  // that they count as

    Load operator+(Load more) const { return {requests + more.requests, tokens + more.tokens}; }
  };

  // What may wait; 0: any number. Error where one is negative.
  explicit Mailbox(Load limits) : limits_(limits) {
    constexpr const char* kNegative = "{} is {}; it must be at least 1, or 0 for no limit";
    if (limits.requests < 0) fail(kNegative, kRequestsFlag, limits.requests);
    if (limits.tokens < 0) fail(kNegative, kTokensFlag, limits.tokens);
  }

  void post(Task task) {
    change_and_wake(mutex_, wake_, [&] { tasks_.push_back(std::move(task)); });
  }
  // A task that brings requests. QueueFullError where they have no room beside what waits; however much it
  // is, an empty queue takes it. `make` gives the task where there is room, before anybody can take it;
  // nothing fails behind it.
  template <typename Make>
  void post(Load requests, const Make& make) {
    std::list<Task> task(1);
    change_and_wake(mutex_, wake_, [&] {
      check_room(requests);
      task.front() = make();
      tasks_.splice(tasks_.end(), task);
      waiting_ = waiting_ + requests;
      posted_ = posted_ + requests;
    });
  }
  // Lets the engine's thread look for what it waits for beside tasks. Needs no memory.
  void wake() {
    change_and_wake(mutex_, wake_, [this] { is_woken_ = true; });
  }
  void close() {
    change_and_wake(mutex_, wake_, [this] { closed_ = true; });
  }

  // Of the engine's thread: what waits in the scheduler, which knows all that was taken.
  void count(const SchedulerStats& stats) {
    const std::lock_guard lock(mutex_);
    waiting_ = posted_ + Load{stats.num_queued_requests, stats.num_queued_tokens};
  }
  // Of the engine's thread: all tasks; waits for one or wake(), if it is to, until then at most. None: it is
  // closed.
  std::optional<std::list<Task>> take(bool wait, std::optional<TimePoint> until) {
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return closed_ || is_woken_ || !tasks_.empty(); };
    if (wait && until)
      wake_.wait_until(lock, *until, is_over);
    else if (wait)
      wake_.wait(lock, is_over);
    if (closed_) return std::nullopt;
    posted_ = {};
    is_woken_ = false;
    return std::exchange(tasks_, {});
  }

 private:
  static constexpr const char* kRequestsFlag = "max-num-queued-reqs";
  static constexpr const char* kTokensFlag = "max-num-queued-tokens";

  void check_room(Load more) const {
    if (waiting_.requests == 0) return;
    const Load all = waiting_ + more;
    using Limit = QueueFullError::Limit;
    constexpr const char* kFull =
        "the queue is full: {} {} wait, and {} is {}, too few for {} more; try again later";
    if (limits_.requests > 0 && all.requests > limits_.requests)
      throw QueueFullError(Limit::kRequests, format_text(kFull, waiting_.requests, "requests", kRequestsFlag,
                                                         limits_.requests, more.requests));
    if (limits_.tokens > 0 && all.tokens > limits_.tokens)
      throw QueueFullError(Limit::kPromptTokens, format_text(kFull, waiting_.tokens, "tokens", kTokensFlag,
                                                             limits_.tokens, more.tokens));
  }

  const Load limits_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Task> tasks_;  // guarded by mutex_
  Load posted_;            // guarded by mutex_: with tasks_
  Load waiting_;           // guarded by mutex_: these, and those in the scheduler
  bool is_woken_ = false;  // guarded by mutex_
  bool closed_ = false;    // guarded by mutex_
};

}  // namespace quire
