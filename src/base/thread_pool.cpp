#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/threads.h"

namespace quire {
namespace {

// Longer than the gap between two ops of a step, shorter than a scheduler's time slice.
constexpr std::chrono::microseconds kSpinTime{50};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int usable_cores() {
  // One has room for 1024; the kernel refuses what has no room for all that it could have.
  for (std::vector<cpu_set_t> cores(1); cores.size() <= 64; cores.resize(2 * cores.size())) {
    const std::size_t bytes = cores.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, cores.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, cores.data()));
    if (errno != EINVAL) break;
  }
  return 1;
}

ThreadPool::ThreadPool(int num_threads) : spins_(num_threads <= usable_cores()) {
  QUIRE_CHECK(num_threads >= 1);
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {  // there may be no more threads
    close();
    throw;
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
  closing_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// Waits until `value` is no longer `old`, and returns what it is.
template <typename T>
T ThreadPool::wait_while(const std::atomic<T>& value, T old) const {
  if (spins_) {
    constexpr int kLooks = 32;  // between two at the clock
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kLooks; ++i) {
        if (const T now = value.load(std::memory_order_acquire); now != old) return now;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

void ThreadPool::run_ranges(std::int64_t n,
                            const std::function<void(std::int64_t begin, std::int64_t end)>& function) {
  std::mutex mutex;
  std::exception_ptr error;
  run(size(), [&](int part, int) {
    try {
      const std::int64_t begin = n * part / size(), end = n * (part + 1) / size();
      if (begin < end) function(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

void ThreadPool::run_erased(int num_parts, Call call, const void* function) {
  if (workers_.empty() || num_parts <= 1) {
    while (num_parts-- > 0) call(function, num_parts, 0);
    return;
  }
  call_ = call;
  function_ = function;
  unfinished_.store(num_parts, std::memory_order_relaxed);
  untaken_.store(num_parts, std::memory_order_release);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  take_parts(0);
  for (int left = unfinished_.load(std::memory_order_acquire); left != 0;)
    left = wait_while(unfinished_, left);
}

// A thread that comes late finds nothing to take, or takes a part of the next job, which is as well.
void ThreadPool::take_parts(int thread) {
  int done = 0;
  while (true) {
    const int part = untaken_.fetch_sub(1, std::memory_order_acquire) - 1;
    if (part < 0) break;
    call_(function_, part, thread);
    ++done;
  }
  if (done > 0 && unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) unfinished_.notify_one();
}

void ThreadPool::work(int thread) {
  name_thread("quire-compute");
  std::uint32_t seen = 0;
  while (true) {
    seen = wait_while(job_, seen);
    if (closing_.load(std::memory_order_relaxed)) return;
    take_parts(thread);
  }
}

}  // namespace quire
