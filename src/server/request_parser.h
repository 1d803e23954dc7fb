#pragma once

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "server/body_reader.h"
#include "server/http_server.h"

namespace quire::server {

// Reads the requests of one connection, one after another, and holds them to the limits as the bytes arrive.
// Beast reads the heads. Bodies are read here: its chunked coding (1.81) holds an extension of any length in
// memory, and asserts on some of the ways to split one.
class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits);  // kept by reference

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
