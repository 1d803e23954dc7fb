// Clients that end their side after a request: those that read on get their answers, those that are gone are
// noticed, before anything is written to them.
#include <vector>

#include "server/http_server_fixture.h"

namespace quire::server {
namespace {

TEST_F(HttpServerTest, AnAnswerThatHasEndedReachesAHalfClosedClient) {
  start();
  for (int i = 0; i < 20; ++i) {
    HttpClient client = connect();
    client.send(get("/echo"));
    client.end_output();
    EXPECT_EQ(client.read_reply().body, "GET /echo\n");
    EXPECT_EQ(client.read_to_end(), "");
  }
}

TEST_F(HttpServerTest, AHalfClosedClientGetsTheAnswerThatItWaitsFor) {
  start();
  for (const std::string& request :
       {get("/hold"), get("/hold", "Connection: close\r\n"), std::string("GET /hold HTTP/1.0\r\n\r\n")}) {
    HttpClient client = connect();
    client.send(request);
    const HeldRequest held = wait_held();
    client.end_output();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(*held.disconnects, 0);
    held.responder->send(200, {{"X", "y"}}, "whole");
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x"), "y");
    EXPECT_EQ(reply.body, "whole");
    EXPECT_EQ(client.read_to_end(), "");
  }
}

TEST_F(HttpServerTest, AHalfClosedClientGetsTheRestOfAStream) {
  start();
  for (const char* version : {"1.1", "1.0"}) {
    for (const bool ends_at_once : {false, true}) {
      HttpClient client = connect();
      client.send(std::string("GET /hold HTTP/") + version + "\r\nHost: localhost\r\n\r\n");
      const HeldRequest held = wait_held();
      held.responder->begin(200, {});
      held.responder->write("first,");
      client.end_output();
      std::this_thread::sleep_for(20ms);
      if (!ends_at_once) held.responder->write(std::string(100'000, 'x'));
      held.responder->end();
      const HttpReply reply = client.read_reply();
      EXPECT_TRUE(reply.whole);
      EXPECT_EQ(reply.body, "first," + std::string(ends_at_once ? 0 : 100'000, 'x'));
      EXPECT_EQ(client.read_to_end(), "");
      EXPECT_EQ(*held.disconnects, 0);
    }
  }
}

TEST_F(HttpServerTest, AnErrorAndAnAnswerToHeadReachAHalfClosedClient) {
  start();
  HttpClient asked = connect();
  asked.send("HEAD /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const HeldRequest head = wait_held();
  asked.end_output();
  std::this_thread::sleep_for(20ms);
  head.responder->send(200, {}, "not sent");
  EXPECT_EQ(asked.read_to_end().find("HTTP/1.1 200 OK\r\n"), 0U);

  HttpClient dropped = connect();
  dropped.send(get("/hold"));
  HeldRequest held = wait_held();
  dropped.end_output();
  std::this_thread::sleep_for(20ms);
  held.responder.reset();
  EXPECT_EQ(dropped.read_reply().status, 500);
}

TEST_F(HttpServerTest, WhatAHalfClosedClientHasSentAheadIsAnswered) {
  start();
  HttpClient client = connect();
  client.send(get("/hold") + get("/echo?1") + get("/echo?2") + "GET /half");
  const HeldRequest held = wait_held();
  client.end_output();
  std::this_thread::sleep_for(20ms);
  held.responder->send(200, {}, "first");
  EXPECT_EQ(client.read_reply().body, "first");
  EXPECT_EQ(client.read_reply().body, "GET /echo?1\n");
  EXPECT_EQ(client.read_reply().body, "GET /echo?2\n");
  EXPECT_EQ(client.read_to_end(), "");
}

// Nothing is written to it in the meantime, so that its system is asked by the server alone.
TEST_F(HttpServerTest, AClientThatIsGoneIsNoticedBeforeItsAnswer) {
  start();
  for (const char* version : {"1.1", "1.0"}) {
    HttpClient client = connect();
    client.send(std::string("GET /hold HTTP/") + version + "\r\nHost: localhost\r\n\r\n");
    const HeldRequest held = wait_held();
    client.close();
    EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; })) << version;
  }
  HttpClient client = connect();
  const HeldRequest held = begin_held(client);
  client.close();
  EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; }));
}

TEST_F(HttpServerTest, AClientThatGoesAfterItsHalfCloseIsNoticedByWhatIsWritten) {
  start();
  for (const char* version : {"1.1", "1.0"}) {
    HttpClient client = connect();
    client.send(std::string("GET /hold HTTP/") + version + "\r\nHost: localhost\r\n\r\n");
    const HeldRequest held = wait_held();
    held.responder->begin(200, {});
    client.read_until("\r\n\r\n");
    client.end_output();
    std::this_thread::sleep_for(20ms);
    client.close();
    held.responder->write("x");
    EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; })) << version;
  }
}

// Whichever of the two is first, and the reset between them.
TEST_F(HttpServerTest, AStreamsWritesAndAClientsCloseMayRace) {
  race_with_a_close(
      [](HttpResponder& responder) { responder.write("x"); },
      [](const HeldRequest& held) { EXPECT_TRUE(becomes_true([&] { return *held.disconnects == 1; })); });
}

}  // namespace
}  // namespace quire::server
