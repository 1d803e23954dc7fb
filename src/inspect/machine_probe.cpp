#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "base/thread_pool.h"
#include "inspect/bench.h"

namespace quire {
namespace {

constexpr std::size_t kRounds = 8;
constexpr std::size_t kReadBytes = 1'200'000'000;

void on_threads(int num_threads, const std::function<void(int thread)>& part) {
  // No jthreads: where one cannot be made the program ends, since the others would wait for it.
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) threads.emplace_back(part, i);
  for (std::thread& thread : threads) thread.join();
}

// The seconds of the fastest of several rounds in which every thread does its part: from one meeting of all
// to the next. The thread that comes last takes the time: another could be late to look at the clock.
double fastest_round(int num_threads, const std::function<void(int thread)>& part) {
  std::array<std::chrono::steady_clock::time_point, kRounds + 1> times;
  std::size_t meetings = 0;
  std::barrier meet(num_threads, [&]() noexcept { times[meetings++] = std::chrono::steady_clock::now(); });
  on_threads(num_threads, [&](int thread) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      meet.arrive_and_wait();
      part(thread);
    }
    meet.arrive_and_wait();
  });
  auto best = times[1] - times[0];
  for (std::size_t round = 1; round < kRounds; ++round)
    best = std::min(best, times[round + 1] - times[round]);
  return std::chrono::duration<double>(best).count();
}

// Memory in huge pages where the system has them.
std::unique_ptr<std::uint64_t[], decltype(&std::free)> allocate_words(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const data = std::aligned_alloc(kHugePage, rounded);
  if (data == nullptr) fail("out of memory: the machine probe needs {} bytes", bytes);
  madvise(data, rounded, MADV_HUGEPAGE);
  return {static_cast<std::uint64_t*>(data), &std::free};
}

std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  constexpr std::size_t kLine = 16;  // words taken at once: enough sums that none waits for another
  std::uint64_t sums[kLine] = {};
  for (std::size_t i = 0; i + kLine <= count; i += kLine)
    for (std::size_t j = 0; j < kLine; ++j) sums[j] += words[i + j];
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

double read_gb_per_s(int num_threads) {
  const auto words = allocate_words(kReadBytes);
  const std::size_t share = kReadBytes / sizeof(std::uint64_t) / static_cast<std::size_t>(num_threads);
  const auto part_of = [&](int thread) { return words.get() + share * static_cast<std::size_t>(thread); };
  // Each thread's part lies in memory near it.
  on_threads(num_threads, [&](int thread) { std::fill_n(part_of(thread), share, 1U); });
  std::atomic<std::uint64_t> total{0};  // so that the reads have a result
  const double seconds =
      fastest_round(num_threads, [&](int thread) { total += sum_of(part_of(thread), share); });
  QUIRE_CHECK(total > 0);
  return static_cast<double>(share * sizeof(std::uint64_t)) * num_threads / seconds * 1e-9;
}

// As many accumulators as an instruction's latency times those begun a cycle, or more, so that none waits for
// another, and no more than there are registers. Each kernel is compiled for its own instruction set and
// called only where the CPU has it.
constexpr int kAccumulators = 16;
constexpr int kFewAccumulators = 12;  // AVX2 has 16 registers, and two hold constants

float run_portable(std::int64_t steps) {
  float sums[kFewAccumulators] = {};
  for (std::int64_t step = 0; step < steps; ++step)
    for (float& sum : sums) sum = std::fma(sum, 0.5F, 1.0F);
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

// Multiply-adds with all operands in registers: so many in a step, and what does `steps` of them. The result
// is to be used, or the work would be left out.
struct MatrixKernel {
  int products;
  float (*run)(std::int64_t steps);
};

// On the widest instruction this CPU has; each step is a dozen of them or so.
MatrixKernel widest_kernel() {
#if defined(__x86_64__)
  // On Intel's processors it is slower than float32.
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
    return {32 * kAccumulators, run_avx512_bf16};
  if (__builtin_cpu_supports("avx512f")) return {16 * kAccumulators, run_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {8 * kFewAccumulators, run_avx2};
#endif
  return {kFewAccumulators, run_portable};
}

double matrix_gflop_per_s(int num_threads) {
  constexpr std::int64_t kSteps = 1'000'000;
  const MatrixKernel kernel = widest_kernel();
  std::atomic<int> sink{0};
  const double seconds = fastest_round(num_threads, [&](int) { sink += kernel.run(kSteps) > 0 ? 1 : 0; });
  return 2.0 * kernel.products * kSteps * num_threads / seconds * 1e-9;
}

}  // namespace

DeviceCeiling probe_machine() {
  const int threads = usable_cores();
  return {read_gb_per_s(threads), matrix_gflop_per_s(threads)};
}

}  // namespace quire
