#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace quire {

// Threads that run one function at a time, together with the thread that asks. Between two runs they spin for
// a short while, then sleep. Thread contract: one thread calls run; it must not throw.
class ThreadPool {
 public:
  // num_threads: of a run, the caller included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(i) once for each i in [0, size()), each on its own thread, and returns when all have
  // returned.
  template <typename Function>
  void run(const Function& function) {
    run_erased([](const void* f, int index) { (*static_cast<const Function*>(f))(index); }, &function);
  }

 private:
  using Call = void (*)(const void* function, int index);

  void run_erased(Call call, const void* function);
  void work(int index);

  Call call_ = nullptr;  // these two are written before round_ is, and read after it
  const void* function_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> round_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> closing_{false};
  std::vector<std::thread> workers_;
};

}  // namespace quire
