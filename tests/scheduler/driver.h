#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/fake_runner.h"
#include "scheduler/scheduler.h"

namespace quire::testing {

inline SchedulerConfig small_config() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 256;
  config.layout.block_size = 8;
  config.num_blocks = 32;
  config.hash_seed = 1;
  return config;
}

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<float> logits;
  FinishReason finish = FinishReason::kNone;
  int num_cached_tokens = 0;
};

// A scheduler and a fake runner, as the engine drives them.
class Engine {
 public:
  explicit Engine(const SchedulerConfig& config, int depth = 1)
      : scheduler(config), runner(config), depth_(depth) {}

  SequenceId add(SequenceRequest request) {
    request.id = ++last_id_;
    runner.histories.emplace(request.id, History(request));
    scheduler.add(std::make_shared<SequenceRequest>(std::move(request)));
    return last_id_;
  }
  SequenceId add(int num_prompt, int max_tokens) { return add(request_of(num_prompt, max_tokens)); }

  static SequenceRequest request_of(int num_prompt, int max_tokens, TokenId first = 100) {
    SequenceRequest request;
    request.prompt.resize(static_cast<std::size_t>(num_prompt));
    std::iota(request.prompt.begin(), request.prompt.end(), first);
    request.max_tokens = max_tokens;
    return request;
  }

  std::optional<StepPlan> submit() {
    auto plan = scheduler.schedule();
    if (plan) runner.submit(*plan);
    return plan;
  }
  void apply() {
    for (SequenceUpdate& update : scheduler.apply(runner.collect())) book(std::move(update));
    scheduler.check();
  }
  void book(SequenceUpdate update) {
    Outcome& outcome = outcomes[update.id];
    ASSERT_EQ(outcome.finish, FinishReason::kNone) << "an update after the end";
    if (update.token) outcome.tokens.push_back(*update.token);
    outcome.logits.insert(outcome.logits.end(), update.logits.begin(), update.logits.end());
    outcome.finish = update.finish;
    outcome.num_cached_tokens = update.num_cached_tokens;
  }
  // Returns the number of steps until nothing is left.
  int run() {
    int num_steps = 0;
    while (scheduler.has_unfinished() || runner.num_in_flight() > 0) {
      if (runner.num_in_flight() < depth_ && submit())
        ++num_steps;
      else
        apply();
      EXPECT_LT(num_steps, 10000);
    }
    EXPECT_EQ(scheduler.stats().num_free_blocks, scheduler.stats().num_blocks);
    return num_steps;
  }
  // What the request gets alone.
  std::vector<TokenId> reference(SequenceId id, int num_tokens) {
    History& history = runner.histories.at(id);
    std::vector<TokenId> tokens;
    for (int i = 0; i < num_tokens; ++i) tokens.push_back(history.token(history.num_prompt() + i));
    return tokens;
  }

  Scheduler scheduler;
  FakeRunner runner;
  std::map<SequenceId, Outcome> outcomes;

 private:
  int depth_;
  SequenceId last_id_ = 0;
};

inline std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace quire::testing
