#pragma once

#include <pthread.h>

namespace quire {

// Names the calling thread, for top -H and debuggers: at most 15 characters.
inline void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace quire
