// What a step allocates on the host is small and does not grow: no op takes memory of its own after start-up.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <new>
#include <numeric>
#include <thread>

#include "allocations.h"
#include "engine/engine.h"
#include "engine/golden_models.h"

namespace {

std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> largest{0};  // bytes

void count(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  std::uint64_t seen = largest.load(std::memory_order_relaxed);
  while (seen < bytes && !largest.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) continue;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What a CPU backend takes for its buffers.
extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  count(bytes);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
#endif

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

class AllocationTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AllocationTest, AStepTakesLittleMemoryHoweverManyWentBefore) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  constexpr int kRequests = 4;
  constexpr int kTokens = 160;
  EngineConfig config = testing::golden_config("qwen3", "bfloat16");
  config.cpu_isa = GetParam();
  config.cpu_threads = 2;
  Engine engine(config);
  testing::on_allocation = count;
  int steps = 0;
  std::uint64_t before = 0;
  std::uint64_t most = 0;                                         // of one step
  std::array<std::atomic<std::uint64_t>, kRequests> delivered{};  // tokens of each request
  std::uint64_t sampled = 0;
  engine.observe_steps([&](const StepRecord& step) {
    // What waits to be delivered is kept somewhere: it must not add up.
    const auto all = [&] { return std::accumulate(delivered.begin(), delivered.end(), std::uint64_t{0}); };
    for (const auto end = Clock::now() + std::chrono::seconds(5); all() < sampled && Clock::now() < end;)
      std::this_thread::yield();
    sampled += step.sampled_tokens;
    const std::uint64_t now = allocations.load(std::memory_order_relaxed);
    if (++steps == 40) largest = 0;  // everything has its size by now
    if (steps > 40) most = std::max(most, now - before);
    before = now;
  });
  std::atomic<int> unfinished = kRequests;
  std::promise<void> done;
  std::vector<EngineRequest> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    EngineRequest& request = requests[static_cast<std::size_t>(i)];
    request.prompt.assign(5, i);
    request.params.max_tokens = kTokens;
    request.params.ignore_eos = true;
    if (i % 2 == 1) request.params.top_k = 20;
    request.params.seed = 1;
    request.on_update = [&, i](const RequestUpdate& update) {
      EXPECT_EQ(update.output.error, "");
      delivered[static_cast<std::size_t>(i)] = update.output.token_ids.size();
      if (update.finished && --unfinished == 0) done.set_value();
    };
  }
  engine.submit(requests);
  done.get_future().wait();
  engine.observe_steps({});
  testing::on_allocation = nullptr;
  EXPECT_GE(steps, kTokens);
  RecordProperty("most", static_cast<int>(most));
  RecordProperty("largest", static_cast<int>(largest));
  EXPECT_LE(most, 50U);
  EXPECT_LE(largest, 4096U);
}

INSTANTIATE_TEST_SUITE_P(Kernels, AllocationTest, ::testing::ValuesIn(inspect_machine().cpu_isas));

}  // namespace
}  // namespace quire
