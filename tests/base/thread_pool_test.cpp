#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace quire {
namespace {

TEST(ThreadPoolTest, RunsOnceOnEveryThread) {
  for (const int size : {1, 2, 3, 8}) {
    ThreadPool pool(size);
    ASSERT_EQ(pool.size(), size);
    std::vector<int> calls(static_cast<std::size_t>(size));
    std::vector<std::thread::id> threads(calls.size());
    pool.run([&](int i) {
      ++calls[static_cast<std::size_t>(i)];
      threads[static_cast<std::size_t>(i)] = std::this_thread::get_id();
    });
    EXPECT_EQ(calls, std::vector<int>(calls.size(), 1));
    std::sort(threads.begin(), threads.end());
    EXPECT_EQ(std::unique(threads.begin(), threads.end()), threads.end());
  }
}

// What one run wrote, on any thread, the next one reads, on any other.
TEST(ThreadPoolTest, ARunSeesAllOfTheOneBefore) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  std::vector<long> values(kThreads, 1);
  std::vector<long> next(kThreads);
  for (int round = 0; round < 3000; ++round) {
    pool.run([&](int i) {
      const auto at = static_cast<std::size_t>(i);
      next[at] = (values[(at + 1) % kThreads] + values[(at + 2) % kThreads]) % 1009;
    });
    const long sum = (2 * (values[0] + values[1] + values[2])) % 1009;
    EXPECT_EQ((next[0] + next[1] + next[2]) % 1009, sum);
    values.swap(next);
  }
}

TEST(ThreadPoolTest, WakesThreadsThatWentToSleep) {
  ThreadPool pool(2);
  std::atomic<int> calls = 0;
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run([&](int i) {
      if (i == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++calls;
    });
    EXPECT_EQ(calls, 2 * (round + 1));
  }
}

}  // namespace
}  // namespace quire
