#include "base/thread_pool.h"

#include "base/error.h"

namespace quire {
namespace {

// About 20 µs: longer than the gap between two ops of a step, shorter than a scheduler's time slice.
constexpr int kSpins = 2000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` is no longer `old`.
template <typename T>
void wait_for_change(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  QUIRE_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  closing_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(Call call, const void* function) {
  if (workers_.empty()) {
    call(function, 0);
    return;
  }
  call_ = call;
  function_ = function;
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  call(function, 0);
  for (int left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    wait_for_change(running_, left);
  }
}

void ThreadPool::work(int index) {
  std::uint32_t seen = 0;
  while (true) {
    wait_for_change(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (closing_.load(std::memory_order_relaxed)) return;
    call_(function_, index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace quire
