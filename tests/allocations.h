#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "sanitized.h"

namespace quire::testing {

// What a test can do with operator new, which tests/allocations.cpp replaces in its program. Nothing in a
// build with sanitizers, which bring their own.
inline constexpr bool kReplacesNew = !kSanitized;

inline thread_local int allocations_left = 0;  // until one fails, and that one
// Of this thread, the nth allocation from here on fails.
inline void fail_allocation(int nth) { allocations_left = nth; }
// Whether it has failed. No other will.
inline bool has_allocation_failed() { return std::exchange(allocations_left, 0) == 0; }

// Does `work` with its nth allocation failing. False: it has not as many.
template <typename Work>
bool fails_at(int nth, const Work& work) {
  fail_allocation(nth);
  try {
    work();
  } catch (const std::bad_alloc&) {
  }
  return has_allocation_failed();
}

// Called with the bytes of every allocation, of any thread; what it throws is thrown.
inline std::atomic<void (*)(std::size_t bytes)> on_allocation = nullptr;

}  // namespace quire::testing
