// Clients that go, at every stage of a request, streamed or not: their blocks are back within two steps.
#include <gmock/gmock.h>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

struct Stage {
  const char* name;
  int step;     // whose submission the client goes before
  bool queued;  // behind another request, which goes on
  bool stream;
};

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "word ";
  return text;
}

class DisconnectTest : public ApiServerTest, public ::testing::WithParamInterface<Stage> {};

TEST_P(DisconnectTest, GivesTheBlocksBackWithinTwoSteps) {
  const Stage& stage = GetParam();
  EngineConfig config = small();
  config.max_num_seqs = 1;
  config.max_num_batched_tokens = 64;
  StepGate gate(stage.step);
  listen(in_order());
  load(config, gate.hooks());
  const auto request = [&](const std::string& prompt, int max_tokens) {
    const OrderedJson body = {
        {"prompt", prompt}, {"max_tokens", max_tokens}, {"ignore_eos", true}, {"stream", stage.stream}};
    return post_json("/v1/completions", body.dump());
  };
  HttpClient other = connect();
  if (stage.queued) {
    other.send(request("a", stage.step + 2));
    gate.wait_reached();
  }
  HttpClient client = connect();
  client.send(request(words(300), 500));
  EXPECT_EQ(ask("/tokenize", R"({"prompt": "a"})").status, 200);  // so the engine has it
  if (!stage.queued) gate.wait_reached();
  client.close();
  ASSERT_TRUE(becomes_true([&] { return server_->connections() == 1; }));
  const int before = gate.steps();
  gate.open();
  if (stage.queued) {
    EXPECT_EQ(other.read_reply().status, 200);
  }
  ASSERT_TRUE(becomes_true([&] { return all_blocks_free(); }));
  const int of_other = stage.queued ? 2 : 0;
  EXPECT_LE(gate.steps() - before, of_other + 2);
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
}

INSTANTIATE_TEST_SUITE_P(
    Stages, DisconnectTest,
    ::testing::Values(Stage{"Queued", 3, true, false}, Stage{"QueuedStream", 3, true, true},
                      Stage{"FirstChunk", 1, false, false}, Stage{"FirstChunkStream", 1, false, true},
                      Stage{"ThirdChunk", 3, false, false}, Stage{"ThirdChunkStream", 3, false, true},
                      Stage{"Decode", 20, false, false}, Stage{"DecodeStream", 20, false, true}),
    [](const auto& param) { return param.param.name; });

TEST_F(ApiServerTest, APromptIsNotRenderedToItsEndForAClientThatHasGone) {
  EngineConfig config = small();
  const std::string slow = "{% for i in range(99999) %}{% set x = i %}{% endfor %}";
  config.chat_template = slow + "{{ messages[0].content[:1] }}";
  listen(in_order());
  load(config);
  const OrderedJson message = {{"role", "user"}, {"content", words(2000)}};  // long enough for a worker
  const OrderedJson body = {{"messages", OrderedJson::array({message})}, {"max_tokens", 1}};
  const std::string request = post_json("/v1/chat/completions", body.dump());
  HttpClient first = connect();
  first.send(request);
  HttpClient second = connect();  // its turn comes behind the first one's
  second.send(request);
  second.close();
  const HttpReply reply = first.read_reply();
  EXPECT_EQ(reply.status, 200) << reply.body;
  const OrderedJson last = {{"prompt", words(2000)}};
  EXPECT_EQ(ask("/tokenize", last.dump()).status, 200);  // so the worker is done with the second
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
  const std::string metrics = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").body;
  EXPECT_NE(metrics.find(R"(finished_reason="abort",model_name="toy"} 0)"), std::string::npos);
}

TEST_F(ApiServerTest, AStormOfDisconnectsLeavesNothingBehind) {
  start();
  for (int round = 0; round < 10; ++round) {
    std::vector<HttpClient> clients;
    for (int i = 0; i < 50; ++i) {
      clients.push_back(connect());
      clients.back().send(
          post_json("/v1/completions", R"({"prompt": "a", "max_tokens": 1000, "ignore_eos": true,
                                                        "stream": true, "n": 2})"));
    }
    ASSERT_FALSE(clients.front().read_until("data: ").empty());
    clients.clear();
    ASSERT_TRUE(becomes_true([&] { return server_->connections() == 0 && all_blocks_free(); })) << round;
  }
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
}

}  // namespace
}  // namespace quire::server
