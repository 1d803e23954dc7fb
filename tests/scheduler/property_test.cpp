#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "scheduler/harness.h"

namespace quire::testing {
namespace {

// What happened in scenarios that went well.
struct Totals {
  std::uint64_t num_operations = 0;
  std::uint64_t num_preemptions = 0;
  std::uint64_t num_hits = 0;
  std::uint64_t num_block_copies = 0;
  std::uint64_t num_restored = 0;
  std::uint64_t num_outside = 0;
  std::uint64_t num_foreseen = 0;
  std::uint64_t num_state_hits = 0, num_state_restores = 0;
};

// What goes wrong in a scenario; empty: nothing.
std::string failure_of(const Scenario& scenario, Totals* totals = nullptr) {
  try {
    Harness harness(scenario);
    harness.run(scenario.operations);
    if (totals) {
      totals->num_operations += scenario.operations.size();
      totals->num_preemptions += harness.stats().num_preemptions;
      totals->num_hits += harness.stats().prefix_cache_hits;
      totals->num_block_copies += harness.num_block_copies();
      totals->num_restored += harness.stats().num_restored_blocks;
      totals->num_outside += harness.num_outside();
      totals->num_foreseen += harness.num_foreseen();
      if (scenario.config.num_state_slots > 0) {
        totals->num_state_hits += harness.stats().prefix_cache_hits;
        totals->num_state_restores += harness.stats().num_restored_blocks;
      }
    }
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Leaves out operations as long as it still fails.
Scenario shrink(Scenario scenario) {
  for (std::size_t length = scenario.operations.size(); length > 0; length /= 2) {
    for (std::size_t begin = 0; begin < scenario.operations.size();) {
      Scenario shorter = scenario;
      const auto first = shorter.operations.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto left = static_cast<std::size_t>(shorter.operations.end() - first);
      shorter.operations.erase(first, first + static_cast<std::ptrdiff_t>(std::min(length, left)));
      if (failure_of(shorter).empty())
        begin += length;
      else
        scenario = shorter;
    }
  }
  return scenario;
}

// Without what ends sequences early they get long, and blocks run out.
void make_calm(Scenario& scenario) {
  std::erase_if(scenario.operations, [](const Operation& operation) {
    return operation.kind() != Operation::kAdd && operation.kind() != Operation::kSchedule &&
           operation.kind() != Operation::kApply;
  });
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// QUIRE_PROPERTY_OPERATIONS sets how many, QUIRE_PROPERTY_SEED repeats a run that failed.
TEST(SchedulerPropertyTest, RandomOperationsKeepEveryInvariant) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
  constexpr std::uint64_t kOperations = 50'000;
#else
  constexpr std::uint64_t kOperations = 1'000'000;
#endif
  const std::uint64_t wanted = from_environment("QUIRE_PROPERTY_OPERATIONS", kOperations);
  std::uint64_t seed = from_environment("QUIRE_PROPERTY_SEED", 1);
  Totals totals;
  for (; totals.num_operations < wanted; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(Scenario::kHeader + 4 * (1 + random() % 600));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    Scenario scenario = *Scenario::parse(bytes);
    if (seed % 2 == 0) make_calm(scenario);
    const std::string failure = failure_of(scenario, &totals);
    if (!failure.empty()) {
      const Scenario shortest = shrink(scenario);
      FAIL() << "QUIRE_PROPERTY_SEED=" << seed << ": " << failure << "\nshrunk: " << failure_of(shortest)
             << "\n"
             << shortest.describe();
    }
  }
  print_text(
      stdout,
      "{} operations, {} preemptions, {} tokens from the prefix cache, {} blocks copied, {} restored\n",
      totals.num_operations, totals.num_preemptions, totals.num_hits, totals.num_block_copies,
      totals.num_restored);
  EXPECT_GT(totals.num_preemptions, 0U);
  EXPECT_GT(totals.num_hits, 0U);
  EXPECT_GT(totals.num_block_copies, 0U);
  EXPECT_GT(totals.num_restored, 0U);
  EXPECT_GT(totals.num_outside, 0U);
  EXPECT_GT(totals.num_foreseen, 0U);
  EXPECT_GT(totals.num_state_hits, 0U);
  EXPECT_GT(totals.num_state_restores, 0U);
}

}  // namespace
}  // namespace quire::testing
