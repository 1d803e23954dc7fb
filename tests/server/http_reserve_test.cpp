// The connections beyond the limit, which are kept for urgent requests.
#include <vector>

#include "server/http_server_fixture.h"

namespace quire::server {
namespace {

class HttpReserveTest : public HttpServerTest {
 protected:
  // Full from the start; /echo?urgent is urgent.
  void start_full(int num_threads = 2) {
    HttpServerConfig config = this->config();
    config.num_threads = num_threads;
    config.limits.max_connections = 1;
    config.is_urgent = [](const HttpRequest& request) { return request.target == "/echo?urgent"; };
    start(config);
    only_.emplace(connect());
    only_->send(get("/echo"));
    EXPECT_EQ(only_->read_reply().status, 200);
  }
  HttpReply ask(const std::string& request) const {
    HttpClient client = connect();
    client.send(request);
    HttpReply reply = client.read_reply();
    EXPECT_EQ(client.read_to_end(), "");
    return reply;
  }

  std::optional<HttpClient> only_;
};

TEST_F(HttpReserveTest, AnUrgentRequestIsAnsweredWhenConnectionsAreFull) {
  start_full();
  for (int i = 0; i < 100; ++i) {
    HttpReply reply = ask(get("/echo?urgent"));
    EXPECT_EQ(reply.body, "GET /echo?urgent\n");
    EXPECT_EQ(reply.headers["connection"], "close");
  }
  EXPECT_EQ(ask("GET /echo?urgent HTTP/1.0\r\n\r\n").status, 200);
}

TEST_F(HttpReserveTest, EverythingElseIsRefused) {
  start_full();
  const std::string requests[] = {
      get("/echo"),
      post("/echo?urgent", "body"),
      post("/echo", std::string(100'000, 'x')),
      "POST /echo?urgent HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
      get("/echo?urgent", "X: " + std::string(10'000, 'x') + "\r\n"),
      "nonsense\r\n\r\n"};
  for (const std::string& request : requests) {
    const HttpReply reply = ask(request);
    EXPECT_EQ(reply.status, 503) << request.substr(0, 100);
    EXPECT_EQ(reply.headers.at("retry-after"), "1");
  }
  only_->send(get("/echo"));
  EXPECT_EQ(only_->read_reply().status, 200);
}

TEST_F(HttpReserveTest, IdleStrangersInTheReserveGiveWay) {
  for (const int num_threads : {1, 3}) {
    start_full(num_threads);
    std::vector<HttpClient> idle;
    for (int i = 0; i < 300; ++i) {
      idle.push_back(connect());
      idle.back().send("GET /echo?urgent HT");
      if (i % 100 == 99) {
        EXPECT_EQ(ask(get("/echo?urgent")).status, 200) << i;
        EXPECT_TRUE(becomes_true([&] { return server_->connections() <= 33U; }));
      }
    }
    EXPECT_TRUE(becomes_true([&] { return server_->connections() <= 33U; }));
    only_->send(get("/echo"));
    EXPECT_EQ(only_->read_reply().status, 200);
    server_.reset();
  }
}

TEST_F(HttpReserveTest, IdleStrangersDoNotStay) {
  start_full();
  HttpClient silent = connect();
  HttpClient slow = connect();
  slow.send("GET /");
  EXPECT_TRUE(silent.ends_within(10s));
  EXPECT_TRUE(slow.ends_within(10s));
  EXPECT_TRUE(becomes_true([&] { return server_->connections() == 1; }));
}

TEST_F(HttpReserveTest, TheReserveDoesNotCountAsConnections) {
  start_full();
  std::vector<HttpClient> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(connect());
  ASSERT_TRUE(becomes_true([&] { return server_->connections() == 5; }));
  only_->close();
  ASSERT_TRUE(becomes_true([&] { return server_->connections() == 4; }));
  HttpClient next = connect();
  for (int i = 0; i < 2; ++i) {
    next.send(get("/echo"));
    EXPECT_EQ(next.read_reply().status, 200);
  }
}

}  // namespace
}  // namespace quire::server
