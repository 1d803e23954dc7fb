#include "engine/step_watch.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/threads.h"

namespace quire {

StepWatch::StepWatch(const Backend& backend, double watchdog, std::function<void(const std::string&)> stuck)
    : backend_(backend), watchdog_(watchdog), tell_(std::move(stuck)) {
  if (!(watchdog > 0)) fail("watchdog is {:g} s; it must be over 0", watchdog);
  thread_ = std::thread([this] { run(); });
}

StepWatch::~StepWatch() {
  change_and_wake(mutex_, changed_, [this] { closing_ = true; });
  thread_.join();
}

void StepWatch::submit(const StepPlan& plan) {
  awaited_ = 0;
  newest_ = plan.id;
  num_tokens_ = plan.num_tokens;
  num_sequences_ = static_cast<int>(plan.sequences.size());
}

void StepWatch::engine_ends() {
  change_and_wake(mutex_, changed_, [this] { ended_ = true; });
}

bool StepWatch::wait_ended() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_; });
}

// An op of many tokens takes a CPU long; a device is waited for as a whole, and is fast.
double StepWatch::patience() const {
  const int more = backend_.asynchronous() ? 0 : num_tokens_ / kTokensAtOnce;
  return watchdog_ * kStuck * (1 + more);
}

void StepWatch::run() {
  constexpr std::chrono::milliseconds kLook{100};
  name_thread("quire-step-watch");
  std::uint64_t turn = 0, ops = 0;
  double waited = 0;  // seconds, in looks: while the process is stopped there is none
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return closing_; })) {
    const std::uint64_t turn_now = turn_, ops_now = backend_.num_ops();
    const bool moves = turn_now != turn || ops_now != ops;
    turn = turn_now;
    ops = ops_now;
    waited = turn % 2 == 1 && !moves ? waited + std::chrono::duration<double>(kLook).count() : 0;
    if (waited < patience()) continue;
    stuck_ = true;
    lock.unlock();
    tell_(describe());
    return;
  }
}

std::string StepWatch::describe() const {
  const std::uint64_t awaited = awaited_;
  const std::string step = format_text("step {}", awaited > 0 ? awaited : newest_.load());
  const std::string op = backend_.asynchronous()
                             ? std::string("the device does not say in which op it is")
                             : format_text("the last op that was begun is {}", backend_.last_op());
  return format_text(
      "{} is stuck: nothing has moved for {:g} s; of the newest step, {} sequences and {} tokens; {}", step,
      patience(), num_sequences_.load(), num_tokens_.load(), op);
}

}  // namespace quire
