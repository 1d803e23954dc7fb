// What becomes of requests when the server stops.
#include <gmock/gmock.h>

#include <thread>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(ApiServerTest, StoppingLetsRequestsFinish) {
  StepGate gate(2);
  start(small(), gate.hooks());
  HttpClient client = connect();
  client.send(post_json("/v1/completions",
                        R"({"prompt": "a", "max_tokens": 20, "stream": true, "ignore_eos": true})"));
  gate.wait_reached();
  std::thread stopper([&] { server_->stop(std::chrono::seconds(10)); });
  gate.open();
  const HttpReply reply = client.read_reply();
  stopper.join();
  EXPECT_TRUE(reply.whole);
  EXPECT_THAT(reply.body, HasSubstr(R"("finish_reason":"length")"));
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ApiServerTest, StoppingAbortsWhatDoesNotFinishInTime) {
  StepGate gate(5);
  start(small(), gate.hooks());
  HttpClient streamed = connect();
  streamed.send(post_json("/v1/completions", kLongCompletion));
  gate.wait_reached();
  HttpClient whole = connect();
  whole.send(post_json("/v1/completions", R"({"prompt": "b", "max_tokens": 1500, "ignore_eos": true})"));
  becomes_true([&] { return server_->connections() == 2; });
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it is stopping
    gate.open();
  });
  server_->stop(std::chrono::milliseconds(1));
  opener.join();
  const HttpReply events = streamed.read_reply();
  EXPECT_TRUE(events.whole);
  EXPECT_THAT(events.body, HasSubstr(R"("finish_reason":"abort")"));
  EXPECT_TRUE(events.body.ends_with("data: [DONE]\n\n"));
  const HttpReply reply = whole.read_reply();
  // It may have come too late to be taken.
  EXPECT_THAT(reply.status, AnyOf(200, 503, 0));
  if (reply.status == 200) {
    EXPECT_THAT(reply.body, HasSubstr(R"("finish_reason":"abort")"));
  }
}

TEST_F(ApiServerTest, WhatIsAbortedBeforeItsFirstTokenIsAnError) {
  EngineConfig config = small();
  config.max_num_seqs = 1;
  StepGate gate(1);
  ApiServerConfig in_order = quiet();
  in_order.http.num_threads = 1;
  listen(in_order);
  load(config, gate.hooks());
  HttpClient running = connect();
  running.send(post_json("/v1/completions", kLongCompletion));
  gate.wait_reached();
  std::vector<HttpClient> waiting;
  for (const auto& [path, body] :
       {std::pair("/v1/completions", kLongCompletion), std::pair("/v1/completions", R"({"prompt": "a"})"),
        std::pair("/v1/embeddings", R"({"input": ["a", "b"]})")}) {
    waiting.push_back(connect());
    waiting.back().send(post_json(path, body));
  }
  EXPECT_EQ(ask("/tokenize", R"({"prompt": "a"})").status, 200);  // so the engine has them
  gate.open();
  server_->stop(std::chrono::milliseconds(1));
  for (HttpClient& client : waiting) {
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.headers.at("retry-after"), "1");
    EXPECT_EQ(json_of(reply)["error"]["type"], "unavailable_error");
  }
}

}  // namespace
}  // namespace quire::server
