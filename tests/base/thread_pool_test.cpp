#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>

#include "sanitized.h"

namespace {

std::size_t least_bytes = 0;  // of a set of CPUs, as a kernel wants that could have many

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int sched_getaffinity(pid_t process, std::size_t bytes, cpu_set_t* cores) noexcept {
  if (bytes < least_bytes) {
    errno = EINVAL;
    return -1;
  }
  return syscall(SYS_sched_getaffinity, process, bytes, cores) < 0 ? -1 : 0;
}
#endif

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

TEST(UsableCoresTest, AreCountedByAKernelThatCouldHaveMany) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has a sched_getaffinity of its own";
  const int cores = usable_cores();
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(cores, CPU_COUNT(&set));
  least_bytes = 8192 / 8;
  EXPECT_EQ(usable_cores(), cores);
  least_bytes = static_cast<std::size_t>(-1);
  EXPECT_EQ(usable_cores(), 1);
  least_bytes = 0;
}

TEST(ThreadPoolTest, TakesEveryPartOnce) {
  for (const int size : {1, 2, 3, 8}) {
    ThreadPool pool(size);
    ASSERT_EQ(pool.size(), size);
    for (const int parts : {0, 1, 2, 7, 100}) {
      std::vector<int> calls(static_cast<std::size_t>(parts));
      std::atomic<bool> in_range = true;
      pool.run(parts, [&](int part, int thread) {
        ++calls[static_cast<std::size_t>(part)];
        if (thread < 0 || thread >= size) in_range = false;
      });
      EXPECT_EQ(calls, std::vector<int>(calls.size(), 1));
      EXPECT_TRUE(in_range);
    }
  }
}

// Scratch memory by thread number is safe.
TEST(ThreadPoolTest, CallsUnderWayHaveThreadNumbersOfTheirOwn) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::vector<long> scratch(kThreads);  // unguarded
  for (int round = 0; round < 500; ++round) {
    pool.run(kThreads * 3, [&](int, int thread) { ++scratch[static_cast<std::size_t>(thread)]; });
  }
  EXPECT_EQ(std::accumulate(scratch.begin(), scratch.end(), 0L), 500 * kThreads * 3);
}

// What one job wrote, on any thread, the next one reads, on any other.
TEST(ThreadPoolTest, AJobSeesAllOfTheOneBefore) {
  constexpr int kParts = 3;
  ThreadPool pool(kParts);
  std::vector<long> values(kParts, 1);
  std::vector<long> next(kParts);
  for (int round = 0; round < 3000; ++round) {
    pool.run(kParts, [&](int part, int) {
      const auto at = static_cast<std::size_t>(part);
      next[at] = (values[(at + 1) % kParts] + values[(at + 2) % kParts]) % 1009;
    });
    const long sum = (2 * (values[0] + values[1] + values[2])) % 1009;
    EXPECT_EQ((next[0] + next[1] + next[2]) % 1009, sum);
    values.swap(next);
  }
}

TEST(ThreadPoolTest, WakesThreadsThatWentToSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> met = 0;
    pool.run(2, [&](int, int) {  // each part waits for the other one: it takes both threads
      ++met;
      while (met < 2) std::this_thread::yield();
    });
  }
}

TEST(ThreadPoolTest, AThreadThatIsHeldUpDelaysItsPartAlone) {
  constexpr int kParts = 50;
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> done = 0;
    pool.run(kParts, [&](int, int) {
      // The first to come stays until all other parts are done: somebody else takes them.
      if (done.fetch_add(1) == 0) {
        while (done < kParts) std::this_thread::yield();
      }
    });
    EXPECT_EQ(done, kParts);
  }
}

TEST(ThreadPoolTest, RangesCoverAllAndWhatOneThrowsComesOut) {
  for (const int threads : {1, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::int64_t n : {0, 1, 5, 100}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
      pool.run_ranges(n, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++calls[static_cast<std::size_t>(i)];
      });
      for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
    }
    EXPECT_THROW(pool.run_ranges(100, [](std::int64_t, std::int64_t) { throw std::runtime_error("no"); }),
                 std::runtime_error);
  }
}

// A step of a model has some 200 jobs. On cores that are busy with others' work they must not wait, each, for
// every thread of the pool to be given one.
TEST(ThreadPoolTest, MakesProgressWithMoreThreadsThanCores) {
  const int cores = usable_cores();
  std::atomic<bool> closing = false;
  std::vector<std::thread> others;
  for (int i = 0; i < cores; ++i) {
    others.emplace_back([&] {
      while (!closing.load(std::memory_order_relaxed)) continue;
    });
  }
  ThreadPool pool(4 * cores);
  std::atomic<long> total = 0;
  const auto start = Clock::now();
  for (int job = 0; job < 2000; ++job) {
    pool.run(pool.size(), [&](int part, int) { total += part; });
  }
  const std::chrono::duration<double> seconds = Clock::now() - start;
  closing = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(total, 2000L * pool.size() * (pool.size() - 1) / 2);
  EXPECT_LT(seconds.count(), 2);
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1e3));
}

}  // namespace
}  // namespace quire
