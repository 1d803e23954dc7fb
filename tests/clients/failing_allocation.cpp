// Preloaded into a program: one of its allocations, by operator new or by malloc, fails when that is asked
// for.
//
// The file that QUIRE_FAILING_ALLOCATION names is mapped as a Control, which failing_allocation.py reads and
// writes.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
// glibc's own, which is called here in place of what this file replaces.
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}

namespace {

constexpr std::size_t kFrames = 32;

struct Control {
  std::atomic<std::int64_t> count{0};    // allocations so far
  std::atomic<std::int64_t> failing{0};  // the one that fails, counted from 1; 0: none
  struct Frame {
    char file[56];        // the end of its name: the program or a library
    std::int64_t offset;  // in it
  } frames[kFrames]{};    // who asked for the one that failed, the innermost first
};

Control* open_control() {
  static Control alone;
  const char* path = std::getenv("QUIRE_FAILING_ALLOCATION");
  const int fd = path != nullptr ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return &alone;
  void* const shared = ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return shared == MAP_FAILED ? &alone : static_cast<Control*>(shared);
}

[[gnu::noinline]] void note_caller(Control& control) {
  void* addresses[kFrames];
  const int count = ::backtrace(addresses, static_cast<int>(kFrames));
  for (std::size_t i = 0; i < kFrames; ++i) {
    Control::Frame& frame = control.frames[i] = {};
    Dl_info info{};
    if (i >= static_cast<std::size_t>(count) || ::dladdr(addresses[i], &info) == 0) continue;
    const std::size_t length = std::strlen(info.dli_fname);
    std::strncpy(frame.file, info.dli_fname + length - std::min(length, sizeof(frame.file) - 1),
                 sizeof(frame.file) - 1);
    frame.offset = static_cast<char*>(addresses[i]) - static_cast<char*>(info.dli_fbase);
  }
}

// Whether the allocation that is asked for now is to fail.
bool fails() noexcept {
  static Control* const control = open_control();
  if (control->count.fetch_add(1) + 1 != control->failing.load()) return false;
  note_caller(*control);
  errno = ENOMEM;
  return true;
}

void* take(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  return fails() ? nullptr : __libc_memalign(alignment, std::max<std::size_t>(bytes, 1));
}

void* take_or_throw(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* p = take(bytes, alignment)) return p;
  throw std::bad_alloc();
}

std::size_t number(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

extern "C" {
void* malloc(std::size_t bytes) { return fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) { return fails() ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* old, std::size_t bytes) { return fails() ? nullptr : __libc_realloc(old, bytes); }
}

void* operator new(std::size_t bytes) { return take_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return take_or_throw(bytes); }
void* operator new(std::size_t bytes, std::align_val_t a) { return take_or_throw(bytes, number(a)); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return take_or_throw(bytes, number(a)); }
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return take(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return take(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t /*bytes*/) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t /*bytes*/) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t /*a*/) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t /*a*/) noexcept { std::free(p); }
void operator delete(void* p, std::size_t /*bytes*/, std::align_val_t /*a*/) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t /*bytes*/, std::align_val_t /*a*/) noexcept { std::free(p); }
