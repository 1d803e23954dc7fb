// Beams of a search: sequences that are held after each token, until they are forked.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>

#include "scheduler/driver.h"

namespace quire::testing {
namespace {

// Searches whose choice of beams and tokens is random, beside plain requests, on a fake runner that finds
// every key that is not the sequence's own.
class Searches {
 public:
  Searches(const SchedulerConfig& config, int depth, std::uint32_t seed)
      : scheduler(with_fault(config)), runner(config), depth_(depth), random_(seed) {}

  SequenceId add(int width, int num_prompt, int max_tokens, int priority = 0) {
    SequenceRequest request = Engine::request_of(num_prompt, max_tokens);
    request.id = next_id_;
    request.first_sibling = width > 0 ? request.id : 0;
    request.beam_width = width;
    request.priority = priority;
    next_id_ += static_cast<SequenceId>(std::max(width, 1));
    runner.histories.insert_or_assign(request.id, History(request));
    if (width > 0) searches.emplace(request.id, Search{{request.prompt}, 1, static_cast<std::size_t>(width)});
    const int room = scheduler.add(std::make_shared<SequenceRequest>(request));
    if (width > 0) searches.at(request.id).max_tokens = room;
    scheduler.check();
    return request.id;
  }

  bool step() {
    if (runner.num_in_flight() < depth_) {
      auto plan = scheduler.schedule();
      if (end_unplanned() && !plan) return true;
      if (plan) {
        num_copies += plan->block_copies.size();
        runner.submit(*plan);
        scheduler.check();
        return true;
      }
    }
    if (runner.num_in_flight() == 0) return false;
    for (const SequenceUpdate& update : scheduler.apply(runner.collect())) book(update);
    scheduler.check();
    return true;
  }

  // The runner loses all steps in flight.
  void lose() {
    ++num_losses;
    runner.drop_all();
    for (const SequenceUpdate& update : scheduler.fail_in_flight()) end_search_of(update.id);
    scheduler.check();
  }

  void run() {
    for (int i = 0; step(); ++i) ASSERT_LT(i, 100000);
    EXPECT_TRUE(searches.empty());
    EXPECT_FALSE(scheduler.has_unfinished());
    EXPECT_EQ(scheduler.stats().num_free_blocks, scheduler.stats().num_blocks);
    EXPECT_EQ(scheduler.stats().num_free_host_blocks, scheduler.stats().num_host_blocks);
    EXPECT_EQ(scheduler.stats().num_free_state_slots, scheduler.stats().num_state_slots);
  }

  // parents: by fork, from 0; none given: at random.
  void fork(SequenceId first, std::vector<std::size_t> parents = {}) {
    Search& search = searches.at(first);
    const auto any = [this](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
    };
    if (parents.empty()) {
      parents.resize(1 + any(search.width));
      for (std::size_t& parent : parents) parent = any(search.beams.size());
    }
    std::vector<BeamFork> forks;
    std::vector<std::vector<TokenId>> beams;
    for (const std::size_t parent : parents) {
      forks.push_back({first + parent, static_cast<TokenId>(any(3))});  // few tokens, so that some meet again
      beams.push_back(search.beams[parent]);
      beams.back().push_back(forks.back().token);
    }
    search.beams = std::move(beams);
    search.num_missing = search.beams.size();
    for (std::size_t i = 0; i < search.beams.size(); ++i) {
      SequenceRequest as_prompt;
      as_prompt.prompt = search.beams[i];
      runner.histories.insert_or_assign(first + i, History(as_prompt));
    }
    scheduler.fork_beams(first, forks);
    scheduler.check();
  }

  struct Search {
    std::vector<std::vector<TokenId>> beams;
    std::size_t num_missing = 0;
    std::size_t width = 0;
    int num_rounds = 0;
    int max_tokens = 0;
  };

  Scheduler scheduler;
  FakeRunner runner;
  std::map<SequenceId, Search> searches;
  std::size_t num_copies = 0;
  int num_losses = 0;
  int num_unplanned = 0;
  int fault_in = 0;  // planning fails at this many sequences from here; 0: not
  bool forks_by_itself = true;

 private:
  using Found = std::map<SequenceId, Search>::iterator;

  SchedulerConfig with_fault(SchedulerConfig config) {
    config.on_plan = [this](SequenceId) {
      if (fault_in > 0 && --fault_in == 0) throw std::runtime_error("injected");
    };
    return config;
  }

  Found find(SequenceId id) {
    Found found = searches.upper_bound(id);
    if (found == searches.begin()) return searches.end();
    --found;
    return id - found->first < found->second.width ? found : searches.end();
  }

  void end_search_of(SequenceId id) {
    const Found found = find(id);
    if (found == searches.end()) return;
    scheduler.abort_with_siblings(found->first);
    searches.erase(found);
  }

  bool end_unplanned() {
    const auto failures = scheduler.take_planning_failures();
    for (const PlanningFailure& failure : failures) end_search_of(failure.id);
    num_unplanned += static_cast<int>(failures.size());
    scheduler.check();
    return !failures.empty();
  }

  void book(const SequenceUpdate& update) {
    const Found found = find(update.id);
    if (found == searches.end()) return;  // of a plain request
    auto& [first, search] = *found;
    ASSERT_EQ(update.finish, FinishReason::kNone);
    ASSERT_GT(search.num_missing, 0U);
    if (--search.num_missing > 0 || !forks_by_itself) return;
    if (++search.num_rounds < search.max_tokens) return fork(first);
    scheduler.abort_with_siblings(first);
    searches.erase(found);
  }

  int depth_;
  std::mt19937 random_;
  SequenceId next_id_ = 1;
};

int num_used(const Searches& searches) {
  const SchedulerStats stats = searches.scheduler.stats();
  return stats.num_blocks - stats.num_free_blocks;
}

TEST(SchedulerBeamTest, ForksShareBlocksAndDroppedBeamsReturnTheirsAtOnce) {
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  Searches searches(config, 1, 1);
  searches.forks_by_itself = false;
  const SequenceId first = searches.add(3, 20, 9);
  while (searches.searches.at(first).num_missing > 0) searches.step();
  EXPECT_EQ(num_used(searches), 3);
  EXPECT_EQ(searches.scheduler.schedule(), std::nullopt);  // the beam is held

  searches.fork(first, {0, 0, 0});
  EXPECT_EQ(num_used(searches), 3);
  const auto plan = searches.scheduler.schedule();
  ASSERT_EQ(plan->sequences.size(), 3U);
  EXPECT_EQ(plan->num_tokens, 3);
  EXPECT_EQ(plan->block_copies.size(), 2U);
  EXPECT_EQ(num_used(searches), 5);
  searches.runner.submit(*plan);
  while (searches.searches.at(first).num_missing > 0) searches.step();

  searches.fork(first, {1, 1});
  EXPECT_EQ(num_used(searches), 3);
  searches.scheduler.abort_with_siblings(first);
  EXPECT_EQ(num_used(searches), 0);
}

TEST(SchedulerBeamTest, ASearchEndsInACacheThatHoldsOneBeamAlone) {
  for (const bool caching : {false, true}) {
    for (const int depth : {1, 2}) {
      SchedulerConfig config = small_config();
      config.num_blocks = 4;
      config.enable_prefix_caching = caching;
      Searches searches(config, depth, 7);
      searches.add(4, 12, 20);
      searches.add(0, 9, 12);
      searches.run();
      EXPECT_GT(searches.scheduler.stats().num_preemptions, 0U);
    }
  }
}

TEST(SchedulerBeamTest, ABeamWidthBeyondTheSeatsIsRefused) {
  Searches searches(small_config(), 1, 1);
  EXPECT_EQ(error_of([&] { searches.add(5, 8, 8); }), "beam_width is 5; it must be at most max-num-seqs, 4");
}

TEST(SchedulerBeamTest, BeamsAttendToTheirOwnTokensAlone) {
  std::uint64_t num_preemptions = 0;
  std::uint64_t num_restored = 0;
  std::size_t num_copies = 0;
  int num_losses = 0, num_unplanned = 0;
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto any = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
    SchedulerConfig config = small_config();
    config.num_blocks = any(4, 24);
    config.max_num_seqs = any(4, 8);
    config.max_num_batched_tokens = any(1, 40);
    config.enable_prefix_caching = seed % 2 == 0;
    config.hash_bits = seed % 3 == 0 ? 2 : 64;
    config.num_host_blocks = seed % 2 == 0 ? any(1, 30) : 0;
    if (seed % 5 == 0) config.policy = SchedulingPolicy::kPriority;
    if (seed % 3 == 1) {
      config.layout.state_interval = 8 * any(1, 3);
      config.num_state_slots = any(1, 12);
      config.num_host_state_slots = any(0, 3);
    }
    if (seed % 7 < 3) config.layout.windows.front() = any(1, 24);
    if (seed % 7 > 1 && seed % 7 < 5) {  // several lanes
      config.layout.windows.push_back(any(0, 1) * any(1, 24));
      config.num_blocks *= 2;
    }
    Searches searches(config, any(1, 3), seed);
    std::set<SequenceId> added;
    for (int i = any(2, 6); i > 0; --i) {
      added.insert(searches.add(any(0, 2) == 0 ? 0 : any(1, 4), any(1, 20), any(1, 10), any(0, 2)));
      for (int steps = any(0, 6); steps > 0; --steps) searches.step();
      if (seed % 4 == 1 && any(0, 2) == 0) searches.lose();
      if (seed % 4 == 2 && any(0, 2) == 0) searches.fault_in = any(1, 4);
      if (any(0, 9) > 0) continue;
      const SequenceId victim = *std::next(added.begin(), any(0, static_cast<int>(added.size()) - 1));
      searches.scheduler.abort_with_siblings(victim);
      searches.searches.erase(victim);
      searches.scheduler.check();
    }
    ASSERT_NO_THROW(searches.run());
    num_preemptions += searches.scheduler.stats().num_preemptions;
    num_restored += searches.scheduler.stats().num_restored_blocks;
    num_copies += searches.num_copies;
    num_losses += searches.num_losses;
    num_unplanned += searches.num_unplanned;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, 1000U);
  EXPECT_GT(num_copies, 1000U);
  EXPECT_GT(num_restored, 50U);
  EXPECT_GT(num_losses, 100);
  EXPECT_GT(num_unplanned, 100);
}

}  // namespace
}  // namespace quire::testing
