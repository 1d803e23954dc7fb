// Preloaded into a program: one of its allocations by operator new fails, when that is asked for.
//
// The file that QUIRE_FAILING_NEW names is mapped as a Control, which failing_new.py reads and writes.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr std::size_t kFrames = 32;

struct Control {
  std::atomic<std::int64_t> count{0};    // allocations so far
  std::atomic<std::int64_t> failing{0};  // the one that fails, counted from 1; 0: none
  struct Frame {
    std::int64_t module;  // 0: another, 1: libquire, 2: the program
    std::int64_t offset;  // in it
  } frames[kFrames]{};    // who asked for the one that failed, the innermost first
};

Control* open_control() {
  static Control alone;
  const char* path = std::getenv("QUIRE_FAILING_NEW");
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
    Dl_info info{};
    control.frames[i] = {0, 0};
    if (i >= static_cast<std::size_t>(count) || ::dladdr(addresses[i], &info) == 0) continue;
    const char* slash = std::strrchr(info.dli_fname, '/');
    const char* name = slash != nullptr ? slash + 1 : info.dli_fname;
    const int module = std::strncmp(name, "libquire", 8) == 0 ? 1 : std::strcmp(name, "quire") == 0 ? 2 : 0;
    control.frames[i] = {module, static_cast<char*>(addresses[i]) - static_cast<char*>(info.dli_fbase)};
  }
}

void* take(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  static Control* const control = open_control();
  if (control->count.fetch_add(1) + 1 == control->failing.load()) {
    note_caller(*control);
    return nullptr;
  }
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole);
}

void* take_or_throw(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* p = take(bytes, alignment)) return p;
  throw std::bad_alloc();
}

std::size_t number(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

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
