#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace quire {

// Cores this process may run on.
int usable_cores();

// Threads that, together with the one that asks, take the parts of one job after another. A part goes to
// whoever is free: a thread that does not get to run delays a job only by the part it holds. Between two jobs
// they spin for a short while, unless there are more of them than cores, then sleep. Thread contract: one
// thread calls run; it must not throw.
class ThreadPool {
 public:
  // num_threads: the caller included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(part, thread) once for each part in [0, num_parts), from the last one down, and returns
  // when all calls have returned. thread is in [0, size()), and its own for every call under way.
  template <typename Function>
  void run(int num_parts, const Function& function) {
    run_erased(
        num_parts,
        [](const void* f, int part, int thread) { (*static_cast<const Function*>(f))(part, thread); },
        &function);
  }
  // Calls function(begin, end) for ranges that make up [0, n), one a thread. It may throw: what one of the
  // calls threw comes out when all have returned.
  void run_ranges(std::int64_t n, const std::function<void(std::int64_t begin, std::int64_t end)>& function);

 private:
  using Call = void (*)(const void* function, int part, int thread);

  void close();

  void run_erased(int num_parts, Call call, const void* function);
  void work(int thread);
  void take_parts(int thread);
  template <typename T>
  T wait_while(const std::atomic<T>& value, T old) const;

  const bool spins_;
  // Written while no part is left to take, read by whoever has taken one.
  Call call_ = nullptr;
  const void* function_ = nullptr;
  alignas(64) std::atomic<int> untaken_{0};  // at most 0 where none is left
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<std::uint32_t> job_{0};
  std::atomic<bool> closing_{false};
  std::vector<std::thread> workers_;
};

}  // namespace quire
