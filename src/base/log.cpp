#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace quire {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  return kLevels[static_cast<std::size_t>(level)];
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto created =
        std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    created->set_level(spdlog::level::warn);
    return created;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void write_log(LogLevel level, std::string_view message) {
  logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace quire
