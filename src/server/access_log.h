#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "quire/cache_end.h"

namespace quire::server {

// What is told of a request: nothing that it says or is answered. What it does not come to is unset.
struct AccessRecord {
  std::chrono::system_clock::time_point time;  // it came
  std::string method;
  std::string path;  // without the query
  int status = 0;
  std::string request_id;
  std::optional<std::size_t> prompt_tokens;
  std::optional<std::size_t> cached_tokens;
  CacheEnd::Reason cache_end = {};  // as Timings has it
  std::optional<std::size_t> output_tokens;
  std::string finish_reason;                            // of several outputs the last one's; empty: none
  std::optional<std::chrono::nanoseconds> first_token;  // after it came
  std::chrono::nanoseconds total{};
  bool client_gone = false;  // before it had its answer
};

enum class AccessLogFormat { kOff, kText, kJson };

// "off", "text", "json"; Error of anything else.
AccessLogFormat parse_access_log_format(std::string_view name);

// Both end with a line break and have none before.
std::string text_line(const AccessRecord& record);
std::string json_line(const AccessRecord& record);

// Writes one line a request. Thread contract: from any thread. What cannot be written, or not at once, is
// lost; the first failure is told.
class AccessLog {
 public:
  explicit AccessLog(AccessLogFormat format, std::FILE* file = stdout) : format_(format), file_(file) {}

  void write(const AccessRecord& record);

 private:
  AccessLogFormat format_;
  std::mutex mutex_;
  std::FILE* file_;    // guarded by mutex_, as what follows
  bool told_ = false;  // that it cannot be written
};

}  // namespace quire::server
