// /v1/responses over HTTP: routes, keys, clients side by side and clients that go.
#include <gmock/gmock.h>

#include <thread>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPath = "/v1/responses";

class ResponsesApiTest : public ApiServerTest {
 protected:
  static std::string request(const std::string& method, const std::string& path,
                             const std::string& headers = {}) {
    return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "Content-Length: 0\r\n\r\n";
  }
  OrderedJson make(const std::string& fields) {
    const HttpReply reply = ask(kPath, R"({"max_output_tokens": 3, "ignore_eos": true, )" + fields + "}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply);
  }
};

TEST_F(ResponsesApiTest, PathsTakeTheirMethods) {
  start();
  const std::string path = std::string(kPath) + "/" + make(R"("input": "a")")["id"].get<std::string>();
  EXPECT_EQ(ask(request("GET", path)).status, 200);
  EXPECT_EQ(ask(request("HEAD", path)).status, 200);
  EXPECT_EQ(ask(request("GET", path + "/input_items")).status, 200);
  EXPECT_EQ(ask(request("POST", path + "/cancel")).status, 400);
  EXPECT_EQ(ask(request("PUT", path)).headers.at("allow"), "GET, DELETE, POST");
  EXPECT_EQ(ask(request("GET", kPath)).status, 405);
  for (const char* wrong : {"/cancel", "/x", "/input_items/x", "/"})
    EXPECT_EQ(ask(request("GET", path + wrong)).status, 404);
  EXPECT_EQ(ask(request("POST", path)).status, 404);
  EXPECT_EQ(ask(request("DELETE", path + "/input_items")).status, 404);
  for (const char* query : {"?limit=0", "?limit=101", "?limit=x", "?limit=", "?order=up", "?after=x"})
    EXPECT_EQ(ask(request("GET", path + "/input_items" + query)).status, 400) << query;
  EXPECT_EQ(ask(request("GET", path + "?stream=true")).status, 400);
  EXPECT_EQ(json_of(ask(request("DELETE", path)))["deleted"], true);
  EXPECT_EQ(ask(request("GET", path)).status, 404);
  EXPECT_EQ(ask(request("POST", path + "/cancel")).status, 404);
}

TEST_F(ResponsesApiTest, KeysSeeTheirOwn) {
  ApiServerConfig config = quiet();
  config.api_keys = {"one", "two"};
  listen(config);
  load();
  const auto as = [](const char* key) { return "Authorization: Bearer " + std::string(key) + "\r\n"; };
  const HttpReply made = ask(post_json(kPath, R"({"input": "a", "max_output_tokens": 2})", as("two")));
  const std::string path = std::string(kPath) + "/" + json_of(made)["id"].get<std::string>();
  EXPECT_EQ(ask(request("GET", path, as("two"))).status, 200);
  EXPECT_EQ(ask(request("GET", path, as("one"))).status, 404);
  EXPECT_EQ(ask(request("GET", path + "/input_items", as("one"))).status, 404);
  EXPECT_EQ(ask(request("DELETE", path, as("one"))).status, 404);
  EXPECT_EQ(ask(request("GET", path)).status, 401);
}

TEST_F(ResponsesApiTest, AWebPageMayDelete) {
  ApiServerConfig config = quiet();
  config.allowed_origins = {"https://good.example"};
  listen(config);
  load();
  const HttpReply reply =
      ask(request("OPTIONS", std::string(kPath) + "/resp_1", "Origin: https://good.example\r\n"));
  EXPECT_THAT(reply.headers.at("access-control-allow-methods"), HasSubstr("DELETE"));
}

TEST_F(ResponsesApiTest, MetricsKnowTheRoutesAndNoIds) {
  start();
  const std::string id = make(R"("input": "a")")["id"];
  ask(request("GET", std::string(kPath) + "/" + id));
  std::string metrics;
  const auto has = [&](const char* text) { return metrics.find(text) != std::string::npos; };
  EXPECT_TRUE(becomes_true([&] {  // they are counted behind their answers
    metrics = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").body;
    return has("handler=\"/v1/responses\"") && has("handler=\"/v1/responses/\"");
  }));
  EXPECT_FALSE(has(id.c_str()));
}

TEST_F(ResponsesApiTest, ClientsSideBySideHaveConversationsOfTheirOwn) {
  start();
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client)
    clients.emplace_back([this, client] {
      std::string previous = "null";
      for (int turn = 0; turn < 5; ++turn) {
        const std::string text = format_text("{} {}", client, turn);
        const OrderedJson made =
            make(format_text(R"("input": "{}", "previous_response_id": {})", text, previous));
        previous = made["id"].dump();
        const OrderedJson items =
            json_of(ask(request("GET", format_text("{}/{}/input_items?order=asc&limit=100", kPath,
                                                   made["id"].get<std::string>()))))["data"];
        EXPECT_EQ(items[0]["content"][0]["text"], format_text("{} 0", client));
        EXPECT_EQ(items.back()["content"][0]["text"], text);
      }
    });
  for (std::thread& client : clients) client.join();
}

TEST_F(ResponsesApiTest, AClientThatGoesLeavesNothingBehind) {
  start();
  HttpClient client = connect();
  client.send(
      post_json(kPath, R"({"input": "a", "max_output_tokens": 1000, "ignore_eos": true, "stream": true})"));
  const std::string begun = client.read_until("\"id\":\"resp_");
  ASSERT_FALSE(begun.empty());
  const std::string id = "resp_" + client.read_until("\"").substr(0, 32);
  client.close();
  ASSERT_TRUE(becomes_true([&] { return server_->connections() == 0 && all_blocks_free(); }));
  EXPECT_EQ(ask(request("GET", std::string(kPath) + "/" + id)).status, 404);
}

TEST_F(ResponsesApiTest, WhatDoesNotFitIsSaidInTheApisFields) {
  start();
  const HttpReply room = ask(kPath, R"({"input": "a", "max_output_tokens": 1000000})");
  EXPECT_EQ(json_of(room)["error"]["param"], "max_output_tokens");
  EXPECT_THAT(json_of(room)["error"]["message"].get<std::string>(), HasSubstr("(context_length_exceeded)"));
}

}  // namespace
}  // namespace quire::server
