#include "inspect/machine_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "inspect/matrix_probe.h"

namespace quire {
namespace {

constexpr std::size_t kRounds = 8;
constexpr std::size_t kReadBytes = 1'200'000'000;

// The seconds of the fastest of several rounds in which every thread does its part, from the first one's
// start to the last one's end. The threads take the times themselves: another could be late to look at the
// clock.
double fastest_round(int num_threads, const std::function<void(int thread)>& part) {
  using Clock = std::chrono::steady_clock;
  struct Times {
    std::array<Clock::time_point, kRounds> start, end;
  };
  std::vector<Times> times(static_cast<std::size_t>(num_threads));
  std::barrier meet(num_threads);
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      Times& mine = times[static_cast<std::size_t>(i)];
      for (std::size_t round = 0; round < kRounds; ++round) {
        meet.arrive_and_wait();
        mine.start[round] = Clock::now();
        part(i);
        mine.end[round] = Clock::now();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Clock::duration best = Clock::duration::max();
  for (std::size_t round = 0; round < kRounds; ++round) {
    Clock::time_point start = times[0].start[round];
    Clock::time_point end = times[0].end[round];
    for (const Times& of_thread : times) {
      start = std::min(start, of_thread.start[round]);
      end = std::max(end, of_thread.end[round]);
    }
    best = std::min(best, end - start);
  }
  return std::chrono::duration<double>(best).count();
}

// Memory in huge pages where the system has them.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) fail("out of memory: the machine probe needs {} bytes", bytes);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::uint64_t* words() const { return static_cast<std::uint64_t*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  constexpr std::size_t kLine = 16;  // words taken at once: enough sums that none waits for another
  std::uint64_t sums[kLine] = {};
  for (std::size_t i = 0; i + kLine <= count; i += kLine) {
    for (std::size_t j = 0; j < kLine; ++j) sums[j] += words[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

double read_gb_per_s(int num_threads) {
  const Pages pages(kReadBytes);
  const std::size_t share = kReadBytes / sizeof(std::uint64_t) / static_cast<std::size_t>(num_threads);
  std::vector<std::thread> writers;  // each thread's part lies in memory near it
  for (int i = 0; i < num_threads; ++i) {
    writers.emplace_back(
        [&, i] { std::fill_n(pages.words() + share * static_cast<std::size_t>(i), share, 1U); });
  }
  for (std::thread& writer : writers) writer.join();
  std::atomic<std::uint64_t> total{0};  // so that the reads have a result
  const double seconds = fastest_round(num_threads, [&](int thread) {
    total += sum_of(pages.words() + share * static_cast<std::size_t>(thread), share);
  });
  QUIRE_CHECK(total > 0);
  return static_cast<double>(share * sizeof(std::uint64_t)) * num_threads / seconds * 1e-9;
}

double matrix_gflop_per_s(int num_threads) {
  constexpr std::int64_t kSteps = 1'000'000;
  std::atomic<double> flop{0};
  std::atomic<int> sink{0};
  const double seconds = fastest_round(num_threads, [&](int) {
    const MatrixProbe result = run_matrix_probe(kSteps);
    flop = result.flop;
    sink += result.result > 0 ? 1 : 0;
  });
  return flop * num_threads / seconds * 1e-9;
}

}  // namespace

MachineCeiling probe_machine() {
  const int threads = usable_cores();
  return {read_gb_per_s(threads), matrix_gflop_per_s(threads)};
}

}  // namespace quire
