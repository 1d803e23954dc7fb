#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "inspect/bench.h"

namespace quire {

// A request for the logits at every position of some tokens, which come a step at a time. The engine shares
// it: another one's error may end what asked for it before it has all.
class ForcedRun {
 public:
  // paced: the engine waits where logits of two steps are not taken, until they are, or nobody will.
  static std::shared_ptr<ForcedRun> start(Engine& engine, std::vector<TokenId> tokens, bool paced = false) {
    auto run = std::make_shared<ForcedRun>();
    run->under_way_ = std::min(kUnderWay, tokens.size());
    EngineRequest request = sized_request(std::move(tokens), 1);
    request.prompt_logits = true;
    request.on_update = [run](const RequestUpdate& update) { run->put(update); };
    if (paced) engine.observe_steps([run](const StepRecord&) { run->wait_for_taker(); });
    engine.submit(std::move(request));
    return run;
  }

  void wait_until_under_way() {
    wait([this] { return num_put_ >= under_way_ || finished_; });
  }
  // [n, vocab] of the next positions; waits for them. Empty: there are no more.
  std::vector<float> take() {
    const auto lock = wait([this] { return !steps_.empty() || finished_; });
    if (!error_.empty()) fail("{}", error_);
    if (steps_.empty()) return {};
    std::vector<float> logits = std::move(steps_.front());
    steps_.pop_front();
    changed_.notify_all();
    return logits;
  }
  // [tokens, vocab]
  std::vector<float> take_all() {
    std::vector<float> all;
    for (std::vector<float> next = take(); !next.empty(); next = take())
      all.insert(all.end(), next.begin(), next.end());
    return all;
  }
  // Nobody takes the rest.
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr std::size_t kUnderWay = 5;  // steps after which it counts as that, or all
  static constexpr std::size_t kMostHeld = 2;  // steps

  template <typename Condition>
  std::unique_lock<std::mutex> wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
    return lock;
  }
  // As a step of the engine ends. First what the steps before it brought must be here; if one brought nothing
  // that takes a second.
  void wait_for_taker() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(1), [this] { return num_put_ >= num_ended_ || finished_; });
    num_ended_ = num_put_ + 1;
    changed_.wait(lock, [this] { return steps_.size() < kMostHeld || given_up_; });
  }
  void put(const RequestUpdate& update) {
    const std::lock_guard lock(mutex_);
    if (!update.logits.empty() && !given_up_) steps_.push_back(update.logits);
    ++num_put_;
    finished_ = update.finished;
    error_ = update.output.error;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::vector<float>> steps_;
  std::size_t num_put_ = 0, num_ended_ = 0, under_way_ = 0;
  bool finished_ = false, given_up_ = false;
  std::string error_;
};

}  // namespace quire
