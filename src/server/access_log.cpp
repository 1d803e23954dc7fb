#include "server/access_log.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxText = 200;  // bytes of what a client may make as long as it likes

std::string utc(std::chrono::system_clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return format_text("{}.{:03}Z", utc_text(since / 1000, "%Y-%m-%dT%H:%M:%S"), since % 1000);
}

double milliseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count() / 1000) / 1000;  // whole microseconds
}

// As it is where nobody could take it for more than one word, otherwise in quotes.
std::string word(std::string_view text) {
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '='; };
  const bool plain = !text.empty() && text.size() <= kMaxText && std::ranges::all_of(text, is_plain);
  return plain ? std::string(text) : in_quotes(text);
}

std::string cut(const std::string& text) {
  return text.size() > kMaxText ? text.substr(0, kMaxText) + "..." : text;
}

}  // namespace

AccessLogFormat parse_access_log_format(std::string_view name) {
  if (name == "off") return AccessLogFormat::kOff;
  if (name == "text") return AccessLogFormat::kText;
  if (name == "json") return AccessLogFormat::kJson;
  fail("access-log {} is not known; use text, json or off", in_quotes(name));
}

std::string text_line(const AccessRecord& record) {
  std::string line = format_text("{} {} {} {} id={}", utc(record.time), word(record.method),
                                 word(record.path), record.status, word(record.request_id));
  if (record.prompt_tokens) line += format_text(" prompt={}", *record.prompt_tokens);
  if (record.cached_tokens) line += format_text(" cached={}", *record.cached_tokens);
  if (record.cache_end != CacheEnd::Reason::kNone)
    line += format_text(" cache_end={}", to_string(record.cache_end));
  if (record.output_tokens) line += format_text(" output={}", *record.output_tokens);
  if (!record.finish_reason.empty()) line += format_text(" finish={}", word(record.finish_reason));
  if (record.first_token) line += format_text(" first_token={:.1f}ms", milliseconds(*record.first_token));
  line += format_text(" total={:.1f}ms", milliseconds(record.total));
  if (record.client_gone) line += " client gone";
  return line + "\n";
}

std::string json_line(const AccessRecord& record) {
  OrderedJson line = {{"time", utc(record.time)},
                      {"method", cut(record.method)},
                      {"path", cut(record.path)},
                      {"status", record.status},
                      {"request_id", cut(record.request_id)}};
  if (record.prompt_tokens) line["prompt_tokens"] = *record.prompt_tokens;
  if (record.cached_tokens) line["cached_tokens"] = *record.cached_tokens;
  if (record.cache_end != CacheEnd::Reason::kNone) line["cache_end"] = to_string(record.cache_end);
  if (record.output_tokens) line["output_tokens"] = *record.output_tokens;
  if (!record.finish_reason.empty()) line["finish_reason"] = record.finish_reason;
  if (record.first_token) line["first_token_ms"] = milliseconds(*record.first_token);
  line["total_ms"] = milliseconds(record.total);
  line["client_gone"] = record.client_gone;
  return line.dump(-1, ' ', true, OrderedJson::error_handler_t::replace) + "\n";
}

void AccessLog::write(const AccessRecord& record) {
  if (format_ == AccessLogFormat::kOff) return;
  const std::string line = format_ == AccessLogFormat::kJson ? json_line(record) : text_line(record);
  const std::lock_guard lock(mutex_);
  // Who reads the log may stall, the server may not. A pipe that is ready takes PIPE_BUF bytes, more than a
  // line has, without waiting.
  pollfd output{.fd = ::fileno(file_), .events = POLLOUT, .revents = 0};
  if (::poll(&output, 1, 0) != 1 || (output.revents & POLLOUT) == 0) return;
  const bool written =
      std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
  if (!written && !std::exchange(told_, true))
    log_warning("the access log: {}; lines are lost", std::strerror(errno));
}

}  // namespace quire::server
