// Clients that ask for too much, take too long, or go: the limits and disconnects of HttpServer.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <vector>

#include "server/http_server_fixture.h"

namespace quire::server {
namespace {

TEST_F(HttpServerTest, RefusesWithAJsonBodyAndCloses) {
  HttpServerConfig config = this->config();
  config.limits.max_header_bytes = 300;
  config.limits.max_headers = 5;
  config.limits.max_target_bytes = 100;
  config.limits.max_body_bytes = 1000;
  config.error_body = [](int status, const std::string& message, const std::string&) {
    return std::to_string(status) + ": " + message;
  };
  start(config);
  const std::string body(1'000'000, 'x');
  const std::pair<std::string, std::string> cases[] = {
      {get("/" + std::string(150, 'x')), "414: the request target is too long"},
      {get("/", "X: " + std::string(300, 'x') + "\r\n"), "431: the request headers are too large"},
      {get("/", "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\n"), "431: too many request headers"},
      {post("/echo", body), "413: the request body is too large"},  // its client goes on sending
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nf4240\r\n" + body,
       "413: the request body is too large"},
      {"nonsense\r\n\r\n", "400: malformed request: bad method"},
  };
  for (const auto& [request, expected] : cases) {
    HttpClient client = connect();
    client.send(get("/echo"));
    EXPECT_EQ(client.read_reply().status, 200);
    EXPECT_TRUE(client.send(request)) << expected;
    HttpReply reply = client.read_reply();
    EXPECT_EQ(std::to_string(reply.status), expected.substr(0, 3));
    EXPECT_EQ(reply.body, expected);
    EXPECT_EQ(reply.headers["content-type"], "application/json");
    EXPECT_EQ(reply.headers["connection"], "close");
    EXPECT_EQ(client.read_to_end(), "");
  }
  HttpClient client = connect();
  client.send(post("/echo", std::string(1000, 'x')));
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(HttpServerTest, SlowHeadersAreCutWhileOthersAreServed) {
  HttpServerConfig config = this->config();
  config.limits.header_timeout = 1s;
  start(config);
  std::vector<HttpClient> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(connect());
    slow.back().send("GET / HTTP/1.1\r\nHost: a\r\nX-");
  }
  HttpClient client = connect();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    client.send(get("/echo"));
    EXPECT_EQ(client.read_reply().status, 200);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  std::this_thread::sleep_for(600ms);
  for (HttpClient& each : slow) each.send("a");  // a byte now and then does not help
  for (HttpClient& each : slow) {
    EXPECT_EQ(each.read_reply().status, 408);
    EXPECT_EQ(each.read_to_end(), "");
  }
  client.send(get("/echo"));
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(HttpServerTest, ABodyThatStopsIsA408) {
  HttpServerConfig config = this->config();
  config.limits.body_timeout = 300ms;
  config.limits.header_timeout = 100ms;  // is no limit of the body
  start(config);
  HttpClient client = connect();
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na");
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(150ms);
    client.send("b");
  }
  EXPECT_EQ(client.read_reply().body, "POST /echo\nabbb");
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na");
  EXPECT_EQ(client.read_reply().status, 408);
  EXPECT_EQ(client.read_to_end(), "");
}

TEST_F(HttpServerTest, IdleConnectionsAreClosedWithoutAWord) {
  HttpServerConfig config = this->config();
  config.limits.idle_timeout = 200ms;
  config.limits.header_timeout = 50ms;
  start(config);
  HttpClient fresh = connect();
  EXPECT_EQ(fresh.read_to_end(), "");
  HttpClient client = connect();
  for (int i = 0; i < 3; ++i) {
    client.send(get("/echo"));
    EXPECT_EQ(client.read_reply().status, 200);
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_EQ(client.read_to_end(), "");
}

TEST_F(HttpServerTest, AnAnswerMayTakeLongerThanAnyTimeout) {
  HttpServerConfig config = this->config();
  config.limits.header_timeout = config.limits.body_timeout = config.limits.idle_timeout =
      config.limits.write_timeout = 50ms;
  start(config);
  HttpClient client = connect();
  client.send(get("/hold"));
  const HeldRequest held = wait_held();
  std::this_thread::sleep_for(200ms);
  held.responder->begin(200, {});
  std::this_thread::sleep_for(200ms);
  held.responder->write("x");
  std::this_thread::sleep_for(200ms);
  held.responder->end();
  EXPECT_EQ(client.read_reply().body, "x");
  EXPECT_EQ(*held.disconnects, 0);
}

TEST_F(HttpServerTest, OneConnectionTooManyIsA503) {
  HttpServerConfig config = this->config();
  config.limits.max_connections = 2;
  start(config);
  HttpClient first = connect(), second = connect();
  for (HttpClient* client : {&first, &second}) {
    client->send(get("/echo"));
    EXPECT_EQ(client->read_reply().status, 200);
  }
  HttpClient third = connect();
  third.send(get("/echo"));
  EXPECT_EQ(third.read_reply().status, 503);
  EXPECT_EQ(third.read_to_end(), "");
  first.close();
  third.close();
  ASSERT_TRUE(becomes_true([&] { return server_->connections() == 1; }));
  HttpClient fourth = connect();
  fourth.send(get("/echo"));
  EXPECT_EQ(fourth.read_reply().status, 200);
}

TEST_F(HttpServerTest, BodiesThatAreTooLargeTogetherAreA503) {
  HttpServerConfig config = this->config();
  config.num_threads = 1;  // it reads in the order in which was sent
  config.limits.max_total_body_bytes = 1000;
  start(config);
  const auto status_of = [&](const std::string& request) {
    HttpClient client = connect();
    client.send(request);
    const HttpReply reply = client.read_reply();
    if (reply.status == 503) {
      EXPECT_EQ(reply.headers.at("retry-after"), "1");
      EXPECT_EQ(client.read_to_end(), "");
    }
    return reply.status;
  };
  const std::string most_of_one =
      "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n" + std::string(500, 'x');
  HttpClient slow = connect();
  slow.send(most_of_one);
  EXPECT_EQ(status_of(post("/echo", std::string(500, 'x'))), 200);
  EXPECT_EQ(status_of(post("/echo", std::string(501, 'x'))), 503);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1f5\r\n" +
                      std::string(501, 'x')),
            503);
  HttpClient refused = connect();
  refused.send(post("/echo", std::string(501, 'x')));
  EXPECT_EQ(refused.read_reply().status, 503);
  EXPECT_EQ(status_of(post("/echo", std::string(500, 'x'))), 200);  // what was refused does not count
  refused.close();
  slow.send(std::string(100, 'x'));
  const HeldRequest held = wait_held();
  EXPECT_EQ(status_of(post("/echo", std::string(1000, 'x'))), 200);  // nor what was handed over
  EXPECT_EQ(status_of(post("/echo", std::string(1001, 'x'))), 503);
  held.responder->send(200, {}, "");
  EXPECT_EQ(slow.read_reply().status, 200);
  slow.send(most_of_one);
  EXPECT_EQ(status_of(post("/echo", std::string(501, 'x'))), 503);
  slow.reset();
  EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
  EXPECT_EQ(status_of(post("/echo", std::string(1000, 'x'))), 200);  // nor what will not come
}

rlimit file_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}
void allow_files(rlim_t soft, rlim_t hard) {
  const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Puts the limit back that a test has changed.
class FileLimitTest : public HttpServerTest {
 protected:
  void TearDown() override {
    HttpServerTest::TearDown();
    allow_files(before_.rlim_cur, before_.rlim_max);
  }

  const rlimit before_ = file_limit();
};

TEST_F(FileLimitTest, IsRaisedToWhatTheConnectionsNeed) {
  allow_files(100, before_.rlim_max);
  HttpServerConfig config = this->config();
  config.limits.max_connections = 200;
  start(config);
  EXPECT_GT(file_limit().rlim_cur, 200u);
  EXPECT_EQ(file_limit().rlim_max, before_.rlim_max);
}

TEST_F(FileLimitTest, AHardLimitThatIsTooLowIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        allow_files(100, 300);
        start();
        server_.reset();
        std::exit(file_limit().rlim_cur == 300 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "108 connections at most, not 4096: .* is 300");
}

TEST_F(FileLimitTest, WithoutADescriptorClientsWaitAndStreamsGoOn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the check of virtual tables, built with ASan's, opens a pipe and fails without";
#endif
  start();
  HttpClient streaming = connect();
  const HeldRequest held = begin_held(streaming);
  const int next = ::dup(streaming.fd());
  ::close(next);
  allow_files(static_cast<rlim_t>(next) + 1, before_.rlim_max);  // one more, which is the client's
  HttpClient waiting = connect();
  waiting.send(get("/echo"));
  const std::clock_t cpu = std::clock();
  pollfd poll{.fd = waiting.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&poll, 1, 300), 0);
  EXPECT_LT(std::clock() - cpu, CLOCKS_PER_SEC / 5);  // the server does not spin
  held.responder->write("x");
  held.responder->end();
  EXPECT_EQ(streaming.read_reply().body, "x");
  EXPECT_EQ(server_->connections(), 1u);
  streaming.close();
  EXPECT_EQ(waiting.read_reply().body, "GET /echo\n");
}

TEST_F(HttpServerTest, ADisconnectIsToldOnceInEveryStage) {
  start();
  using Leave = void (HttpClient::*)();
  for (const Leave leave : {&HttpClient::close, &HttpClient::reset}) {
    {  // while reading: no handler is called
      HttpClient client = connect();
      client.send("POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na");
      (client.*leave)();
      EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
      EXPECT_TRUE(nothing_held());
    }
    for (const int stage : {0, 1, 2}) {  // before the answer, after its begin, after a write
      HttpClient client = connect();
      client.send(get("/hold"));
      const HeldRequest held = wait_held();
      if (stage >= 1) held.responder->begin(200, {});
      if (stage >= 2) held.responder->write("x");
      std::this_thread::sleep_for(5ms);
      EXPECT_EQ(*held.disconnects, 0);
      (client.*leave)();
      EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; })) << stage;
      EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
      if (stage == 0) held.responder->begin(200, {});
      held.responder->write("x");
      held.responder->end();
      EXPECT_EQ(*held.disconnects, 1);
    }
    {  // after the end
      HttpClient client = connect();
      client.send(get("/hold"));
      const HeldRequest held = wait_held();
      held.responder->send(200, {}, "x");
      (client.*leave)();
      EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
      EXPECT_EQ(*held.disconnects, 0);
    }
  }
}

TEST_F(HttpServerTest, ADisconnectWithRequestsSentAheadIsTold) {
  start();
  HttpClient client = connect();
  client.send(get("/hold") + get("/hold") + get("/hold"));
  const HeldRequest held = wait_held();
  client.close();
  EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; }));
  EXPECT_TRUE(nothing_held());
}

TEST_F(HttpServerTest, WhoAsksAfterTheDisconnectIsToldAtOnce) {
  start();
  HttpClient client = connect();
  client.send(get("/hold"));
  const HeldRequest held = wait_held();
  client.close();
  ASSERT_TRUE(becomes_true([&] { return *held.disconnects == 1; }));
  int calls = 0;
  held.responder->on_disconnect([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

// Either one may win.
TEST_F(HttpServerTest, TheEndOfAStreamAndADisconnectMayRace) {
  race_with_a_close([](HttpResponder& responder) { responder.end(); },
                    [this](const HeldRequest& held) {
                      EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
                      EXPECT_LE(*held.disconnects, 1);
                    });
}

// The next client's socket may have the same descriptor.
TEST_F(HttpServerTest, WritesToAClientThatGoesDoNotReachTheNext) {
  start();
  for (int i = 0; i < 200; ++i) {
    HttpClient client = connect();
    const HeldRequest held = begin_held(client);
    std::thread writer([&] {
      while (*held.disconnects == 0) held.responder->write("stray");
    });
    client.reset();
    HttpClient next = connect();
    next.send(get("/echo", "Connection: close\r\n"));
    EXPECT_EQ(next.read_reply().body, "GET /echo\n");
    EXPECT_EQ(next.read_to_end(), "");
    writer.join();
  }
}

TEST_F(HttpServerTest, AStreamThatIsNotReadIsCutAtItsLimit) {
  HttpServerConfig config = this->config();
  config.limits.max_unsent_bytes = 100'000;
  start(config);
  HttpClient client = connect(4096);
  const HeldRequest held = begin_held(client);
  std::size_t written = 0;
  for (; *held.disconnects == 0 && written < (64u << 20); written += 10'000) {
    held.responder->write(std::string(10'000, 'x'));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(*held.disconnects, 1);
  EXPECT_LT(written, 8u << 20);  // with what the system holds
  EXPECT_FALSE(client.read_reply().whole);
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(HttpServerTest, AStreamWithoutProgressIsCutInTime) {
  HttpServerConfig config = this->config();
  config.limits.max_unsent_bytes = 64 << 20;
  config.limits.write_timeout = 200ms;
  start(config);
  HttpClient client = connect(4096);
  const HeldRequest held = begin_held(client);
  held.responder->write(std::string(32 << 20, 'x'));
  EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; }));
}

TEST_F(HttpServerTest, AWholeAnswerThatIsNotReadIsCutInTime) {
  HttpServerConfig config = this->config();
  config.limits.write_timeout = 200ms;
  start(config);
  HttpClient client = connect(4096);
  client.send(get("/hold"));
  wait_held().responder->send(200, {}, std::string(32 << 20, 'x'));
  EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
  EXPECT_FALSE(client.read_reply().whole);
}

TEST_F(HttpServerTest, ASlowReaderThatReadsIsKept) {
  HttpServerConfig config = this->config();
  config.limits.write_timeout = 500ms;
  start(config);
  HttpClient client = connect(64 << 10);
  client.send(get("/hold"));
  const HeldRequest held = wait_held();
  const std::string body(8 << 20, 'x');
  held.responder->send(200, {}, body);
  std::string got;
  char buffer[64 << 10];
  const auto begin = std::chrono::steady_clock::now();
  while (got.size() < body.size()) {  // for over a second
    const ssize_t n = ::recv(client.fd(), buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    got.append(buffer, static_cast<std::size_t>(n));
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_EQ(got.substr(got.size() - 10), "xxxxxxxxxx");
}

}  // namespace
}  // namespace quire::server
