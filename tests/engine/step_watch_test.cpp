// A step that does not end is noticed: what waits is told, and the process can end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "expect_error.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kWatchdog = 0.05;  // a stuck step is noticed after 12 times as long

std::future<CompletionOutput> submit_golden(Engine& engine) {
  return testing::submit_output(engine, testing::request_of(testing::golden_ids("qwen3", "prompt.0")));
}

CompletionOutput get(std::future<CompletionOutput> output) {
  if (output.wait_for(30s) == std::future_status::ready) return output.get();
  ADD_FAILURE() << "a request has not ended";
  return {};
}

EngineConfig watched(double watchdog = kWatchdog) {
  EngineConfig config = testing::golden_config("qwen3");
  config.watchdog = watchdog;
  return config;
}

// Stops the engine's thread wherever it is, as SIGSTOP would a process, until it is told to go on.
class StoppedThread {
 public:
  StoppedThread() {
    struct sigaction action {};
    action.sa_handler = [](int) {
      while (stopped_) ::usleep(1000);
    };
    ::sigaction(SIGUSR1, &action, &before_);
    stopped_ = true;
    ::syscall(SYS_tgkill, ::getpid(), thread_named("quire-engine"), SIGUSR1);
  }
  ~StoppedThread() {
    go_on();
    ::sigaction(SIGUSR1, &before_, nullptr);
  }
  void go_on() { stopped_ = false; }

 private:
  static int thread_named(const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string found;
      std::getline(std::ifstream(task.path() / "comm"), found);
      if (found == name) return std::stoi(task.path().filename().string());
    }
    return 0;
  }

  static inline std::atomic<bool> stopped_{false};
  struct sigaction before_ {};
};

TEST(StepWatchTest, AStoppedOpEndsWhatWaitsAndNamesStepAndOp) {
  // It is stopped in the third step, or on a busy machine in one of those behind it.
  EngineHooks hooks;
  std::atomic<int> steps = 0;
  hooks.fault = [&](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kSubmit && ++steps > 3) std::this_thread::sleep_for(10ms);
  };
  const EngineConfig config = watched();
  Engine engine(config, open_model(config.model), hooks);
  std::promise<std::string> lost;
  engine.on_lost([&](const std::string& why) { lost.set_value(why); });
  auto output = submit_golden(engine);
  while (steps < 3) {
  }
  StoppedThread stopped;
  auto why = lost.get_future();
  ASSERT_EQ(why.wait_for(30s), std::future_status::ready);
  const std::string said = why.get();
  EXPECT_THAT(said, ::testing::ContainsRegex("^step [0-9]+ is stuck: nothing has moved for 0.6 s"));
  EXPECT_THAT(said, HasSubstr("the last op that was begun is "));
  EXPECT_THAT(said, Not(HasSubstr("begun is none")));
  EXPECT_FALSE(engine.healthy());
  const CompletionOutput ended = get(std::move(output));
  EXPECT_EQ(ended.finish_reason, FinishReason::kError);
  EXPECT_EQ(ended.error, said);
  const CompletionOutput later = get(submit_golden(engine));
  EXPECT_EQ(later.finish_reason, FinishReason::kError);
  EXPECT_THAT(later.error, HasSubstr("stuck"));
  // Should it go on after all, nothing is computed any more.
  stopped.go_on();
  EXPECT_EQ(get(submit_golden(engine)).finish_reason, FinishReason::kError);
}

TEST(StepWatchTest, AnEngineThatHasNothingToDoIsNotStuck) {
  Engine engine(watched());
  std::this_thread::sleep_for(1200ms);
  EXPECT_TRUE(engine.healthy());
  EXPECT_EQ(get(submit_golden(engine)).finish_reason, FinishReason::kLength);
}

TEST(StepWatchTest, ASlowStepIsNotStuckWhereTheWatchdogIsPatient) {
  EngineHooks hooks;
  std::atomic<int> steps = 0;
  hooks.fault = [&](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kSubmit && ++steps == 3) std::this_thread::sleep_for(1200ms);
  };
  const EngineConfig config = watched(0.5);
  Engine engine(config, open_model(config.model), hooks);
  EXPECT_EQ(get(submit_golden(engine)).finish_reason, FinishReason::kLength);
  EXPECT_TRUE(engine.healthy());
}

// The thread cannot be joined: it hangs for ever.
TEST(StepWatchDeathTest, AStuckThreadDoesNotKeepTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    EngineHooks hooks;
    hooks.fault = [](EngineStage stage, SequenceId) {
      while (stage == EngineStage::kSubmit) ::usleep(1000);
    };
    const EngineConfig config = watched();
    Engine engine(config, open_model(config.model), hooks);
    get(submit_golden(engine));
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(1), "step 1 is stuck.*the process ends: its engine is stuck");
}

TEST(StepWatchTest, AWatchdogThatNeverWaitsIsRefused) {
  for (const double wrong : {0.0, -1.0, std::nan("")})
    expect_error([&] { Engine engine(watched(wrong)); }, {"watchdog is"});
}

}  // namespace
}  // namespace quire
