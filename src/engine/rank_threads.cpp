// Ranks in threads of one process.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/threads.h"
#include "engine/ranks.h"
#include "parallel/thread_ranks.h"

namespace quire {
namespace {

// For a rank that is lost to end its thread.
constexpr std::chrono::seconds kLeavePatience{2};

// A rank, its thread, and the orders that it gets. Thread contract: one thread.
class RankThread {
 public:
  // Both are called on its thread. before_step: before each step; what it throws is that step's failure.
  // on_failure: where an order fails, with why, before it is answered; returns what to answer.
  RankThread(std::unique_ptr<Rank> rank, std::function<void()> before_step,
             std::function<std::string(const std::string&)> on_failure)
      : rank_(std::move(rank)),
        before_step_(std::move(before_step)),
        on_failure_(std::move(on_failure)),
        running_(std::async(std::launch::async, [this] { run(); })) {}
  ~RankThread() { send({}); }
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

  void send(const RankOrder& order) {
    change_and_wake(mutex_, changed_, [&] { orders_.push_back(order); });
  }

  // None: it takes longer than that.
  std::optional<RankAnswer> answer(double patience) {
    std::unique_lock lock(mutex_);
    wait_patiently(changed_, lock, patience, [this] { return answer_.has_value(); });
    return std::exchange(answer_, std::nullopt);
  }

  // Ends the thread, where it ends in time, and leaves the rank as it is: its device may still be at work.
  // Where it does not, on_failure is called no more.
  bool leave() {
    send({});
    const bool ended = running_.wait_for(kLeavePatience) == std::future_status::ready;
    const std::lock_guard calling(calling_);
    on_failure_ = {};
    [[maybe_unused]] const Rank* const left = ended ? rank_.release() : nullptr;
    return ended;
  }

 private:
  void run() noexcept {
    name_thread("quire-rank");
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !orders_.empty(); });
      const RankOrder order = std::move(orders_.front());
      orders_.pop_front();
      if (order.handler == nullptr) return;
      lock.unlock();
      RankAnswer answer = execute(order);
      lock.lock();
      if (order.is_answered()) answer_ = std::move(answer);
      changed_.notify_all();
    }
  }

  // A step that failed stays so until it is dropped.
  RankAnswer execute(const RankOrder& order) {
    if (order.handler == &Rank::drop) failure_.clear();
    if (!failure_.empty()) return {.error = failure_};
    RankAnswer answer;
    try {
      if (order.plan) before_step_();
      rank_->execute(order, answer);
    } catch (const std::exception& e) {
      rank_->abandon();
      const std::lock_guard calling(calling_);
      answer.error = on_failure_ ? on_failure_(what_of(e)) : what_of(e);
      if (!order.is_answered()) failure_ = answer.error;
    }
    return answer;
  }

  std::unique_ptr<Rank> rank_;  // the thread's
  std::string failure_;         // the thread's: of the step
  const std::function<void()> before_step_;
  std::mutex calling_;
  std::function<std::string(const std::string&)> on_failure_;  // guarded by calling_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RankOrder> orders_;      // guarded by mutex_
  std::optional<RankAnswer> answer_;  // guarded by mutex_: rank 0 takes one before it waits for the next
  std::future<void> running_;         // its end is that of the thread; last, for that uses what is above
};

class RankThreads : public RankGroup {
 public:
  // GPUs are taken one after the other.
  RankThreads(const EngineSetup& setup, BackendOptions device)
      : RankGroup(setup, device, [this](Backend&) { return meeting_->connect(0); }),
        meeting_(std::make_unique<ThreadRanks>(size())) {
    for (int rank = 1; rank < size(); ++rank) {
      device.place = rank;
      const auto connect = [this, rank](Backend&) { return meeting_->connect(rank); };
      threads_.push_back(std::make_unique<RankThread>(
          std::make_unique<Rank>(setup, device, connect),
          [&setup, rank] { setup.hooks.visit(EngineStage::kRank, static_cast<SequenceId>(rank)); },
          [this, rank](const std::string& why) { return on_failure(of_rank(rank, size(), why)); }));
    }
  }

  ~RankThreads() override {
    meeting_->fail("the engine ends");  // for a rank that waits in a step that was never whole
    if (broken_.empty()) {
      threads_.clear();
      own_.reset();
      return;
    }
    // GPUs may still be at work in what would be freed, and hold up who frees it.
    [[maybe_unused]] const Rank* const own = own_.release();
    bool all_left = true;
    for (auto& thread : threads_) {
      if (thread->leave()) continue;
      [[maybe_unused]] const RankThread* const lost = thread.release();
      all_left = false;
    }
    [[maybe_unused]] const ThreadRanks* const met = all_left ? nullptr : meeting_.release();
  }

  void on_lost(Listener listener) override { listener_ = std::move(listener); }

 protected:
  void send(const RankOrder& order) override try {
    for (const auto& thread : threads_) thread->send(order);
  } catch (...) {
    // Those that have it would wait for the others. A text so short takes no memory.
    meeting_->fail("not sent to all");
    throw;
  }

  RankAnswer answer(int rank, double patience) override {
    std::optional<RankAnswer> answer = threads_[rank - 1]->answer(patience);
    if (!answer) fail("rank {} of {} is lost: no answer for {:g} s", rank, size(), patience);
    return std::move(*answer);
  }

  std::string abandon(const std::string& why) override {
    if (failure_.empty()) failure_ = why;
    meeting_->fail(why);
    return in_its_step(failure_);
  }

  void reset() override {
    failure_.clear();
    meeting_->reset();
  }

  // What waits for another rank on a GPU cannot be taken back.
  bool can_repeat_steps() const override { return own_->backend().device() == DeviceKind::kCpu; }

 private:
  // On that rank's thread. Nobody waits for it. Where steps cannot be computed again, the ranks are lost.
  std::string on_failure(const std::string& why) {
    meeting_->fail(why);
    if (!survives_failures_ && listener_) listener_(in_its_step(why));
    return why;
  }

  std::unique_ptr<ThreadRanks> meeting_;
  std::string failure_;  // the first since reset()
  Listener listener_;
  std::vector<std::unique_ptr<RankThread>> threads_;  // ranks 1, 2, …; last, for they use what is above
};

}  // namespace

std::unique_ptr<RankGroup> start_rank_threads(const EngineSetup& setup) {
  BackendOptions device = device_options(setup.config);
  if (device.cpu_threads == 0)
    device.cpu_threads = std::max(1, usable_cores() / setup.config.tensor_parallel_size);
  return std::make_unique<RankThreads>(setup, device);
}

}  // namespace quire
