#include "base/error.h"

#include <string_view>

namespace quire::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view name(file);
  name.remove_prefix(name.rfind('/') + 1);
  throw InternalError(format_text("internal error at {}:{}: {} is false{}{}", name, line, condition,
                                  message.empty() ? "" : ": ", message));
}

}  // namespace quire::detail
