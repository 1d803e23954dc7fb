// Preloaded into a program: it is killed before a call that changes or opens a file. The file that
// QUIRE_KILLED_STEP names has how many such calls there were, and the number of that one, from 1.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

namespace {

struct Control {
  std::atomic<long> calls;
  long last;
};

void step() {
  static Control* const control = [] {
    constexpr int kReadWrite = 2;
    const auto fd = static_cast<int>(::syscall(SYS_openat, -100 /* the working directory */,
                                               std::getenv("QUIRE_KILLED_STEP"), kReadWrite));
    return static_cast<Control*>(::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  }();
  if (++control->calls == control->last) ::kill(::getpid(), SIGKILL);
}

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define QUIRE_STEP(type, name, parameters, arguments)           \
  extern "C" type name parameters {                             \
    static auto* const function = next<type parameters>(#name); \
    step();                                                     \
    return function arguments;                                  \
  }

QUIRE_STEP(int, open, (const char* path, int flags, mode_t mode), (path, flags, mode))
QUIRE_STEP(int, open64, (const char* path, int flags, mode_t mode), (path, flags, mode))
QUIRE_STEP(int, openat, (int folder, const char* path, int flags, mode_t mode), (folder, path, flags, mode))
QUIRE_STEP(int, openat64, (int folder, const char* path, int flags, mode_t mode), (folder, path, flags, mode))
QUIRE_STEP(int, mkdir, (const char* path, mode_t mode) noexcept, (path, mode))
QUIRE_STEP(int, rename, (const char* from, const char* to) noexcept, (from, to))
QUIRE_STEP(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
QUIRE_STEP(int, symlink, (const char* target, const char* path) noexcept, (target, path))
QUIRE_STEP(int, unlink, (const char* path) noexcept, (path))
QUIRE_STEP(int, remove, (const char* path) noexcept, (path))
QUIRE_STEP(int, ftruncate, (int fd, off_t size) noexcept, (fd, size))
QUIRE_STEP(int, ftruncate64, (int fd, off_t size) noexcept, (fd, size))
QUIRE_STEP(int, fsync, (int fd), (fd))
QUIRE_STEP(int, fdatasync, (int fd), (fd))
