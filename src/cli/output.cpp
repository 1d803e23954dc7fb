#include "cli/output.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/json.h"

namespace quire::cli {

constexpr std::size_t kBarWidth = 40;

void print_json_line(const OrderedJson& object) { print_text(stdout, "{}\n", object.dump()); }

std::string figure(double value, int digits) {
  return std::isnan(value) ? "-" : format_text("{:.{}f}", value, digits);
}

void print_figure(std::string_view what, const std::string& value, const std::string& note) {
  print_text(stdout, "{:<8} {:>10} {}\n", what, value, note);
}

void check_writable(const char* flag, const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) fail("{}: cannot write {}", flag, in_quotes(path));
}

void write_file(const char* flag, const std::string& path, std::string_view text) {
  if (!(std::ofstream(path) << text).flush()) fail("{}: cannot write {}", flag, in_quotes(path));
}

std::string bar(std::uint64_t done, std::uint64_t total) {
  return format_text("[{:<{}}]", std::string(kBarWidth * done / total, '#'), kBarWidth);
}

std::function<void(std::size_t done, std::size_t total)> progress_bar(std::string_view unit) {
  if (isatty(STDERR_FILENO) == 0) return {};
  struct Line {
    bool is_open = false;
    ~Line() {
      if (is_open) print_text(stderr, "\n");
    }
  };
  return [unit, line = std::make_shared<Line>()](std::size_t done, std::size_t total) {
    const bool grows = (done - 1) * kBarWidth / total != done * kBarWidth / total;
    if (done == total || grows || done % 16 == 0)
      print_text(stderr, "\r{} {}/{} {}\033[K{}", bar(done, total), done, total, unit,
                 done == total ? "\n" : "");
    line->is_open = done != total;
  };
}

}  // namespace quire::cli
