#include "base/format.h"

#include <fmt/format.h>

namespace quire::detail {

std::string vformat(fmt::string_view format, fmt::format_args args) { return fmt::vformat(format, args); }

void vprint(std::FILE* file, fmt::string_view format, fmt::format_args args) {
  const std::string text = fmt::vformat(format, args);
  std::fwrite(text.data(), 1, text.size(), file);
}

}  // namespace quire::detail
