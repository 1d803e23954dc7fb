#include <filesystem>
#include <vector>

#include "expect_error.h"
#include "server/http_server_fixture.h"

namespace quire::server {
namespace {

TEST_F(HttpServerTest, AnswersRequestsOfOneConnection) {
  start();
  HttpClient client = connect();
  for (int i = 0; i < 3; ++i) {
    client.send(post("/echo?i=" + std::to_string(i), "abc"));
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /echo?i=" + std::to_string(i) + "\nabc");
    EXPECT_EQ(reply.headers.at("content-type"), "text/plain");
    EXPECT_EQ(reply.headers.at("date").size(), 29u);
    EXPECT_EQ(reply.headers.count("connection"), 0u);
  }
  EXPECT_EQ(server_->connections(), 1u);
  client.close();
  EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
}

TEST_F(HttpServerTest, TakesARequestByteByByte) {
  start();
  HttpClient client = connect();
  for (const char c : post("/echo", "hello")) client.send({&c, 1});
  EXPECT_EQ(client.read_reply().body, "POST /echo\nhello");
}

TEST_F(HttpServerTest, TakesALargeBodyAndSendsItBack) {
  start();
  HttpClient client = connect();
  std::string body(16 << 20, ' ');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i * 2654435761u % 26);
  client.send(post("/echo", body));
  EXPECT_TRUE(client.read_reply().body == "POST /echo\n" + body);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrderOneAtATime) {
  start();
  HttpClient client = connect();
  client.send(get("/hold?1") + get("/echo") + get("/hold?2") + get("/hold?3"));
  HeldRequest held = wait_held();
  EXPECT_EQ(held.request.target, "/hold?1");
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(nothing_held());
  held.responder->send(200, {}, "one");
  held = wait_held();
  EXPECT_EQ(held.request.target, "/hold?2");
  held.responder->begin(200, {});
  held.responder->write("tw");
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(nothing_held());
  held.responder->write("o");
  held.responder->end();
  wait_held().responder->send(200, {}, "three");
  EXPECT_EQ(client.read_reply().body, "one");
  EXPECT_EQ(client.read_reply().body, "GET /echo\n");
  EXPECT_EQ(client.read_reply().body, "two");
  EXPECT_EQ(client.read_reply().body, "three");
}

// More than the read buffer holds: reading stops until answers have gone out.
TEST_F(HttpServerTest, AnswersAThousandPipelinedRequests) {
  start();
  HttpClient client = connect();
  std::string requests;
  for (int i = 0; i < 1000; ++i) requests += post("/echo?" + std::to_string(i), std::string(100, 'x'));
  std::thread sender([&] { client.send(get("/hold") + requests); });
  HeldRequest held = wait_held();
  std::this_thread::sleep_for(20ms);
  held.responder->send(200, {}, "first");
  sender.join();
  EXPECT_EQ(client.read_reply().body, "first");
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(client.read_reply().body, "POST /echo?" + std::to_string(i) + "\n" + std::string(100, 'x'));
}

TEST_F(HttpServerTest, AsksForABodyThatIsHeldBack) {
  start();
  HttpClient client = connect();
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send("ab");
  EXPECT_EQ(client.read_reply().body, "POST /echo\nab");
  // A body that is too large is refused without it.
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 413);
}

TEST_F(HttpServerTest, HandsHeadAndOptionsOn) {
  start();
  HttpClient client = connect();
  client.send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n" + get("/echo"));
  const HttpReply head = client.read_reply(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "11");
  EXPECT_EQ(client.read_reply().body, "GET /echo\n");
  client.send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "OPTIONS *\n");
}

TEST_F(HttpServerTest, SendsNoBodyWhereThereIsNone) {
  start();
  HttpClient client = connect();
  client.send("HEAD /hold HTTP/1.1\r\nHost: a\r\n\r\n" + get("/hold") + get("/echo"));
  const HeldRequest head = wait_held();
  head.responder->begin(200, {});
  head.responder->write("x");
  head.responder->end();
  wait_held().responder->send(204, {}, "");
  EXPECT_EQ(client.read_reply(true).status, 200);
  const HttpReply none = client.read_reply();
  EXPECT_EQ(none.status, 204);
  EXPECT_EQ(none.headers.count("content-length"), 0u);
  EXPECT_EQ(client.read_reply().body, "GET /echo\n");
}

TEST_F(HttpServerTest, ClosesWhereTheClientWantsIt) {
  start();
  HttpClient client = connect();
  client.send(get("/echo", "Connection: close\r\n"));
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_EQ(client.read_to_end(), "");
}

TEST_F(HttpServerTest, AnswersHttp10WithoutChunksAndCloses) {
  start();
  HttpClient plain = connect();
  plain.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(plain.read_reply().body, "GET /echo\n");
  EXPECT_EQ(plain.read_to_end(), "");

  HttpClient streaming = connect();
  streaming.send("GET /hold HTTP/1.0\r\n\r\n");
  const HeldRequest held = wait_held();
  held.responder->begin(200, {});
  held.responder->write("ab");
  held.responder->write("c");
  held.responder->end();
  const HttpReply reply = streaming.read_reply();
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(reply.body, "abc");
}

TEST_F(HttpServerTest, EveryWriteArrivesBeforeTheNext) {
  HttpServerConfig config = this->config();
  config.limits.max_unsent_bytes = 100;  // less than all of it
  start(config);
  HttpClient client = connect();
  client.send(get("/hold"));
  const HeldRequest held = wait_held();
  held.responder->begin(200, {{"Content-Type", "text/event-stream"}});
  EXPECT_NE(client.read_until("\r\n\r\n"), "");
  for (int i = 0; i < 10; ++i) {
    const std::string event = "data: " + std::to_string(i) + "\n\n";
    held.responder->write(event);
    EXPECT_EQ(client.read_until(event + "\r\n"), "9\r\n" + event + "\r\n");
  }
  held.responder->write("");  // no chunk, which would be the end
  held.responder->end();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_EQ(*held.disconnects, 0);
}

// The system takes them at once, in part, or not until the client has read.
TEST_F(HttpServerTest, SmallWritesArriveInOrder) {
  HttpServerConfig config = this->config();
  config.limits.max_unsent_bytes = 64 << 20;
  start(config);
  HttpClient client = connect(4096);
  client.send("GET /hold HTTP/1.0\r\n\r\n");
  const HeldRequest held = wait_held();
  held.responder->begin(200, {});
  client.read_until("\r\n\r\n");
  std::size_t sent = 0, read = 0;
  const auto digit = [](std::size_t at) { return static_cast<char>('0' + at * 2654435761u % 1000003 % 10); };
  const auto write = [&] {
    std::string piece(1 + sent * 7919 % 10'000, ' ');
    for (char& c : piece) c = digit(sent++);
    held.responder->write(std::move(piece));
  };
  const auto read_some = [&] {
    char buffer[8192];
    const ssize_t n = ::recv(client.fd(), buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    for (ssize_t i = 0; i < n; ++i) ASSERT_EQ(buffer[i], digit(read++)) << read;
  };
  for (int round = 0; round < 10; ++round) {
    for (const std::size_t end = sent + 500'000; sent < end;) write();
    for (int i = 0; i < 200; ++i) {
      ASSERT_NO_FATAL_FAILURE(read_some());
      write();
    }
    while (read < sent) ASSERT_NO_FATAL_FAILURE(read_some());
  }
}

TEST_F(HttpServerTest, Serves256StreamsAtOnce) {
  start();
  constexpr int kStreams = 256, kWrites = 40;
  std::vector<HttpClient> clients;
  std::vector<HeldRequest> held;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(connect());
    clients.back().send(get("/hold?" + std::to_string(i)));
  }
  for (int i = 0; i < kStreams; ++i) held.push_back(wait_held());
  std::thread writer([&] {
    for (const HeldRequest& stream : held) stream.responder->begin(200, {});
    for (int w = 0; w < kWrites; ++w)
      for (const HeldRequest& stream : held) stream.responder->write(stream.request.target + ";");
    for (const HeldRequest& stream : held) stream.responder->end();
  });
  for (int i = 0; i < kStreams; ++i) {
    std::string expected;
    for (int w = 0; w < kWrites; ++w) expected += "/hold?" + std::to_string(i) + ";";
    const HttpReply reply = clients[static_cast<std::size_t>(i)].read_reply();
    EXPECT_TRUE(reply.whole);
    EXPECT_EQ(reply.body, expected);
  }
  writer.join();
  for (const HeldRequest& stream : held) EXPECT_EQ(*stream.disconnects, 0);
}

TEST_F(HttpServerTest, WhatAHandlerThrowsIsA500ThatDoesNotTell) {
  start();
  HttpClient client = connect();
  client.send(get("/throw") + get("/drop") + get("/echo"));
  for (int i = 0; i < 2; ++i) {
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.body, R"({"error":{"message":"internal server error"}})");
  }
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(HttpServerTest, AnErrorThatCannotBeAnsweredIsLoggedAndTheClientCut) {
  HttpServerConfig config = this->config();
  config.error_body = [](int, const std::string&, const std::string&) -> std::string {
    throw std::runtime_error("no words");
  };
  start(config);
  for (const std::string& request : {get("/drop"), std::string("nonsense\r\n\r\n")}) {
    ::testing::internal::CaptureStderr();
    HttpClient client = connect();
    client.send(request);
    EXPECT_EQ(client.read_to_end(), "");
    EXPECT_TRUE(becomes_true([&] { return server_->connections() == 0; }));
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("connection of 127.0.0.1:"), std::string::npos) << said;
    EXPECT_NE(said.find(": no words\n"), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

TEST_F(HttpServerTest, AnUnfinishedStreamIsCutNotEnded) {
  start();
  HttpClient client = connect();
  client.send(get("/hold"));
  wait_held().responder->begin(200, {});
  const HttpReply reply = client.read_reply();
  EXPECT_FALSE(reply.whole);
}

TEST_F(HttpServerTest, ASecondAnswerIsABug) {
  start();
  HttpClient client = connect();
  client.send(get("/hold"));
  const HeldRequest held = wait_held();
  EXPECT_THROW(held.responder->write("x"), InternalError);
  EXPECT_THROW(held.responder->end(), InternalError);
  held.responder->send(200, {}, "a");
  EXPECT_THROW(held.responder->send(200, {}, "b"), InternalError);
  EXPECT_THROW(held.responder->begin(200, {}), InternalError);
  EXPECT_EQ(client.read_reply().body, "a");
}

TEST_F(HttpServerTest, AHeaderCannotBeSplit) {
  start();
  HttpClient client = connect();
  client.send(get("/hold"));
  wait_held().responder->send(200, {{"X-Request-Id", "a\r\nSet-Cookie: b"}}, "");
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.headers.count("set-cookie"), 0u);
  EXPECT_EQ(reply.headers.at("x-request-id"), "a  Set-Cookie: b");
}

TEST_F(HttpServerTest, AnAddressInUseIsNamed) {
  start();
  HttpServerConfig second = config();
  second.port = server_->port();
  expect_error([&] { HttpServer(second, {}); },
               {"cannot listen on 127.0.0.1:" + std::to_string(server_->port()), "in use"});
  second.host = "no.such.host.invalid";
  expect_error([&] { HttpServer(second, {}); }, {"cannot listen on no.such.host.invalid:"});
}

// Stopping.

TEST_F(HttpServerTest, StopClosesIdleConnectionsAndFinishesAnswers) {
  start();
  HttpClient idle = connect();
  idle.send(get("/echo"));
  idle.read_reply();
  HttpClient waiting = connect();
  waiting.send(get("/hold"));
  const HeldRequest first = wait_held();
  HttpClient streaming = connect();
  const HeldRequest second = begin_held(streaming);
  HttpClient sending = connect();
  sending.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
  std::this_thread::sleep_for(20ms);

  std::thread stopper([&] { server_->stop(10s); });
  EXPECT_TRUE(idle.ends_within(5s));
  EXPECT_TRUE(becomes_true([&] {
    try {
      connect();
    } catch (const std::exception&) {
      return true;
    }
    return false;
  }));
  first.responder->send(200, {}, "late");
  const HttpReply reply = waiting.read_reply();
  EXPECT_EQ(reply.body, "late");
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_EQ(waiting.read_to_end(), "");
  second.responder->write("more");
  second.responder->end();
  EXPECT_EQ(streaming.read_reply().body, "more");
  EXPECT_EQ(streaming.read_to_end(), "");
  sending.send("cd");
  EXPECT_EQ(sending.read_reply().body, "POST /echo\nabcd");
  stopper.join();
  EXPECT_EQ(server_->connections(), 0u);
  EXPECT_EQ(*first.disconnects + *second.disconnects, 0);
}

TEST_F(HttpServerTest, StopCutsWhatDoesNotFinishInTime) {
  start();
  HttpClient waiting = connect();
  waiting.send(get("/hold"));
  const HeldRequest first = wait_held();
  HttpClient streaming = connect();
  const HeldRequest second = begin_held(streaming);
  const auto begin = std::chrono::steady_clock::now();
  server_->stop(100ms);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 100ms);
  EXPECT_LT(took, 5s);
  EXPECT_EQ(*first.disconnects, 1);
  EXPECT_EQ(*second.disconnects, 1);
  EXPECT_TRUE(waiting.ends_within(5s));
  EXPECT_FALSE(streaming.read_reply().whole);
}

TEST_F(HttpServerTest, RespondersMayOutliveTheServer) {
  start();
  HttpClient client = connect();
  client.send(get("/hold") + get("/hold"));
  const HeldRequest held = wait_held();
  EXPECT_FALSE(held.responder->is_gone());
  server_.reset();
  EXPECT_TRUE(held.responder->is_gone());
  EXPECT_EQ(*held.disconnects, 1);
  held.responder->begin(200, {});
  held.responder->write("x");
  held.responder->end();
  int calls = 0;
  held.responder->on_disconnect([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST_F(HttpServerTest, NothingIsLeftOpenOfOneThatHasStopped) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  start();
  EXPECT_EQ(connect().send(get("/echo")), true);
  server_->stop(100ms);
  server_.reset();  // which stops it again
  EXPECT_EQ(open_files(), before);
}

TEST_F(HttpServerTest, OneThatWasNeverStartedStops) {
  const HttpServer server(config(), {});
  EXPECT_NE(server.port(), 0);
}

}  // namespace
}  // namespace quire::server
