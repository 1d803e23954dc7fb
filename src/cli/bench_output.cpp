#include "cli/bench_output.h"

#include <cmath>

#include "base/format.h"

namespace quire::cli {

void show_progress(std::size_t done, std::size_t total, std::string_view unit) {
  constexpr std::size_t kWidth = 40;
  const std::size_t filled = kWidth * done / total;
  if (done < total && (done - 1) * kWidth / total == filled && done % 16 != 0) return;
  print_text(stderr, "\r[{}{}] {}/{} {}\033[K{}", std::string(filled, '#'), std::string(kWidth - filled, ' '),
             done, total, unit, done == total ? "\n" : "");
}

std::string figure(double value, int digits) {
  return std::isnan(value) ? "-" : format_text("{:.{}f}", value, digits);
}

void print_figure(std::string_view what, const std::string& value, const std::string& note) {
  print_text(stdout, "{:<8} {:>10} {}\n", what, value, note);
}

}  // namespace quire::cli
