#include "server/window/window_book.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "sanitized.h"
#include "scheduler/harness.h"

namespace quire::server {
namespace {

using testing::Harness;
using testing::Scenario;
using State = WindowSequence::State;

// A clock that goes on by itself.
struct Ticks {
  double now = 0;
  double operator()() { return now += 0.01; }
};

void expect_equal(const BlockPool& pool, const std::vector<WindowBlock>& blocks) {
  ASSERT_EQ(blocks.size(), static_cast<std::size_t>(pool.num_blocks()));
  for (BlockId id = 0; id < pool.num_blocks(); ++id)
    ASSERT_EQ(blocks[static_cast<std::size_t>(id)].holders, pool.ref_count(id)) << "block " << id;
}

bool is_alive(const WindowSequence& sequence) { return sequence.state != State::kEnded; }

// Makes a frame at every sixth event or so, and compares it with the scheduler, and the differences since the
// frame before with the frame anew.
class Checker final : public SchedulerObserver {
 public:
  Checker(std::uint64_t seed, WindowBook& book) : random_(seed), book_(book) {}
  void attach(const Scheduler& scheduler) { scheduler_ = &scheduler; }
  int num_frames = 0, num_preempted = 0, num_shared = 0, num_ended = 0, num_marks = 0, num_cached = 0;

  void added(const SequenceRequest& /*request*/) override { maybe(); }
  void aborted(SequenceId /*id*/) override { maybe(); }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
    if (plan != nullptr) {
      last_ = *plan;
      WindowApplied& step = planned_[plan->id];
      step.num_tokens = plan->num_tokens;
      for (const SequencePlan& sequence : plan->sequences) step.num_blocks += num_read(sequence);
    }
    maybe();
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> /*updates*/) override {
    applied_ = planned_.at(result.id);
    maybe();
  }
  void foreseen(SequenceId /*id*/, std::span<const SequenceUpdate> /*updates*/) override { maybe(); }
  void forked(SequenceId /*first*/, std::span<const BeamFork> /*forks*/) override { maybe(); }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override { maybe(); }

 private:
  // Blocks of its table with a position that its span attends to.
  std::int64_t num_read(const SequencePlan& plan) const {
    const CacheLayout& layout = scheduler_->config().layout;
    const BlockTable& table = scheduler_->sequences().at(plan.sequence).blocks.table;
    std::int64_t count = 0;
    for (int row = 0; row < table.size(); ++row) {
      for (std::size_t lane = 0; lane < layout.windows.size(); ++lane) {
        const int window = layout.windows[lane], first = row * layout.block_size;
        const int oldest = window == 0 ? 0 : plan.first_position - window + 1;
        if (table.row(row)[lane] != kNoBlock && first + layout.block_size > oldest &&
            first < plan.first_position + plan.num_tokens)
          ++count;
      }
    }
    return count;
  }
  void maybe() {
    if (random_() % 6 != 0 || ::testing::Test::HasFatalFailure()) return;
    ++num_frames;
    WindowFrame frame = book_.frame();
    check_patches(frame);
    check_blocks(frame);
    check_sequences(frame);
    EXPECT_EQ(frame.step.id, last_.id);
    EXPECT_EQ(frame.step.decisions, last_.decisions);
    EXPECT_EQ(frame.applied.num_tokens, applied_.num_tokens);
    EXPECT_EQ(frame.applied.num_blocks, applied_.num_blocks);
    num_marks += static_cast<int>(frame.marks.size());
    before_ = std::move(frame);
  }

  void check_patches(const WindowFrame& frame) {
    const Json anew = Json::parse(frame_patch(nullptr, frame));
    shown_.merge_patch(Json::parse(frame_patch(before_ ? &*before_ : nullptr, frame)));
    ASSERT_EQ(shown_, anew);
    EXPECT_EQ(anew["blocks"].size(), frame.blocks.size());
    EXPECT_EQ(anew["sequences"].size(), frame.sequences.size());
  }

  void check_blocks(const WindowFrame& frame) {
    const KvCache& cache = scheduler_->cache();
    expect_equal(cache.pool(), frame.blocks);
    expect_equal(cache.host_pool(), frame.host_blocks);
    expect_equal(cache.state_slots(), frame.slots);
    std::vector<int> num_holders(frame.blocks.size());
    const std::size_t num_lanes = scheduler_->config().layout.windows.size();
    for (const auto& [id, sequence] : scheduler_->sequences()) {
      const auto& table = frame.sequences.at(id).table;
      for (std::size_t i = 0; i < table.size(); ++i) {
        if (table[i] == kNoBlock) continue;
        const auto block = static_cast<std::size_t>(table[i]);
        if (num_holders[block]++ == 0) {
          ASSERT_EQ(frame.blocks[block].owner, id);
          ASSERT_EQ(frame.blocks[block].lane, static_cast<int>(i % num_lanes));
        }
      }
    }
    for (std::size_t block = 0; block < num_holders.size(); ++block) {
      ASSERT_EQ(frame.blocks[block].owner == 0, num_holders[block] == 0);
      num_shared += frame.blocks[block].holders > 1 ? 1 : 0;
      num_cached += frame.blocks[block].holders == 0 && frame.blocks[block].is_cached ? 1 : 0;
    }
  }

  void check_sequences(const WindowFrame& frame) {
    for (const auto& [id, sequence] : scheduler_->sequences()) {
      ASSERT_TRUE(frame.sequences.contains(id));
      const WindowSequence& shown = frame.sequences.at(id);
      EXPECT_EQ(shown.num_tokens, static_cast<int>(sequence.tokens().size()));
      EXPECT_EQ(shown.num_computed, sequence.num_planned());
      const bool waits = shown.state == State::kWaiting || shown.state == State::kPreempted;
      EXPECT_EQ(waits, sequence.state == SequenceState::kWaiting) << "sequence " << id;
      EXPECT_EQ(is_alive(shown), sequence.state != SequenceState::kRetiring) << "sequence " << id;
    }
    std::size_t num_kept = 0;
    for (const auto& [id, shown] : frame.sequences) {
      EXPECT_TRUE(!is_alive(shown) || scheduler_->sequences().contains(id));
      num_kept += is_alive(shown) ? 0 : 1;
      num_preempted += shown.state == State::kPreempted ? 1 : 0;
      num_ended += shown.end == "stop" || shown.end == "length" ? 1 : 0;
      for (std::size_t i = 1; i < shown.life.size(); ++i) {
        EXPECT_GE(shown.life[i].time, shown.life[i - 1].time);
        EXPECT_NE(shown.life[i].state, shown.life[i - 1].state);
        EXPECT_NE(shown.life[i - 1].state, State::kEnded);
      }
    }
    EXPECT_LE(num_kept, WindowBook::kEndedKept);
  }

  std::mt19937_64 random_;
  WindowBook& book_;
  const Scheduler* scheduler_ = nullptr;
  StepPlan last_;
  std::map<std::uint64_t, WindowApplied> planned_;
  WindowApplied applied_;
  std::optional<WindowFrame> before_;
  Json shown_ = Json::object();
};

TEST(WindowBookTest, FramesOfRandomSchedulesAreWhatTheSchedulerHasAndDifferencesAddUpToThem) {
  constexpr int kSchedules = testing::kSanitized ? 4 : 25;
  int num_frames = 0, num_preempted = 0, num_shared = 0, num_ended = 0, num_marks = 0, num_cached = 0;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(Scenario::kHeader + 4 * 300);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    Scenario scenario = *Scenario::parse(bytes);
    WindowBook book(Ticks{});
    Checker checker(seed, book);
    scenario.config.observers = {&book, &checker};
    Harness harness(scenario);
    book.attach(harness.scheduler());
    checker.attach(harness.scheduler());
    harness.run(scenario.operations);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << "\n" << scenario.describe();
    num_frames += checker.num_frames;
    num_preempted += checker.num_preempted;
    num_shared += checker.num_shared;
    num_ended += checker.num_ended;
    num_marks += checker.num_marks;
    num_cached += checker.num_cached;
  }
  EXPECT_GT(num_frames, 30 * kSchedules);
  EXPECT_GT(num_preempted, 4 * kSchedules);
  EXPECT_GT(num_shared, 4 * kSchedules);
  EXPECT_GT(num_ended, 4 * kSchedules);
  EXPECT_GT(num_marks, 4 * kSchedules);
  EXPECT_GT(num_cached, 4 * kSchedules);
}

class OneSeat : public ::testing::Test {
 protected:
  static Scenario scenario(WindowBook* book) {
    Scenario made;
    made.config.max_num_seqs = 1;
    made.config.max_num_batched_tokens = 8;
    made.config.max_model_len = 100;
    made.config.num_blocks = 8;
    if (book != nullptr) made.config.observers = {book};
    return made;
  }
  static SequenceRequest request(std::vector<TokenId> prompt) {
    SequenceRequest made;
    made.prompt = std::move(prompt);
    made.max_tokens = 3;
    made.sampling.seed = 3;
    return made;
  }
  static std::vector<State> states(const WindowSequence& sequence) {
    std::vector<State> all;
    for (const auto& moment : sequence.life) all.push_back(moment.state);
    return all;
  }

  double now_ = 0.5;
  WindowBook book_{[this] { return now_; }};
  Harness harness_{scenario(&book_)};
};

TEST_F(OneSeat, ALifeGoesFromItsPromptToItsEndAndSecondsCountWhatWasDone) {
  book_.attach(harness_.scheduler());
  harness_.add(request(std::vector<TokenId>(12, 40)), 1);
  harness_.add(request(std::vector<TokenId>(12, 41)), 1);
  EXPECT_TRUE(harness_.schedule());
  WindowFrame frame = book_.frame();
  EXPECT_EQ(frame.step.spans, (std::vector<WindowStep::Span>{{1, 8, true}}));
  EXPECT_EQ(frame.sequences.at(1).state, State::kPrompt);
  EXPECT_EQ(frame.sequences.at(2).state, State::kWaiting);
  ASSERT_EQ(frame.events.size(), 1U);
  EXPECT_EQ(frame.events[0].decision.kind, Decision::Kind::kAdmitted);

  harness_.apply();
  EXPECT_TRUE(harness_.schedule());
  const Decision waits = book_.frame().step.decisions.back();
  EXPECT_EQ(waits.sequence, 2U);
  EXPECT_EQ(waits.why, Decision::Why::kSeats);
  now_ = 0.75;
  harness_.apply();  // the first token, 0.25 s after it was added
  EXPECT_EQ(book_.frame().sequences.at(1).state, State::kDecoding);
  EXPECT_TRUE(harness_.schedule());
  EXPECT_EQ(book_.frame().step.spans, (std::vector<WindowStep::Span>{{1, 1, false}}));
  now_ = 0.875;
  harness_.apply();
  EXPECT_TRUE(book_.frame().seconds.empty());
  now_ = 2.5;
  frame = book_.frame();
  const WindowSecond second = frame.seconds.at(0);
  EXPECT_EQ(second.prompt_tokens, 12);
  EXPECT_EQ(second.output_tokens, 2);
  EXPECT_DOUBLE_EQ(second.first_token, 0.25);
  EXPECT_DOUBLE_EQ(second.between_tokens, 0.125);
  EXPECT_DOUBLE_EQ(second.busy, 0.375);
  EXPECT_DOUBLE_EQ(second.cache_use, 1.0 / 8);
  EXPECT_LT(frame.seconds.at(1).first_token, 0);
  EXPECT_DOUBLE_EQ(frame.seconds.at(1).cache_use, 1.0 / 8);

  harness_.drain();
  frame = book_.frame();
  EXPECT_EQ(states(frame.sequences.at(1)),
            (std::vector<State>{State::kWaiting, State::kPrompt, State::kDecoding, State::kEnded}));
  EXPECT_EQ(frame.sequences.at(1).end, "length");
  EXPECT_EQ(frame.sequences.at(2).num_prompt, 12);  // which no frame saw alive
  EXPECT_EQ(frame.sequences.at(2).num_tokens, 15);
}

TEST_F(OneSeat, AStepOfSeveralSecondsIsUnderWayInEachOfThem) {
  book_.attach(harness_.scheduler());
  harness_.add(request(std::vector<TokenId>(4, 40)), 1);
  EXPECT_TRUE(harness_.schedule());
  now_ = 3.25;
  harness_.apply();
  now_ = 5.5;
  const WindowFrame frame = book_.frame();
  const std::vector<double> shares = {0.5, 1, 1, 0.25, 0};
  for (std::size_t i = 0; i < shares.size(); ++i)
    EXPECT_DOUBLE_EQ(frame.seconds.at(static_cast<std::int64_t>(i)).busy, shares[i]) << "second " << i;
  harness_.drain();
}

// Of which the next ones are planned, with more or fewer tokens, before it is done.
TEST_F(OneSeat, WhatAStepTookAndWhatItReadAreOfTheSameStep) {
  const auto expect_applied = [&](double seconds, int num_tokens, std::int64_t num_blocks) {
    const WindowApplied applied = book_.frame().applied;
    EXPECT_DOUBLE_EQ(applied.seconds, seconds);
    EXPECT_EQ(applied.num_tokens, num_tokens);
    EXPECT_EQ(applied.num_blocks, num_blocks);
  };
  Harness harness(scenario(nullptr));
  harness.add(request(std::vector<TokenId>(20, 40)), 1);
  EXPECT_TRUE(harness.schedule());
  book_.attach(harness.scheduler());
  const_cast<Scheduler&>(harness.scheduler()).add_observer(&book_);
  EXPECT_TRUE(harness.schedule());
  now_ = 1;
  harness.apply();
  expect_applied(0, 0, 0);  // planned before the watching
  EXPECT_TRUE(harness.schedule());
  EXPECT_EQ(book_.frame().step.num_tokens, 4);
  now_ = 1.25;
  harness.apply();
  expect_applied(0.25, 8, 1);
  EXPECT_TRUE(harness.schedule());
  EXPECT_EQ(book_.frame().step.num_tokens, 1);
  now_ = 1.75;
  harness.apply();
  expect_applied(0.5, 4, 2);
  const_cast<Scheduler&>(harness.scheduler()).remove_observer(&book_);
  harness.drain();
}

TEST_F(OneSeat, WhoWatchesLaterSeesWhatIsThereAndWhatFollows) {
  Harness harness(scenario(nullptr));
  for (int i = 0; i < 2; ++i) harness.add(request(std::vector<TokenId>(20, 40)), 1);
  EXPECT_TRUE(harness.schedule());
  book_.attach(harness.scheduler());
  const_cast<Scheduler&>(harness.scheduler()).add_observer(&book_);
  WindowFrame frame = book_.frame();
  EXPECT_EQ(frame.sequences.at(1).state, State::kPrompt);
  EXPECT_EQ(frame.sequences.at(1).table.size(), 1U);
  EXPECT_EQ(frame.sequences.at(2).state, State::kWaiting);
  EXPECT_EQ(frame.step.id, 0U);
  harness.apply();
  EXPECT_TRUE(harness.schedule());
  EXPECT_EQ(book_.frame().step.id, 2U);
  const_cast<Scheduler&>(harness.scheduler()).remove_observer(&book_);
  harness.drain();
  EXPECT_EQ(book_.frame().step.id, 2U);
  EXPECT_EQ(book_.frame().sequences.at(1).state, State::kEnded);
}

// Each fork has one token more than the beam before it, whose id another fork may have by then.
TEST_F(OneSeat, ForksThatChangePlacesHaveOneTokenMoreEach) {
  book_.attach(harness_.scheduler());
  SequenceRequest search = request(std::vector<TokenId>(12, 40));
  search.id = 1;
  search.num_outputs = 2;
  book_.added(search);
  const std::vector<BeamFork> forks = {{2, 50}, {1, 51}};
  book_.forked(1, forks);
  const WindowFrame frame = book_.frame();
  EXPECT_EQ(frame.sequences.at(1).num_tokens, 13);
  EXPECT_EQ(frame.sequences.at(2).num_tokens, 13);
}

// All of it counts towards the pause that a window makes before it asks for the next one.
TEST_F(OneSeat, AFrameKnowsWhatTheMakingOfItTookAndDoesNotSendIt) {
  WindowBook book([this] { return now_ += 0.25; });
  book.attach(harness_.scheduler());
  const double begun = now_ + 0.25;
  const WindowFrame frame = book.frame();
  EXPECT_GT(frame.cost, 0);
  EXPECT_EQ(frame.cost, now_ - begun);
  WindowFrame other = frame;
  other.cost = 0;
  EXPECT_EQ(frame_patch(&other, frame), R"({"sequences":{},"seconds":{}})");
  EXPECT_EQ(frame_patch(nullptr, other), frame_patch(nullptr, frame));
}

TEST(FramePatchTest, SaysOnlyWhatDiffers) {
  WindowFrame frame;
  frame.blocks.resize(4);
  frame.sequences[7].table = {1, 2};
  WindowFrame next = frame;
  next.time = 1.5;
  next.blocks[2] = {.holders = 2, .is_cached = true, .lane = 1, .owner = 7};
  next.sequences[7].table = {1};
  next.sequences[7].text = "\"</script>\n";
  EXPECT_EQ(frame_patch(&frame, next),
            R"({"time":1.5,"blocks":{"2":[2,7,1,1]},"sequences":{"7":{"table":{"1":null},)"
            R"("text":"\"</script>\n"}},"seconds":{}})");
  EXPECT_EQ(frame_patch(&next, next), R"({"sequences":{},"seconds":{}})");
  next.sequences.clear();
  EXPECT_EQ(Json::parse(frame_patch(&frame, next))["sequences"], Json({{"7", nullptr}}));
}

}  // namespace
}  // namespace quire::server
