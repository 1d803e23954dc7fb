#include "server/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <iterator>
#include <limits>

#include "server/access_rules.h"

namespace quire::server {

namespace http = boost::beast::http;
using boost::beast::iequals;
using ErrorCode = boost::beast::error_code;

namespace {

[[noreturn]] void fail_coding() { throw HttpError(400, "malformed request: bad chunked coding"); }

constexpr const char* kBadHost = "malformed request: it names no host, or no host and port";

// Takes scheme and authority off a target in absolute form (RFC 9112, 3.2.2). Returns the authority.
std::string_view take_authority(std::string_view& target) {
  const std::string_view scheme = target.substr(0, std::min(target.find("://"), target.size()));
  if (scheme == target || (!iequals(scheme, "http") && !iequals(scheme, "https"))) return {};
  target.remove_prefix(scheme.size() + 3);
  const std::string_view authority = target.substr(0, target.find_first_of("/?"));
  if (!is_authority(authority)) throw HttpError(400, kBadHost);
  target.remove_prefix(authority.size());
  return authority;
}

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
  next_ = size > 0 ? Next::kData : chunked_ ? Next::kTrailer : Next::kDone;
}

void BodyReader::take_extra(std::string_view extra, bool ended) {
  const bool control = std::ranges::any_of(
      extra, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; });
  if (control || extra.size() > max_extra_bytes_ - extra_bytes_) fail_coding();
  if (ended) extra_bytes_ += extra.size();
}

std::size_t RequestParser::feed(std::string_view bytes) {
  started_ = started_ || !bytes.empty();
  std::size_t taken = 0;
  if (stage_ == Stage::kHead) taken = feed_head(bytes);
  if (stage_ == Stage::kBody) taken += body_->feed(bytes.substr(taken), request_.body);
  if (stage_ == Stage::kBody && body_->done()) stage_ = Stage::kComplete;
  return taken;
}

std::size_t RequestParser::feed_head(std::string_view bytes) {
  std::size_t taken = 0;
  if (!has_request_line()) {  // empty lines before it are ignored (RFC 9112, 2.2)
    while (bytes.substr(taken).starts_with("\r\n")) taken += 2;
    if (bytes.substr(taken) == "\r") bytes.remove_suffix(1);
  }
  ErrorCode ec;
  if (taken < bytes.size()) taken += head_->put(boost::asio::buffer(bytes.substr(taken)), ec);
  head_bytes_ += taken;
  check_head_size(bytes.substr(taken));
  if (ec && ec != http::error::need_more) throw HttpError(400, "malformed request: " + ec.message());
  if (head_->is_header_done()) finish_head();
  return taken;
}

void RequestParser::check_head_size(std::string_view unparsed) const {
  const std::size_t unfinished = head_->is_header_done() ? 0 : unparsed.size();
  // Most of it may be one target, which is the better thing to say.
  const bool long_line = !has_request_line() && unparsed.find('\n') > limits_.max_target_bytes;
  const bool too_large = head_bytes_ + unfinished > limits_.max_header_bytes;
  if (head_->get().target().size() > limits_.max_target_bytes || (too_large && long_line))
    throw HttpError(414, "the request target is too long");
  if (too_large) throw HttpError(431, "the request headers are too large");
  const auto& fields = head_->get();
  if (static_cast<std::size_t>(std::distance(fields.begin(), fields.end())) > limits_.max_headers)
    throw HttpError(431, "too many request headers");
}

// The head has come: is it one that we take?
void RequestParser::finish_head() {
  const auto& head = head_->get();
  std::string_view target = head.target();
  request_.method = head.method_string();
  request_.host = take_authority(target);
  request_.target = (request_.host.empty() || target.starts_with('/') ? "" : "/") + std::string(target);
  for (const auto& field : head) {
    const std::string_view value = field.value();
    request_.headers.emplace_back(field.name_string(), value);
    if (field.name() == http::field::host) {
      if (!value.empty() && !is_authority(value)) throw HttpError(400, kBadHost);
      if (request_.host.empty()) request_.host = value;  // else the target has named it
    }
    if (field.name() == http::field::transfer_encoding && !iequals(value, "chunked"))
      throw HttpError(501, "the only transfer coding known here is chunked");
    if (field.name() == http::field::expect && !iequals(value, "100-continue"))
      throw HttpError(417, "the only expectation known here is 100-continue");
  }
  const std::size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && http11()))
    throw HttpError(400, "malformed request: it needs exactly one Host header");
  if (head.count(http::field::transfer_encoding) > 0 && !http11())
    throw HttpError(400, "malformed request: HTTP/1.0 has no Transfer-Encoding");
  expect_continue_ = http11() && head.count(http::field::expect) > 0;
  std::optional<std::uint64_t> length;
  if (!head_->chunked()) length = head_->content_length().value_or(0);
  body_.emplace(length, limits_.max_body_bytes, limits_.max_header_bytes);
  stage_ = Stage::kBody;
}

HttpRequest RequestParser::take() {
  stage_ = Stage::kHead;
  started_ = expect_continue_ = false;
  head_bytes_ = 0;
  head_.emplace();
  head_->header_limit(std::numeric_limits<std::uint32_t>::max());  // counted here, over all pieces
  head_->body_limit(boost::none);
  return std::exchange(request_, {});
}

}  // namespace quire::server
