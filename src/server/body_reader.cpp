#include "server/body_reader.h"

#include <algorithm>
#include <charconv>

namespace quire::server {

namespace {

[[noreturn]] void fail_coding() { throw HttpError(400, "malformed request: bad chunked coding"); }

}  // namespace

BodyReader::BodyReader(std::optional<std::uint64_t> length, std::size_t max_bytes,
                       std::size_t max_extra_bytes)
    : chunked_(!length), max_bytes_(max_bytes), max_extra_bytes_(max_extra_bytes) {
  if (length) begin_data(*length);
}

std::size_t BodyReader::feed(std::string_view bytes, std::string& body) {
  std::size_t taken = 0;
  while (taken < bytes.size() && !done()) {
    const std::string_view rest = bytes.substr(taken);
    const std::size_t n = next_ == Next::kData ? take_data(rest, body) : take_line(rest);
    if (n == 0) break;
    taken += n;
  }
  return taken;
}

std::size_t BodyReader::take_data(std::string_view bytes, std::string& body) {
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
  body.append(bytes.substr(0, n));
  left_ -= n;
  if (left_ == 0) next_ = chunked_ ? Next::kDataEnd : Next::kDone;
  return n;
}

// What has come of a line is checked before its end has come, too.
std::size_t BodyReader::take_line(std::string_view bytes) {
  const std::size_t end = bytes.find('\n');
  const bool ended = end != std::string_view::npos;
  std::string_view line = bytes.substr(0, end);
  if (line.ends_with('\r'))
    line.remove_suffix(1);
  else if (ended)
    fail_coding();
  if (next_ == Next::kSize) {
    take_size(line, ended);
  } else if (next_ == Next::kTrailer) {
    take_extra(line, ended);
    if (ended && line.empty()) next_ = Next::kDone;
  } else {
    if (!line.empty()) fail_coding();
    if (ended) next_ = Next::kSize;
  }
  return ended ? end + 1 : 0;
}

void BodyReader::take_size(std::string_view line, bool ended) {
  constexpr std::size_t kMaxDigits = 16;
  const std::size_t digits = std::min(line.find_first_not_of("0123456789abcdefABCDEF"), line.size());
  std::uint64_t size = 0;
  std::from_chars(line.data(), line.data() + std::min(digits, kMaxDigits), size, 16);
  check_size(size);
  const std::string_view extension = line.substr(digits);
  const std::size_t begin = extension.find_first_not_of(" \t");
  const bool none = digits == 0 && (ended || !line.empty());
  if (none || digits > kMaxDigits || (begin != std::string_view::npos && extension[begin] != ';'))
    fail_coding();
  take_extra(extension, ended);
  if (ended) begin_data(size);
}

void BodyReader::check_size(std::uint64_t size) const {
  // The sum cannot wrap: bytes_ stays within max_bytes_.
  if (size > max_bytes_ - bytes_) throw HttpError(413, "the request body is too large");
}

void BodyReader::begin_data(std::uint64_t size) {
  check_size(size);
  left_ = size;
  bytes_ += size;
  if (size == 0)
    next_ = chunked_ ? Next::kTrailer : Next::kDone;
  else
    next_ = Next::kData;
}

void BodyReader::take_extra(std::string_view extra, bool ended) {
  const bool control = std::ranges::any_of(
      extra, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; });
  if (control || extra.size() > max_extra_bytes_ - extra_bytes_) fail_coding();
  if (ended) extra_bytes_ += extra.size();
}

}  // namespace quire::server
