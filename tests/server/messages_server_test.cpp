#include <array>
#include <string>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

constexpr const char* kMessageBody =
    R"({"max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]})";
constexpr std::array kPaths = {"/v1/messages", "/v1/messages/count_tokens"};

class MessagesServerTest : public ApiServerTest {
 protected:
  static void expect_error(const HttpReply& reply, int status, std::string_view type) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const OrderedJson body = json_of(reply);
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_EQ(body["request_id"], reply.headers.at("request-id"));
    EXPECT_EQ(body["request_id"], reply.headers.at("x-request-id"));
  }
};

TEST_F(MessagesServerTest, EveryErrorHasThisApisForm) {
  ApiServerConfig config = quiet();
  config.api_keys = {"key"};
  listen(config);
  const std::string key = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
  for (const std::string path : kPaths) {
    expect_error(ask(post_json(path, kMessageBody, key)), 503, "overloaded_error");
    expect_error(ask(post_json(path, kMessageBody)), 401, "authentication_error");
    expect_error(ask(post_json(path, kMessageBody, "x-api-key: other\r\n")), 401, "authentication_error");
  }
  load();
  for (const std::string path : kPaths) {
    EXPECT_EQ(ask(post_json(path + "?beta=true", kMessageBody, key)).status, 200);
    const HttpReply get = ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + key + "\r\n");
    expect_error(get, 405, "invalid_request_error");
    EXPECT_EQ(get.headers.at("allow"), "POST");
    expect_error(ask(post_json(path, "{", key)), 400, "invalid_request_error");
    expect_error(ask(post_json(path, R"({"model": "other", "max_tokens": 1, "messages": [
                                        {"role": "user", "content": "a"}]})",
                               key)),
                 404, "not_found_error");
    expect_error(ask("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n" + key +
                     "Content-Length: 1\r\n\r\na"),
                 415, "invalid_request_error");
  }
}

TEST_F(MessagesServerTest, AnswersTellTheirIdAndCount) {
  start();
  const HttpReply reply = ask("/v1/messages", kMessageBody);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const OrderedJson body = json_of(reply);
  EXPECT_EQ(body["id"], "msg_" + reply.headers.at("request-id"));
  EXPECT_EQ(body["usage"]["output_tokens"], 4);
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  EXPECT_EQ(json_of(ask("/v1/messages/count_tokens", kMessageBody))["input_tokens"],
            body["usage"]["input_tokens"]);
}

TEST_F(MessagesServerTest, WhatIsWrongWithASchemaIsNamedAsTheClientHasIt) {
  listen();
  ServiceOptions options;
  options.tool_call_parser = "hermes";
  load(small(), {}, options);
  const auto error = [&](const std::string& fields) {
    return error_of(
        ask("/v1/messages",
            R"({"max_tokens": 4, "messages": [{"role": "user", "content": "a"}], )" + fields + "}"));
  };
  for (const char* stream : {"false", "true"})
    EXPECT_TRUE(error(R"("output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}},
                         "stream": )" +
                      std::string(stream))
                    .starts_with("output_config.format.schema"));
  EXPECT_THAT(error(R"("tool_choice": {"type": "any"}, "tools": [
                       {"name": "f", "strict": true, "input_schema": {"properties": {"a": {"type": "nothing"}}}}])"),
              ::testing::HasSubstr("/tools/0/input_schema/properties/a/type"));
}

TEST_F(MessagesServerTest, TheLimitsOfHttpAreToldInItsForm) {
  ApiServerConfig config = quiet();
  config.http.limits.max_body_bytes = 100;
  config.http.limits.body_timeout = std::chrono::milliseconds(50);
  config.root_path = "/proxy";
  listen(config);
  const auto expect_error = [&](const std::string& request, int status, const char* type) {
    const HttpReply reply = ask(request);
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(json_of(reply)["type"], "error") << reply.body;
    EXPECT_EQ(json_of(reply)["error"]["type"], type) << reply.body;
  };
  const std::string large(200, ' ');
  for (const char* path : {"/v1/messages", "/messages", "/proxy/v1/messages/count_tokens?beta=true"})
    expect_error(post_json(path, large), 413, "request_too_large");
  expect_error(post_json("/v1/messages", "{}", "X: " + std::string(40000, 'x') + "\r\n"), 431,
               "invalid_request_error");
  expect_error("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", 408,
               "invalid_request_error");
  EXPECT_EQ(json_of(ask("/v1/chat/completions", large))["error"]["code"], 413);
  EXPECT_EQ(json_of(ask("/none", large))["error"]["code"], 413);
}

// A grammar of all calls is made of its schema, too.
TEST_F(MessagesServerTest, ADeferredToolMayBeCalledOnceAResultRefersToIt) {
  listen();
  ServiceOptions options;
  options.tool_call_parser = "hermes";
  load(small(), {}, options);
  const auto ask_with = [&](const std::string& name) {
    return ask("/v1/messages", R"({"max_tokens": 4, "tool_choice": {"type": "any"}, "tools": [
        {"name": "f", "input_schema": {}},
        {"name": "late", "defer_loading": true, "input_schema": {"properties": {"a": {"type": "nothing"}}}}],
        "messages": [
          {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
            {"type": "tool_reference", "tool_name": ")" +
                                   name + R"("}]}]}]})");
  };
  EXPECT_EQ(ask_with("f").status, 200);
  EXPECT_THAT(error_of(ask_with("late")), ::testing::HasSubstr("/tools/1/input_schema/properties/a"));
}

TEST_F(MessagesServerTest, AClientThatGoesTakesItsRequestWithIt) {
  start();
  {
    HttpClient client = connect();
    client.send(post_json("/v1/messages", R"({"max_tokens": 1500, "ignore_eos": true, "stream": true,
                                            "messages": [{"role": "user", "content": "a"}]})"));
    EXPECT_TRUE(becomes_true([&] { return engine_->stats().decode_tokens > 2; }));
  }
  EXPECT_TRUE(becomes_true([&] { return all_blocks_free(); }));
}

}  // namespace
}  // namespace quire::server
