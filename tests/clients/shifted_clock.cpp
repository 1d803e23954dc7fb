// Preloaded into a program: its time of day is shifted by the seconds in the file that QUIRE_CLOCK_SHIFT
// names.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace {

time_t shift() {
  static const volatile time_t* const seconds = [] {
    const int fd = ::open(std::getenv("QUIRE_CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
    return static_cast<const time_t*>(::mmap(nullptr, sizeof(time_t), PROT_READ, MAP_SHARED, fd, 0));
  }();
  return *seconds;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += shift();
  return result;
}

extern "C" int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

extern "C" time_t time(time_t* time) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (time != nullptr) *time = now.tv_sec;
  return now.tv_sec;
}
