// The only file that includes Beast. Of it comes what reads a request's head. Bodies are read here: Beast's
// chunked coding (1.81) holds an extension of any length in memory, and asserts on some of the ways to split
// one.
#include "server/request_parser.h"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/status.hpp>
#include <limits>

#include "server/host_names.h"

namespace quire::server {

namespace http = boost::beast::http;
using boost::beast::iequals;
using BeastView = boost::beast::string_view;
using ErrorCode = boost::beast::error_code;

constexpr const char* kBadHost = "malformed request: it names no host, or no host and port";

// Beast's parser, stopped after the head. Fills in a request.
class RequestParser::Head : public http::basic_parser<true> {
 public:
  Head(const HttpLimits& limits, HttpRequest& request) : limits_(limits), request_(request) {
    header_limit(std::numeric_limits<std::uint32_t>::max());  // RequestParser counts, over all pieces
    body_limit(boost::none);
  }

  bool has_request_line() const { return version_ != 0; }
  bool http11() const { return version_ == 11; }
  bool expects_continue() const { return http11() && expects_continue_; }

  // Throws where put() returned an error, or the fields do not make a request together.
  void check(ErrorCode ec) const {
    if (refused_) throw HttpError(*refused_);
    if (ec == http::error::need_more) return;
    if (ec) throw HttpError(400, "malformed request: " + ec.message());
    if (!is_header_done()) return;
    if (hosts_ > 1 || (hosts_ == 0 && http11()))
      throw HttpError(400, "malformed request: it needs exactly one Host header");
    if (has_coding_ && !http11())
      throw HttpError(400, "malformed request: HTTP/1.0 has no Transfer-Encoding");
    if (content_length().value_or(0) > limits_.max_body_bytes)
      throw HttpError(413, "the request body is too large");
  }

 private:
  void refuse(int status, const char* message, ErrorCode& ec) {
    refused_.emplace(status, message);
    ec = http::error::bad_value;
  }

  void on_request_impl(http::verb, BeastView method, BeastView target, int version, ErrorCode& ec) override {
    if (target.size() > limits_.max_target_bytes) return refuse(414, "the request target is too long", ec);
    version_ = version;
    request_.method = method;
    // A client may send the absolute form (RFC 9112, 3.2.2).
    if (const auto scheme = target.substr(0, target.find("://"));
        iequals(scheme, "http") || iequals(scheme, "https")) {
      target.remove_prefix(target.find("//") + 2);
      const std::size_t path = std::min(target.find_first_of("/?"), target.size());
      request_.host = target.substr(0, path);
      if (!is_authority(request_.host)) return refuse(400, kBadHost, ec);
      target.remove_prefix(path);
      if (!target.starts_with('/')) request_.target = "/";
    }
    request_.target += target;
  }

  void on_field_impl(http::field field, BeastView name, BeastView value, ErrorCode& ec) override {
    if (request_.headers.size() == limits_.max_headers) return refuse(431, "too many request headers", ec);
    request_.headers.emplace_back(name, value);
    if (field == http::field::host) {
      ++hosts_;
      if (!value.empty() && !is_authority(value)) return refuse(400, kBadHost, ec);
      if (request_.host.empty()) request_.host = value;  // else the target has named it
    }
    if (field == http::field::transfer_encoding) {
      has_coding_ = true;
      if (!iequals(value, "chunked")) refuse(501, "the only transfer coding known here is chunked", ec);
    }
    if (field == http::field::expect) {
      expects_continue_ = iequals(value, "100-continue");
      if (!expects_continue_) refuse(417, "the only expectation known here is 100-continue", ec);
    }
  }

  void on_header_impl(ErrorCode&) override {}
  void on_finish_impl(ErrorCode&) override {}

  // Not reached: no byte of a body is put, and answers are not parsed.
  void on_response_impl(int, BeastView, int, ErrorCode&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  std::size_t on_body_impl(BeastView body, ErrorCode&) override { return body.size(); }
  void on_chunk_header_impl(std::uint64_t, BeastView, ErrorCode&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView body, ErrorCode&) override { return body.size(); }

  const HttpLimits& limits_;
  HttpRequest& request_;
  std::optional<HttpError> refused_;
  int version_ = 0;  // 10 or 11, once the request line has been read
  int hosts_ = 0;
  bool has_coding_ = false;
  bool expects_continue_ = false;
};

RequestParser::RequestParser(const HttpLimits& limits)
    : limits_(limits), head_(std::make_unique<Head>(limits, request_)) {}

RequestParser::~RequestParser() = default;

std::size_t RequestParser::feed(std::string_view bytes) {
  started_ = started_ || !bytes.empty();
  std::size_t taken = 0;
  if (stage_ == Stage::kHead) taken = feed_head(bytes);
  if (stage_ == Stage::kBody) taken += feed_body(bytes.substr(taken));
  return taken;
}

std::size_t RequestParser::feed_head(std::string_view bytes) {
  std::size_t taken = 0;
  if (!head_->has_request_line()) {  // empty lines before it are ignored (RFC 9112, 2.2)
    while (bytes.substr(taken).starts_with("\r\n")) taken += 2;
    if (bytes.substr(taken) == "\r") bytes.remove_suffix(1);
  }
  ErrorCode ec;
  if (taken < bytes.size()) {
    const std::string_view rest = bytes.substr(taken);
    taken += head_->put(boost::asio::buffer(rest.data(), rest.size()), ec);
  }
  head_bytes_ += taken;
  check_head_size(bytes.substr(taken));
  head_->check(ec);
  if (head_->is_header_done()) finish_head();
  return taken;
}

void RequestParser::check_head_size(std::string_view unparsed) const {
  const std::size_t unfinished = head_->is_header_done() ? 0 : unparsed.size();
  if (head_bytes_ + unfinished <= limits_.max_header_bytes) return;
  // Most of it may be one target, which is the better thing to say.
  if (!head_->has_request_line() && unparsed.find('\n') > limits_.max_target_bytes)
    throw HttpError(414, "the request target is too long");
  throw HttpError(431, "the request headers are too large");
}

void RequestParser::finish_head() {
  expect_continue_ = head_->expects_continue();
  if (head_->chunked()) {
    chunked_.emplace(limits_.max_body_bytes, limits_.max_header_bytes);
  } else {
    body_left_ = head_->content_length().value_or(0);
  }
  stage_ = chunked_ || body_left_ > 0 ? Stage::kBody : Stage::kComplete;
}

std::size_t RequestParser::feed_body(std::string_view bytes) {
  std::size_t taken;
  bool done;
  if (chunked_) {
    taken = chunked_->feed(bytes, request_.body);
    done = chunked_->done();
  } else {
    taken = static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, bytes.size()));
    request_.body.append(bytes.substr(0, taken));
    body_left_ -= taken;
    done = body_left_ == 0;
  }
  if (done) stage_ = Stage::kComplete;
  return taken;
}

bool RequestParser::take_expect_continue() { return std::exchange(expect_continue_, false); }

bool RequestParser::http11() const { return head_->http11(); }

bool RequestParser::keep_alive() const { return head_->http11() && head_->keep_alive(); }

HttpRequest RequestParser::take() {
  HttpRequest request = std::exchange(request_, {});
  stage_ = Stage::kHead;
  started_ = expect_continue_ = false;
  head_bytes_ = 0;
  head_ = std::make_unique<Head>(limits_, request_);
  body_left_ = 0;
  chunked_.reset();
  return request;
}

std::string_view status_reason(int status) {
  return http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
}

}  // namespace quire::server
