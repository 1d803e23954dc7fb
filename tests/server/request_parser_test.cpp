#include "server/request_parser.h"

#include <gtest/gtest.h>

namespace quire::server {
namespace {

// Feeds the pieces as a connection would: what is not taken comes again. Returns what is left over.
std::string feed(RequestParser& parser, std::initializer_list<std::string_view> pieces) {
  std::string waiting;
  for (const std::string_view piece : pieces) {
    waiting += piece;
    waiting.erase(0, parser.feed(waiting));
  }
  return waiting;
}

// The status that the bytes are refused with, 200 where they are a request, 0 where it is not complete.
int status_of(std::string_view bytes, const HttpLimits& limits = {}) {
  RequestParser parser(limits);
  try {
    parser.feed(bytes);
  } catch (const HttpError& error) {
    return error.status;
  }
  return parser.complete() ? 200 : 0;
}

std::string describe(const HttpRequest& request) {
  std::string text = request.method + " " + request.target + "\n";
  for (const auto& [name, value] : request.headers) text += name + "=" + value + "\n";
  return text + request.body;
}

const std::string kPlain =
    "POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\nX-Empty:\r\n\r\nhello world";
const std::string kChunked =
    "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5;name=\"v\"\r\nhello\r\n006 \r\n world\r\n0;last\r\nTrailer: x\r\nContent-Length: 3\r\n\r\n";

TEST(RequestParser, ReadsARequest) {
  const HttpLimits limits;
  RequestParser parser(limits);
  EXPECT_FALSE(parser.started());
  EXPECT_EQ(feed(parser, {kPlain}), "");
  ASSERT_TRUE(parser.complete());
  EXPECT_TRUE(parser.keep_alive());
  const HttpRequest request = parser.take();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path(), "/v1/x");
  EXPECT_EQ(request.header("content-LENGTH"), "11");
  EXPECT_EQ(request.header("x-empty"), "");
  EXPECT_EQ(request.header("x-none"), std::nullopt);
  EXPECT_EQ(request.body, "hello world");
}

TEST(RequestParser, ARequestIsTheSameForEverySplit) {
  const HttpLimits limits;
  for (const std::string& bytes : {kPlain, kChunked, "\r\n\r\n" + kPlain}) {
    RequestParser whole(limits);
    feed(whole, {bytes});
    ASSERT_TRUE(whole.complete());
    const std::string expected = describe(whole.take());
    for (std::size_t at = 0; at <= bytes.size(); ++at) {
      RequestParser parser(limits);
      const std::string_view view = bytes;
      EXPECT_EQ(feed(parser, {view.substr(0, at), view.substr(at), "GET"}), "GET") << at;
      ASSERT_TRUE(parser.complete()) << at;
      EXPECT_EQ(describe(parser.take()), expected) << at;
    }
    RequestParser parser(limits);
    std::string waiting;
    for (const char c : bytes) {
      EXPECT_FALSE(parser.complete());
      waiting += c;
      waiting.erase(0, parser.feed(waiting));
    }
    ASSERT_TRUE(parser.complete());
    EXPECT_EQ(describe(parser.take()), expected);
  }
}

TEST(RequestParser, TrailersAreNoHeaders) {
  const HttpLimits limits;
  RequestParser parser(limits);
  feed(parser, {kChunked});
  const HttpRequest request = parser.take();
  EXPECT_EQ(request.body, "hello world");
  EXPECT_EQ(request.headers.size(), 2u);
}

TEST(RequestParser, ReadsOneRequestAfterAnother) {
  const HttpLimits limits;
  RequestParser parser(limits);
  EXPECT_EQ(feed(parser, {kChunked + kPlain}), kPlain);
  EXPECT_EQ(parser.take().target, "/c");
  EXPECT_EQ(feed(parser, {kPlain}), "");
  EXPECT_EQ(parser.take().body, "hello world");
  EXPECT_FALSE(parser.started());
}

TEST(RequestParser, TheAbsoluteFormGivesThePath) {
  const HttpLimits limits;
  for (const auto& [target, path] :
       {std::pair{"http://h:1/a?b", "/a?b"}, std::pair{"https://h", "/"}, std::pair{"HTTP://h?b", "/?b"},
        std::pair{"*", "*"}, std::pair{"http", "http"}, std::pair{"https:/a", "https:/a"}}) {
    RequestParser parser(limits);
    feed(parser, {std::string("OPTIONS ") + target + " HTTP/1.1\r\nHost: a\r\n\r\n"});
    EXPECT_EQ(parser.take().target, path);
  }
}

TEST(RequestParser, TheHostIsTheTargetsOrElseTheHeaders) {
  const HttpLimits limits;
  const std::pair<const char*, const char*> cases[] = {
      {"GET / HTTP/1.1\r\nHost: A.example:80\r\n\r\n", "A.example:80"},
      {"GET http://t:1/a HTTP/1.1\r\nHost: h\r\n\r\n", "t:1"},
      {"GET https://t?q HTTP/1.1\r\nHost: h\r\n\r\n", "t"},
      {"GET HTTP://T/a HTTP/1.1\r\nHost: h\r\n\r\n", "T"},
      {"GET http://[::1]:8000/ HTTP/1.1\r\nHost: h\r\n\r\n", "[::1]:8000"},
      {"GET / HTTP/1.0\r\n\r\n", ""}};
  for (const auto& [request, host] : cases) {
    RequestParser parser(limits);
    feed(parser, {request});
    EXPECT_EQ(parser.take().host, host) << request;
  }
}

TEST(RequestParser, RefusesMalformedRequests) {
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = get + "Transfer-Encoding: chunked\r\n\r\n";
  const std::pair<std::string, int> cases[] = {
      {get + "\r\n", 200},
      {"GET / HTTP/1.0\r\n\r\n", 200},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 200},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a:80x\r\n\r\n", 400},
      {"GET http://a b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET http://a/ HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {get + "Host: b\r\n\r\n", 400},
      {"\x16\x03\x01\x02", 400},  // TLS
      {"PRI * HTTP/2.0\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n", 400},
      {"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {get + "no colon\r\n\r\n", 400},
      {get + "Bad Name: x\r\n\r\n", 400},
      {get + "X: a\x01\r\n\r\n", 400},
      {get + "Content-Length: -1\r\n\r\n", 400},
      {get + "Content-Length: 1x\r\n\r\n", 400},
      {get + "Content-Length: 18446744073709551616\r\n\r\n", 400},
      {get + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {get + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {get + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400},
      {get + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {get + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {get + "Expect: something\r\n\r\n", 417},
      {chunked + "0\r\n\r\n", 200},
      {chunked + "1\r\na\r\n0\r\n\r\n", 200},
      {chunked + "\r\n", 400},
      {chunked + "-1\r\n", 400},
      {chunked + "+1\r\n", 400},
      {chunked + "0x1\r\n", 400},
      {chunked + "1\na\n", 400},
      {chunked + "1 a\r\n", 400},
      {chunked + "1\r\nab\r\n", 400},
      {chunked + "1\r\na0\r\n", 400},
      {chunked + "00000000000000000\r\n", 400},
      {chunked + "ffffffffffffffff\r\n", 413},
      {chunked + "1\r\na\r\nffffffffffffffff\r\n", 413},
      {chunked + "10000000000000000\r\n", 413},
  };
  for (const auto& [bytes, status] : cases) EXPECT_EQ(status_of(bytes), status) << bytes;
}

TEST(RequestParser, HoldsTheHeadToItsLimit) {
  const HttpLimits limits{.max_header_bytes = 200};
  const std::string start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
  const auto head = [&](std::size_t size) {
    return start + std::string(size - start.size() - 4, 'x') + "\r\n\r\n";
  };
  ASSERT_EQ(head(200).size(), 200u);
  EXPECT_EQ(status_of(head(200), limits), 200);
  EXPECT_EQ(status_of(head(201), limits), 431);
  EXPECT_EQ(status_of(start + std::string(200 - start.size(), 'x'), limits), 0);
  EXPECT_EQ(status_of(start + std::string(201 - start.size(), 'x'), limits), 431);
  // In pieces it is the sum that counts.
  RequestParser parser(limits);
  const std::string field = "A: 123456789012345678901234567890\r\n";
  EXPECT_THROW(feed(parser, {"GET / HTTP/1.1\r\n", field, field, field, field, field, field}), HttpError);
}

TEST(RequestParser, HoldsHeadersToTheirNumber) {
  const HttpLimits limits{.max_headers = 3};
  const std::string start = "GET / HTTP/1.1\r\nHost: a\r\nB: 1\r\nC: 1\r\n";
  EXPECT_EQ(status_of(start + "\r\n", limits), 200);
  EXPECT_EQ(status_of(start + "D: 1\r\n\r\n", limits), 431);
}

TEST(RequestParser, HoldsTheTargetToItsLimit) {
  const HttpLimits limits{.max_header_bytes = 200, .max_target_bytes = 50};
  const auto request = [](std::size_t target) {
    return "GET /" + std::string(target - 1, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n";
  };
  EXPECT_EQ(status_of(request(50), limits), 200);
  EXPECT_EQ(status_of(request(51), limits), 414);
  EXPECT_EQ(status_of(request(300), limits), 414);
  EXPECT_EQ(status_of("GET /" + std::string(300, 'x'), limits), 414);
  // A short request line is not to blame, even where it came in two pieces.
  RequestParser parser(limits);
  feed(parser, {"GET / HT"});
  try {
    parser.feed("GET / HTTP/1.1\r\nX: " + std::string(300, 'x'));
    FAIL();
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status, 431);
  }
}

TEST(RequestParser, HoldsTheBodyToItsLimit) {
  const HttpLimits limits{.max_body_bytes = 10};
  const std::string start = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = start + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(start + "Content-Length: 10\r\n\r\n0123456789", limits), 200);
  EXPECT_EQ(status_of(start + "Content-Length: 11\r\n\r\n", limits), 413);
  EXPECT_EQ(status_of(chunked + "5\r\n01234\r\n5\r\n01234\r\n0\r\n\r\n", limits), 200);
  EXPECT_EQ(status_of(chunked + "a\r\n0123456789\r\n0\r\n\r\n", limits), 200);
  EXPECT_EQ(status_of(chunked + "b\r\n", limits), 413);
  EXPECT_EQ(status_of(chunked + "5\r\n01234\r\n6\r\n", limits), 413);
  EXPECT_EQ(status_of(chunked + "5\r\n01234\r\nfffffffffffffffb\r\n", limits), 413);
}

TEST(RequestParser, ChunkExtensionsAndTrailersHaveALimit) {
  const HttpLimits limits{.max_header_bytes = 100};
  const std::string chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(chunked + "1;" + std::string(99, 'x') + "\r\na\r\n0\r\n\r\n", limits), 200);
  EXPECT_EQ(status_of(chunked + "1;" + std::string(100, 'x'), limits), 400);
  EXPECT_EQ(status_of(chunked + "0\r\n" + std::string(101, 'x'), limits), 400);
}

TEST(RequestParser, TenMegabytesInOneByteChunksKeepNothingButTheBody) {
  const HttpLimits limits;
  RequestParser parser(limits);
  feed(parser, {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"});
  const std::size_t size = 10 << 20;
  std::string piece;
  for (int i = 0; i < 1024; ++i) piece += "1\r\nx\r\n";
  for (std::size_t sent = 0; sent < size; sent += 1024) ASSERT_EQ(parser.feed(piece), piece.size());
  EXPECT_EQ(feed(parser, {"0\r\n\r\n"}), "");
  ASSERT_TRUE(parser.complete());
  EXPECT_EQ(parser.take().body, std::string(size, 'x'));
}

TEST(RequestParser, AsksForTheBodyOnce) {
  const HttpLimits limits;
  RequestParser parser(limits);
  feed(parser, {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n"});
  EXPECT_TRUE(parser.in_body());
  EXPECT_TRUE(parser.take_expect_continue());
  EXPECT_FALSE(parser.take_expect_continue());
}

}  // namespace
}  // namespace quire::server
