#include "base/format.h"

#include <fmt/format.h>

namespace quire {

std::string detail::vformat(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(format, args);
}

std::string utc_text(std::time_t time, const char* format) {
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return "?";
  char text[40];  // the program never leaves the C locale
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

}  // namespace quire
