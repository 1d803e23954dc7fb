#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "server/prometheus_text.h"

namespace quire::server {
namespace {

// Before main, which is as good as when the process was started.
const std::chrono::duration<double> kStartTime = std::chrono::system_clock::now().time_since_epoch();

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

std::string process_metrics() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  double virtual_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  std::error_code ignored;
  const auto open_files = std::distance(std::filesystem::directory_iterator("/proc/self/fd", ignored), {});

  PrometheusText text({});
  text.counter("process_cpu_seconds_total", "Processor time that was used, in seconds.",
               {seconds(usage.ru_utime) + seconds(usage.ru_stime)});
  text.gauge("process_resident_memory_bytes", "Memory in use.", {resident_pages * page_bytes});
  text.gauge("process_virtual_memory_bytes", "Addresses in use.", {virtual_pages * page_bytes});
  text.gauge("process_open_fds", "Open files.", {open_files - 1});  // not the folder itself
  text.gauge("process_max_fds", "Files that may be open.", {files.rlim_cur});
  text.gauge("process_start_time_seconds", "When it was started, in seconds since 1970.",
             {kStartTime.count()});
  return text.take();
}

}  // namespace quire::server
