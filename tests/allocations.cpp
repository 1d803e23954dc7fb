// The operator new of a test program: see allocations.h.
#include "allocations.h"

#include <cstdlib>
#include <new>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not inline: GCC 12 would take free for the wrong way to give back what operator new gave.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  using namespace quire::testing;
  if (const auto call = on_allocation.load(std::memory_order_relaxed)) call(bytes);
  const bool fails = allocations_left > 0 && --allocations_left == 0;
  if (void* p = fails ? nullptr : std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t /*bytes*/) noexcept { std::free(p); }
#endif
