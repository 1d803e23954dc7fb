#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>

namespace quire {

// Names the calling thread, for top -H and debuggers: at most 15 characters.
inline void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

// CPU time that the calling thread has had.
inline std::chrono::nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Changes what the mutex guards, and wakes who waits for that.
template <typename Change>
void change_and_wake(std::mutex& mutex, std::condition_variable& changed, const Change& change) {
  {
    const std::lock_guard lock(mutex);
    change();
  }
  changed.notify_all();
}

}  // namespace quire
