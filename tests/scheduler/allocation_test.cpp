// Memory runs out somewhere in a scheduler: no block and no sequence is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "allocations.h"
#include "scheduler/driver.h"

namespace quire::testing {
namespace {

// Drives a scheduler as the engine does, where one allocation of one call fails.
class FailingRun {
 public:
  FailingRun(const SchedulerConfig& config, int depth, int call, int nth)
      : scheduler_(config), runner_(config), depth_(depth), calls_left_(call), nth_(nth) {
    SequenceId id = 1;
    for (const int num_outputs : {1, 2, 1, 1}) {
      // The first one ends where the next one's tokens need more room.
      SequenceRequest request = Engine::request_of(20, id == 1 ? 9 : 40, 100 * static_cast<TokenId>(id));
      request.id = id;
      request.num_outputs = num_outputs;
      request.first_sibling = num_outputs > 1 ? id : 0;
      for (int i = 0; i < num_outputs; ++i, ++id, ++request.sampling.seed) {
        runner_.histories.emplace(id, History(request));
        ends_[id] = 0;
      }
      request.sampling.seed = 0;
      scheduler_.add(std::make_shared<SequenceRequest>(std::move(request)));
    }
  }

  // To the end of all sequences. False: the call has not as many allocations.
  bool run() {
    for (int i = 0; scheduler_.has_unfinished() || scheduler_.num_in_flight() > 0; ++i) {
      EXPECT_LT(i, 1000);
      if (i == 1000) break;
      std::vector<SequenceUpdate> updates;
      if (!step(updates)) {
        runner_.drop_all();
        updates = scheduler_.num_in_flight() > 0 ? scheduler_.fail_in_flight() : scheduler_.fail_all();
      }
      for (const SequenceUpdate& update : updates)
        ends_[update.id] += update.finish != FinishReason::kNone ? 1 : 0;
      for (const PlanningFailure& failure : scheduler_.take_planning_failures()) ++ends_[failure.id];
      scheduler_.check();
    }
    for (const auto& [id, count] : ends_) EXPECT_EQ(count, 1) << "ends of sequence " << id;
    EXPECT_EQ(scheduler_.stats().num_free_blocks, scheduler_.stats().num_blocks);
    EXPECT_EQ(scheduler_.stats().num_running + scheduler_.stats().num_waiting, 0);
    return failed_;
  }
  bool was_called() const { return calls_left_ < 0; }
  std::uint64_t num_saved() const { return scheduler_.stats().num_saved_blocks; }

 private:
  // False: there was no memory for it.
  bool step(std::vector<SequenceUpdate>& updates) {
    std::optional<StepPlan> plan;
    if (scheduler_.num_in_flight() < depth_ && !call([&] { plan = scheduler_.schedule(); })) return false;
    if (plan) runner_.submit(std::move(*plan));
    if (plan || runner_.num_in_flight() == 0) return true;
    StepResult result = runner_.collect();
    return call([&] { updates = scheduler_.apply(std::move(result)); });
  }

  template <typename Work>
  bool call(const Work& work) {
    bool done = false;
    const auto whole = [&] {
      work();
      done = true;
    };
    if (calls_left_-- == 0)
      failed_ = fails_at(nth_, whole);
    else
      whole();
    return done;
  }

  Scheduler scheduler_;
  FakeRunner runner_;
  std::map<SequenceId, int> ends_;
  int depth_, calls_left_, nth_;
  bool failed_ = false;
};

TEST(SchedulerAllocationTest, AFailedOneLosesNoBlockAndNoSequence) {
  if (!kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  SchedulerConfig config = small_config();
  config.max_num_seqs = 5;
  config.max_num_batched_tokens = 50;  // so that one is admitted while a step is in flight
  config.num_host_blocks = 8;
  int num_failed = 0;
  std::uint64_t num_saved = 0;
  const auto run_all = [&](int depth) {
    bool was_called = true;
    for (int call = 0; was_called; ++call) {
      bool failed = true;
      for (int nth = 1; failed; ++nth) {
        SCOPED_TRACE(std::to_string(depth) + " in flight, call " + std::to_string(call) + ", allocation " +
                     std::to_string(nth));
        FailingRun run(config, depth, call, nth);
        ASSERT_NO_THROW(failed = run.run());
        was_called = run.was_called();
        num_saved += run.num_saved();
        num_failed += failed ? 1 : 0;
      }
    }
  };
  for (const std::vector<int>& windows : {std::vector{0}, std::vector{0, 24}}) {
    config.layout.windows = windows;
    for (const int depth : {1, 2}) {
      for (const int num_rows : {11, 32}) {  // few: sequences are preempted, and blocks saved
        config.num_blocks = num_rows * static_cast<int>(windows.size());
        run_all(depth);
      }
    }
  }
  EXPECT_GT(num_failed, 100);
  EXPECT_GT(num_saved, 100U);
}

TEST(SchedulerAllocationTest, AFailedOneTellsOfEachForeseenTokenOrEndsItsSequence) {
  if (!kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  int num_ended = 0;
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    Engine engine(small_config());
    const SequenceId id = engine.add(20, 30);
    engine.submit();
    const std::vector<TokenId> tokens = engine.reference(id, 30);
    std::vector<SequenceUpdate> updates;
    failed = fails_at(nth, [&] { updates = engine.scheduler.foresee(id, std::span(tokens).first(20)); });
    for (SequenceUpdate& update : updates) engine.book(std::move(update));
    if (engine.outcomes[id].finish == FinishReason::kError) ++num_ended;
    engine.run();
    const std::vector<TokenId>& got = engine.outcomes[id].tokens;
    EXPECT_TRUE(std::ranges::equal(got, std::span(tokens).first(got.size())));
    EXPECT_EQ(engine.outcomes[id].finish == FinishReason::kLength, got.size() == tokens.size());
  }
  EXPECT_GT(num_ended, 0);
}

TEST(SchedulerObserverTest, OneThatThrowsIsToldOfNothingMoreAndChangesNothing) {
  struct Failing : SchedulerObserver {
    int left = 0;  // of what it is told without a fault
    int calls = 0;
    void tell() {
      ++calls;
      if (left-- == 0) throw std::bad_alloc();
    }
    void added(const SequenceRequest& /*request*/) override { tell(); }
    void planned(const StepPlan* /*plan*/, std::span<const PlanningFailure> /*failures*/) override { tell(); }
    void applied(const StepResult& /*result*/, std::span<const SequenceUpdate> /*updates*/) override {
      tell();
    }
  };
  for (int left = 0; left < 8; ++left) {
    Failing failing;
    failing.left = left;
    Failing other;
    other.left = 1000;
    SchedulerConfig config = small_config();
    config.observers = {&failing, &other};
    Engine engine(config);
    const SequenceId id = engine.add(20, 4);
    engine.run();
    EXPECT_EQ(engine.outcomes[id].finish, FinishReason::kLength);
    EXPECT_EQ(engine.outcomes[id].tokens, engine.reference(id, 4));
    EXPECT_EQ(failing.calls, left + 1);
    EXPECT_GE(other.calls, 9);
  }
}

}  // namespace
}  // namespace quire::testing
