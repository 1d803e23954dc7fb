#pragma once

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/http_server.h"

namespace quire::server {

// What a client sent is no request that is taken; the answer is this status, and the connection ends.
struct HttpError : Error {
  HttpError(int error_status, const std::string& message) : Error(message), status(error_status) {}
  int status;
};

// Reads a body as it arrives: of a known length, or in the chunked coding (RFC 9112, 7.1), which is taken off
// in constant memory. Chunk extensions and trailers are skipped. HttpError: 413 beyond max_bytes; 400 where
// the coding is broken, or its extensions and trailers exceed max_extra_bytes.
class BodyReader {
 public:
  // length: unset where the body is chunked.
  BodyReader(std::optional<std::uint64_t> length, std::size_t max_bytes, std::size_t max_extra_bytes);

  // Appends what the bytes hold of the body. Returns how many were taken: all but a line that has not ended,
  // which must come again, and what stands behind the body.
  std::size_t feed(std::string_view bytes, std::string& body);
  bool done() const { return next_ == Next::kDone; }

 private:
  enum class Next { kSize, kData, kDataEnd, kTrailer, kDone };

  void check_size(std::uint64_t size) const;
  void begin_data(std::uint64_t size);

  std::size_t take_data(std::string_view bytes, std::string& body);
  std::size_t take_line(std::string_view bytes);
  void take_size(std::string_view line, bool ended);
  void take_extra(std::string_view extra, bool ended);

  const bool chunked_;
  const std::size_t max_bytes_;
  const std::size_t max_extra_bytes_;
  Next next_ = Next::kSize;
  std::uint64_t left_ = 0;   // of this chunk, or of the body
  std::uint64_t bytes_ = 0;  // of all chunks so far
  std::size_t extra_bytes_ = 0;
};

// Reads the requests of one connection, one after another, and holds them to the limits as the bytes arrive.
// Beast reads the heads. Bodies are read here: its chunked coding (1.81) holds an extension of any length in
// memory, and asserts on some of the ways to split one.
class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits) : limits_(limits) { take(); }  // kept by reference

  // Returns how many of the bytes are done with; the others must come again, with more behind them. Takes
  // none once complete. Throws HttpError, then the parser is of no further use.
  std::size_t feed(std::string_view bytes);

  bool started() const { return started_; }  // some of the request has come
  bool in_body() const { return stage_ == Stage::kBody; }
  bool complete() const { return stage_ == Stage::kComplete; }
  std::string_view target() const { return head_->get().target(); }  // empty: it has not come
  std::size_t body_bytes() const { return request_.body.size(); }    // so far
  // Whether the client waits for a 100 before it sends the body; says so once.
  bool take_expect_continue() { return std::exchange(expect_continue_, false); }

  // Of the complete request.
  bool http11() const { return head_->get().version() == 11; }
  bool keep_alive() const { return http11() && head_->keep_alive(); }
  HttpRequest take();  // then the parser is ready for the next

 private:
  enum class Stage { kHead, kBody, kComplete };

  std::size_t feed_head(std::string_view bytes);
  void check_head_size(std::string_view unparsed) const;
  void finish_head();
  bool has_request_line() const { return !head_->get().target().empty(); }

  const HttpLimits& limits_;
  Stage stage_ = Stage::kHead;
  bool started_ = false;
  bool expect_continue_ = false;
  std::size_t head_bytes_ = 0;  // done with
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> head_;
  std::optional<BodyReader> body_;
  HttpRequest request_;
};

}  // namespace quire::server
