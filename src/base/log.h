#pragma once

#include <new>
#include <string_view>
#include <utility>

#include "base/format.h"

namespace quire {

enum class LogLevel { kInfo, kWarning, kError };

// Messages go to stderr. They never hold prompt or output text. Safe from any thread.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void write_log(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  try {
    if (log_enabled(level)) write_log(level, format_text(format, std::forward<Args>(args)...));
  } catch (const std::bad_alloc&) {  // there is no memory to say so either
  }
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace quire
