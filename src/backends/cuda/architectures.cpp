#include "backends/cuda/architectures.h"

#include <algorithm>
#include <charconv>
#include <ranges>

namespace quire::cuda {
namespace {

bool one_runs_on(std::string_view architecture, int major, int minor) {
  int number = 0;  // 90 for 9.0
  const char* const end = architecture.data() + architecture.size();
  const auto [digits_end, error] = std::from_chars(architecture.data(), end, number);
  if (error != std::errc()) return true;
  const std::string_view rest(digits_end, end);
  if (rest.starts_with('a')) return number == major * 10 + minor;
  if (major == 9) return false;  // its kernels are those of 90a
  if (major > 9 && number < 90)
    return false;  // clusters of blocks are asked for, and not in what was compiled
  const bool in_family = number / 10 == major && number % 10 <= minor;
  if (rest.starts_with('f') || rest == "-real") return in_family;
  return number <= major * 10 + minor;
}

}  // namespace

bool runs_on(std::string_view architectures, int major, int minor) {
  return std::ranges::any_of(std::views::split(architectures, ' '), [&](const auto& part) {
    const std::string_view architecture(part.begin(), part.end());
    return !architecture.empty() && one_runs_on(architecture, major, minor);
  });
}

}  // namespace quire::cuda
