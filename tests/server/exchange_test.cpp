#include "server/exchange.h"

#include "server/http_server_fixture.h"

namespace quire::server {
namespace {

using ExchangeTest = HttpServerTest;

TEST_F(ExchangeTest, OneWithoutAnAnswerIsTheServersFaultUnlessItsClientHasGone) {
  AccessRecord told;
  std::atomic<int> num_begun = 0, num_told = 0;
  std::shared_ptr<Exchange> exchange;
  server_.emplace(config(), [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    exchange = std::make_shared<Exchange>(std::move(request), std::move(responder), HttpHeaders(),
                                          [&](const AccessRecord& record) {
                                            told = record;
                                            ++num_told;
                                          });
    ++num_begun;
  });
  server_->start();
  HttpClient stays = connect();
  stays.send(get("/"));
  ASSERT_TRUE(becomes_true([&] { return num_begun == 1; }));
  exchange.reset();
  EXPECT_EQ(stays.read_reply().status, 500);
  ASSERT_EQ(num_told, 1);
  EXPECT_EQ(told.status, 500);
  EXPECT_FALSE(told.client_gone);

  HttpClient goes = connect();
  goes.send(get("/"));
  ASSERT_TRUE(becomes_true([&] { return num_begun == 2; }));
  goes.close();
  ASSERT_TRUE(becomes_true([&] { return exchange->is_gone(); }));
  exchange.reset();
  ASSERT_EQ(num_told, 2);
  EXPECT_EQ(told.status, 499);
  EXPECT_TRUE(told.client_gone);
}

}  // namespace
}  // namespace quire::server
