// Every order in which three requests can be added, planned, applied and aborted, up to a depth, with so few
// blocks that they preempt each other.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "scheduler/driver.h"
#include "scheduler/harness.h"

namespace quire::testing {
namespace {

struct Case {
  std::string name;
  SchedulerConfig config;
  int depth = 1;                          // steps in flight at most
  std::vector<SequenceRequest> requests;  // in the order in which they may be added
  int num_outputs = 1;                    // of the first request
};

// In four blocks of 8 tokens the first and the last begin side by side, and one of them is preempted.
std::vector<SequenceRequest> three_requests() {
  std::vector<SequenceRequest> requests = {Engine::request_of(3, 20), Engine::request_of(16, 2),
                                           Engine::request_of(5, 20)};
  for (int i = 0; i < 3; ++i) requests[static_cast<std::size_t>(i)].priority = 2 - i;  // the last goes first
  return requests;
}

Case make_case(const std::string& name, int depth, bool caching, SchedulingPolicy policy, int num_outputs) {
  Case result{name, small_config(), depth, three_requests(), num_outputs};
  result.config.num_blocks = 4;
  result.config.max_num_seqs = 3;
  result.config.max_num_batched_tokens = 12;
  result.config.enable_prefix_caching = caching;
  result.config.policy = policy;
  result.config.hash_bits = 1;
  return result;
}

Case with_host_blocks(Case result) {
  result.name += "_swapping";
  result.config.num_host_blocks = 2;
  return result;
}

// Fixed states behind every block, in as few slots as there are seats, or in one.
Case with_states(Case result, int num_slots) {
  result.name += format_text("_states_in_{}", num_slots);
  result.config.layout.state_interval = result.config.layout.block_size;
  result.config.num_state_slots = num_slots;
  if (result.config.num_host_blocks > 0) result.config.num_host_state_slots = 1;
  return result;
}

// The first prompt takes five blocks, of which four hold a window and a step at most.
Case with_window(Case result) {
  result.name += "_window";
  result.config.layout.windows.front() = 9;
  const int priority = result.requests[0].priority;
  result.requests[0] = Engine::request_of(36, 4);
  result.requests[0].priority = priority;
  return result;
}

// The first request takes two steps for its prompt, and may be preempted between them.
Case with_pooling(Case result) {
  result.name += "_pooling";
  const int priority = result.requests[0].priority;
  result.requests[0] = Engine::request_of(16, 1);
  result.requests[0].priority = priority;
  result.requests[0].prompt_output = OutputKind::kHiddenMean;
  result.requests[2].prompt_output = OutputKind::kLastHidden;
  return result;
}

class ExhaustiveTest : public ::testing::TestWithParam<Case> {
 protected:
  enum Kind { kAdd, kSchedule, kApply, kAbort, kLose };
  struct Action {
    Kind kind;
    SequenceId id = 0;  // to abort
  };

  // The state after the actions; false: the last one did nothing, and what follows is explored elsewhere.
  bool replay(Harness& harness, std::size_t& num_added) const {
    bool acted = true;
    for (const Action& action : path_) {
      switch (action.kind) {
        case kAdd:
          harness.add(GetParam().requests[num_added], num_added == 0 ? GetParam().num_outputs : 1);
          ++num_added;
          break;
        case kSchedule:
          acted = harness.schedule();
          break;
        case kApply:
          harness.apply();
          break;
        case kLose:
          harness.fail_in_flight();
          break;
        case kAbort:
          harness.abort(action.id);
          break;
      }
    }
    harness.check();
    return acted;
  }

  void explore(int num_actions) {
    ++num_states_;
    Harness harness(Scenario{GetParam().config, GetParam().depth, {}});
    std::size_t num_added = 0;
    const bool acted = replay(harness, num_added);
    if (!acted || num_actions == 0) {
      harness.drain();  // from here everything ends
      num_preemptions_ += harness.stats().num_preemptions;
      return;
    }
    std::vector<Action> next;
    if (num_added < GetParam().requests.size()) next.push_back({kAdd});
    if (harness.num_in_flight() < GetParam().depth) next.push_back({kSchedule});
    if (harness.num_in_flight() > 0) next.insert(next.end(), {{kApply}, {kLose}});
    for (SequenceId id = 1; id <= 4; ++id)
      if (harness.is_alive(id)) next.push_back({kAbort, id});
    for (const Action& action : next) {
      path_.push_back(action);
      explore(num_actions - 1);
      path_.pop_back();
    }
  }

  std::string path() const {
    std::string text;
    for (const Action& action : path_)
      text +=
          format_text(" {}{}", "aspxl"[action.kind], action.kind == kAbort ? std::to_string(action.id) : "");
    return text;
  }

  std::vector<Action> path_;
  int num_states_ = 0;
  std::uint64_t num_preemptions_ = 0;
};

TEST_P(ExhaustiveTest, EveryOrderKeepsEveryInvariant) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
  constexpr const char* kActions = "8";
#else
  constexpr const char* kActions = "9";
#endif
  const char* wanted = std::getenv("QUIRE_EXHAUSTIVE_ACTIONS");
  try {
    explore(std::stoi(wanted != nullptr ? wanted : kActions));
  } catch (const std::exception& e) {
    FAIL() << e.what() << "\nadd, schedule (s), apply (p), abort (x), lose (l):" << path();
  }
  print_text(stdout, "{} states, {} preemptions\n", num_states_, num_preemptions_);
  EXPECT_GT(num_preemptions_, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ExhaustiveTest,
    ::testing::Values(
        make_case("plain", 1, false, SchedulingPolicy::kFcfs, 1),
        make_case("in_flight", 2, false, SchedulingPolicy::kFcfs, 1),
        make_case("prefix_caching", 2, true, SchedulingPolicy::kFcfs, 1),
        make_case("priorities", 2, true, SchedulingPolicy::kPriority, 1),
        make_case("siblings", 2, true, SchedulingPolicy::kFcfs, 2),
        with_pooling(with_host_blocks(make_case("priorities", 2, true, SchedulingPolicy::kPriority, 1))),
        with_host_blocks(make_case("in_flight", 2, false, SchedulingPolicy::kFcfs, 1)),
        with_host_blocks(make_case("siblings", 2, false, SchedulingPolicy::kPriority, 2)),
        make_case("siblings_with_priorities", 2, false, SchedulingPolicy::kPriority, 2),
        with_window(make_case("in_flight", 2, false, SchedulingPolicy::kFcfs, 1)),
        with_window(make_case("prefix_caching", 2, true, SchedulingPolicy::kPriority, 1)),
        with_window(with_host_blocks(make_case("siblings", 2, true, SchedulingPolicy::kPriority, 2))),
        with_states(make_case("prefix_caching", 2, true, SchedulingPolicy::kFcfs, 1), 1),
        with_states(with_host_blocks(make_case("siblings", 2, true, SchedulingPolicy::kPriority, 2)), 3)),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::testing
