#pragma once

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace quire {

// Names the calling thread, for top -H and debuggers: at most 15 characters.
inline void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

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
