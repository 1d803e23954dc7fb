#include "inspect/machine_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "base/thread_pool.h"

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

// Of a kernel of multiply-adds, all operands in registers.
struct MatrixProbe {
  double flop = 0;
  float result = 0;  // to be used, or the work would be left out
};

// As many accumulators as an instruction's latency times those begun a cycle, or more, so that none waits for
// another, and no more than there are registers. Each kernel is compiled for its own instruction set and
// called only where the CPU has it.
constexpr int kAccumulators = 16;
constexpr int kFewAccumulators = 12;  // AVX2 has 16 registers, and two hold constants

float run_portable(std::int64_t steps) {
  float sums[kFewAccumulators] = {};
  for (std::int64_t step = 0; step < steps; ++step) {
    for (float& sum : sums) sum = std::fma(sum, 0.5F, 1.0F);
  }
  return sums[0] + sums[kFewAccumulators - 1];
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float run_avx2(std::int64_t steps) {
  const __m256 factor = _mm256_set1_ps(0.5F);
  const __m256 one = _mm256_set1_ps(1.0F);
  __m256 sums[kFewAccumulators];
  for (__m256& sum : sums) sum = one;
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kFewAccumulators; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, one);
  }
  for (const __m256& sum : sums) sums[0] = _mm256_add_ps(sums[0], sum);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float run_avx512(std::int64_t steps) {
  const __m512 factor = _mm512_set1_ps(0.5F);
  const __m512 one = _mm512_set1_ps(1.0F);
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = one;
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, one);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float run_avx512_bf16(std::int64_t steps) {
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.25F));
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0F);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

#endif

// A step does `products` multiply-adds.
MatrixProbe measured(std::int64_t steps, int products, float (*run)(std::int64_t)) {
  return {2.0 * products * static_cast<double>(steps), run(steps)};
}

// On the widest instruction this CPU has; each step is a dozen of them or so.
MatrixProbe run_matrix_probe(std::int64_t steps) {
#if defined(__x86_64__)
  // On Intel's processors it is slower than float32.
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
    return measured(steps, 32 * kAccumulators, run_avx512_bf16);
  if (__builtin_cpu_supports("avx512f")) return measured(steps, 16 * kAccumulators, run_avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return measured(steps, 8 * kFewAccumulators, run_avx2);
#endif
  return measured(steps, kFewAccumulators, run_portable);
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
