// Invariants that are checked while the engine serves.
#include "engine/invariant_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "expect_error.h"
#include "record/recording.h"
#include "temp_dir.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::future<CompletionOutput> submit_prompt(Engine& engine) {
  return testing::submit_output(engine, testing::request_of(testing::golden_ids("qwen3", "prompt.0")));
}

// Where recordings go that are written when something fails.
class InvariantChecksTest : public ::testing::Test {
 protected:
  InvariantChecksTest() { ::setenv("TMPDIR", folder_.path().c_str(), 1); }
  ~InvariantChecksTest() override { ::unsetenv("TMPDIR"); }

  std::vector<std::filesystem::path> recordings() const {
    std::vector<std::filesystem::path> found;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path()))
      if (file.path().extension() == ".rec") found.push_back(file.path());
    return found;
  }
  static EngineConfig checked(std::int64_t every) {
    EngineConfig config = testing::golden_config("qwen3");
    config.check_invariants = every;
    return config;
  }
  // An engine whose fifth check finds this.
  static EngineHooks broken(const std::string& what, std::atomic<int>& checks) {
    EngineHooks hooks;
    hooks.fault = [what, &checks](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kCheck && ++checks == 5) QUIRE_CHECK(checks < 5, "{}", what);
    };
    return hooks;
  }

  TempDir folder_;
};

TEST_F(InvariantChecksTest, WhereContentsMayMixNothingMoreIsTold) {
  for (const char* what :
       {"1: block 3 is lost", "2: x", "3: x", "4: x", "5, 6: x", "6: x", "16: x", "18: x", "20"}) {
    SCOPED_TRACE(what);
    std::atomic<int> checks = 0;
    const EngineConfig config = checked(1);
    Engine engine(config, open_model(config.model), broken(what, checks));
    std::promise<std::string> lost;
    engine.on_lost([&](const std::string& why) { lost.set_value(why); });
    const CompletionOutput output = submit_prompt(engine).get();
    EXPECT_EQ(output.finish_reason, FinishReason::kError);
    EXPECT_EQ(output.token_ids.size(), 5U);
    EXPECT_THAT(output.error, HasSubstr(what));
    EXPECT_THAT(lost.get_future().get(), HasSubstr(what));
    EXPECT_FALSE(engine.healthy());
    EXPECT_EQ(submit_prompt(engine).get().finish_reason, FinishReason::kError);
    EXPECT_EQ(checks, 5);
    EXPECT_EQ(engine.stats().broken_invariants, 1U);
  }
  // Each engine wrote its own, within a second under one name.
  ASSERT_FALSE(recordings().empty());
  EXPECT_NO_THROW(Recording(recordings()[0].string()));
}

TEST_F(InvariantChecksTest, OthersAreCountedAndTheEngineGoesOn) {
  for (const char* what : {"7: x", "9", "10: x", "11: x", "14, 17: x", "17: x", "no number"}) {
    SCOPED_TRACE(what);
    std::atomic<int> checks = 0;
    const EngineConfig config = checked(1);
    Engine engine(config, open_model(config.model), broken(what, checks));
    const CompletionOutput output = submit_prompt(engine).get();
    EXPECT_EQ(output.finish_reason, FinishReason::kLength);
    EXPECT_EQ(output.token_ids, testing::golden_ids("qwen3", "greedy.0"));
    EXPECT_TRUE(engine.healthy());
    EXPECT_EQ(engine.stats().broken_invariants, 1U);
    EXPECT_GE(checks, 23);  // the last step is told before it is checked
  }
  EXPECT_FALSE(recordings().empty());
}

// Not by a hook: a block that a sequence is to get has a reference that nobody knows of.
TEST_F(InvariantChecksTest, AReferenceTooManyIsFoundInARunningEngine) {
  const EngineConfig config = checked(1);
  Engine engine(config);
  engine.look(
      [](Scheduler& scheduler) { (void)const_cast<BlockPool&>(scheduler.cache().pool()).allocate(); });
  const CompletionOutput output = submit_prompt(engine).get();
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_THAT(output.error, ::testing::ContainsRegex("2: block [0-9]+ has 1 references"));
  EXPECT_FALSE(engine.healthy());
}

TEST_F(InvariantChecksTest, TheyAreCheckedAfterSoManySteps) {
  const TimePoint now = TimePoint::clock::now();
  InvariantChecks never(0), third(3);
  int due = 0;
  for (int step = 1; step <= 9; ++step) {
    EXPECT_FALSE(never.is_due(now));
    if (third.is_due(now)) ++due;
    EXPECT_EQ(due, step / 3);
  }
  expect_error([] { InvariantChecks wrong(-2); }, {"check-invariants is -2"});
}

TEST_F(InvariantChecksTest, UnlessToldOtherwiseTheyTakeLessThanAThousandthOfTheTime) {
  InvariantChecks checks(-1);
  EXPECT_TRUE(checks.is_due(TimePoint::clock::now()));
  const TimePoint begin = TimePoint::clock::now();
  EXPECT_TRUE(checks.check([] { std::this_thread::sleep_for(5ms); }).what.empty());
  const auto taken = TimePoint::clock::now() - begin;
  EXPECT_FALSE(checks.is_due(begin + 1000 * std::chrono::milliseconds(5)));
  EXPECT_TRUE(checks.is_due(begin + 2002 * taken));
  EXPECT_EQ(checks.num_broken(), 0U);
}

}  // namespace
}  // namespace quire
