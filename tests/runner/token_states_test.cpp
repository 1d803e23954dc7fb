// What penalties and allowed tokens must know of a seat's new owner gets to a device that is late.
#include "runner/token_states.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "allocations.h"
#include "backends/cpu/reference/reference_backend.h"
#include "ops/logits_batches.h"

namespace quire {
namespace {

// Does nothing before it is waited for.
class LateBackend : public ReferenceBackend {
 public:
  void copy(const Tensor& dst, const Tensor& src) override {
    queue_.push_back([this, dst, src] { ReferenceBackend::copy(dst, src); });
  }
  void set_token_states(const Tensor& seat_states, const Tensor& entries) override {
    queue_.push_back(
        [this, seat_states, entries] { ReferenceBackend::set_token_states(seat_states, entries); });
  }
  void wait(Event) override {
    ++num_waits;
    for (const auto& op : std::exchange(queue_, {})) op();
  }

  int num_waits = 0;

 private:
  std::vector<std::function<void()>> queue_;
};

class TokenStatesTest : public ::testing::Test {
 protected:
  static constexpr int kVocab = 50'000;
  static constexpr int kSeats = 4;

  static RuntimeConfig make_config() {
    RuntimeConfig config;
    config.spec.vocab_size = kVocab;
    config.max_num_seqs = kSeats;
    return config;
  }

  // With penalties, and a prompt of `num_tokens` different tokens from the seat's number on; every third seat
  // allows but two tokens.
  static SequencePlan make_plan(int seat, int num_tokens) {
    SequencePlan plan;
    plan.seat = seat;
    plan.start = SamplingState();
    plan.start->presence_penalty = 1;
    if (seat % 3 == 2) plan.start->allowed_ids = {seat, seat + 1};
    for (int i = 0; i < num_tokens; ++i) plan.history.push_back(seat + i);
    plan.num_prompt = num_tokens - 1;  // the last one is output
    return plan;
  }

  void expect_states_of(const SequencePlan& plan) { expect_states_of(plan, states_); }
  static void expect_states_of(const SequencePlan& plan, const TokenStates& of) {
    const Tensor row = of.tensor().rows(plan.seat, 1);
    const auto* states = row.data_as<const std::uint16_t>();
    for (TokenId id = 0; id < kVocab; ++id) {
      const int place = id - plan.seat;
      std::uint16_t expected = 0;
      if (place >= 0 && place < plan.num_prompt) expected = token_state::kInPrompt;
      if (place == plan.num_prompt) expected = 1;
      if (!plan.start->allowed_ids.empty() && (place < 0 || place > 1)) expected |= token_state::kForbidden;
      ASSERT_EQ(states[id], expected) << "seat " << plan.seat << ", token " << id;
    }
  }

  LateBackend backend_;
  RuntimeConfig config_ = make_config();
  Workspace workspace_{backend_, 1};
  TokenStates states_{backend_, config_, workspace_};
};

TEST_F(TokenStatesTest, SequencesThatStartInStepsInFlightWaitForNothing) {
  const int num_waits = backend_.num_waits;
  std::vector<SequencePlan> plans;
  for (int seat = 0; seat < kSeats; ++seat) plans.push_back(make_plan(seat, 9'000 + seat));
  for (int step = 0; step < kMaxStepsInFlight; ++step) {
    states_.begin_step();
    for (int i = 0; i < 2; ++i) states_.start(plans[static_cast<std::size_t>(2 * step + i)]);
  }
  EXPECT_EQ(backend_.num_waits, num_waits);
  backend_.wait(backend_.record());
  for (const SequencePlan& plan : plans) expect_states_of(plan);
}

TEST_F(TokenStatesTest, MoreThanAStepHasRoomForIsWrittenInParts) {
  std::vector<SequencePlan> plans;
  for (int seat = 0; seat < kSeats; ++seat) plans.push_back(make_plan(seat, 40'000 + seat));
  states_.begin_step();
  for (const SequencePlan& plan : plans) states_.start(plan);
  backend_.wait(backend_.record());
  for (const SequencePlan& plan : plans) expect_states_of(plan);
}

TEST_F(TokenStatesTest, AStartWithoutMemoryLeavesNothingToTheNextOne) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  const SequencePlan first = make_plan(0, 3'000), second = make_plan(1, 3'000);
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    LateBackend backend;
    Workspace workspace(backend, 1);
    TokenStates states(backend, config_, workspace);
    states.begin_step();
    failed = testing::fails_at(nth, [&] { states.start(first); });
    backend.wait(backend.record());
    states.begin_step();
    states.start(second);
    backend.wait(backend.record());
    expect_states_of(second, states);
  }
}

}  // namespace
}  // namespace quire
