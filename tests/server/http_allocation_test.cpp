// Memory runs out on the thread of the connections: no connection and no count is lost.
#include "allocations.h"
#include "server/http_server_fixture.h"

namespace quire::server {
namespace {

using HttpAllocationTest = HttpServerTest;

TEST_F(HttpAllocationTest, AFailedOneCutsAConnectionAtMost) {
  if (!quire::testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  HttpServerConfig config = this->config();
  config.num_threads = 1;
  std::atomic<int> nth = 1;
  std::atomic<bool> failed = true;
  server_.emplace(config, [&](HttpRequest request, const std::shared_ptr<HttpResponder>& responder) {
    if (request.path() == "/fail") quire::testing::fail_allocation(nth);
    if (request.path() == "/end") failed = quire::testing::has_allocation_failed();
    if (request.path() == "/stream") {
      responder->begin(200, {});
      responder->write(std::string(100'000, 'x'));
      return responder->end();
    }
    responder->send(200, {}, "as it should be");
  });
  server_->start();
  // An answer, or the end of the connection.
  const auto ask = [&](HttpClient& client, std::string_view path) {
    client.send(get(path));
    const auto start = std::chrono::steady_clock::now();
    const HttpReply reply = client.read_reply();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 30s) << path << " is left without an answer";
    return reply.status;
  };
  int num_failed = 0;
  for (; failed && !HasFailure(); ++nth) {
    SCOPED_TRACE(nth);
    {
      HttpClient first = connect(), second = connect();
      ask(first, "/fail");
      ask(second, "/stream");
      HttpClient third = connect();
      ask(third, "/echo");
      EXPECT_TRUE(becomes_true([&] {
        HttpClient last = connect();
        return ask(last, "/end") == 200;
      }));
    }
    EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
    num_failed += failed ? 1 : 0;
  }
  EXPECT_GT(num_failed, 10);
}

}  // namespace
}  // namespace quire::server
