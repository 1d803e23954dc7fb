#include "base/format.h"

#include <fmt/format.h>

namespace quire::detail {

std::string vformat(fmt::string_view format, fmt::format_args args) { return fmt::vformat(format, args); }

}  // namespace quire::detail
