// Who may come in, and what there is.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <thread>

#include "server/api_server_fixture.h"
#include "server/prometheus_parser.h"

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCompletion = R"({"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0})";

struct KnownRoute {
  const char* path;
  const char* body;  // null: GET
  const char* unauthorized = "AuthenticationError";
};
constexpr const char* kMessage = R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})";
constexpr auto kRoutes = std::to_array<KnownRoute>({
    {"/version", nullptr},
    {"/metrics", nullptr},
    {"/v1/models", nullptr},
    {"/v1/models/toy", nullptr},
    {"/v1/completions", kCompletion},
    {"/v1/chat/completions", kMessage},
    {"/v1/messages", kMessage, "authentication_error"},
    {"/v1/messages/count_tokens", kMessage, "authentication_error"},
    {"/v1/embeddings", R"({"input": "hi"})"},
    {"/pooling", R"({"input": "hi"})"},
    {"/score", R"({"queries": "hi", "documents": "ho"})"},
    {"/v1/score", R"({"queries": "hi", "documents": "ho"})"},
    {"/v2/rerank", R"({"query": "hi", "documents": ["ho"]})"},
    {"/tokenize", R"({"prompt": "hi"})"},
    {"/detokenize", R"({"tokens": [1, 2]})"},
});

TEST_F(ApiServerTest, IsUnavailableWhileItLoads) {
  listen();
  const HttpReply health = ask(get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.headers.at("retry-after"), "1");
  EXPECT_EQ(json_of(health)["error"]["type"], "unavailable_error");
  EXPECT_EQ(ask("/v1/completions", kCompletion).status, 503);
  EXPECT_EQ(ask(get("/live")).status, 200);
  load();
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/live")).status, 200);
  EXPECT_EQ(ask("/v1/completions", kCompletion).status, 200);
}

TEST_F(ApiServerTest, IsUnhealthyWhenTheDeviceIsLost) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCollect || stage == EngineStage::kDrop)
      throw std::runtime_error("lost at 0x7f");
  };
  start(small(), hooks);
  EXPECT_EQ(ask(get("/health")).status, 200);
  const HttpReply failed = ask("/v1/completions", kCompletion);
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(failed.body, Not(HasSubstr("0x")));
  EXPECT_EQ(ask(get("/health")).status, 503);
  EXPECT_EQ(ask(get("/live")).status, 503);
}

TEST_F(ApiServerTest, HealthAndMetricsAreToldWhenConnectionsAreFull) {
  ApiServerConfig config = quiet();
  config.http.limits.max_connections = 2;
  config.api_keys = {"key"};
  listen(config);
  load();
  const std::string key = "Authorization: Bearer key\r\n";
  HttpClient first = connect(), second = connect();
  for (HttpClient* client : {&first, &second}) {
    client->send(get("/v1/models", key));
    EXPECT_EQ(client->read_reply().status, 200);
  }
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/live")).status, 200);
  EXPECT_EQ(ask("HEAD /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").status, 200);
  EXPECT_EQ(ask(get("/metrics", key)).status, 200);
  EXPECT_EQ(ask(get("/metrics")).status, 401);
  EXPECT_EQ(ask(get("/v1/models", key)).status, 503);
  EXPECT_EQ(ask(post_json("/v1/completions", kCompletion, key)).status, 503);
}

// A web page whose name was made to point here (DNS rebinding) sends GETs without an Origin.
TEST_F(ApiServerTest, AnotherMachinesNameIsRefusedOnLoopbackWithoutAKey) {
  start();
  const auto called = [&](const std::string& host, const char* path = "/v1/models") {
    return ask(std::string("GET ") + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  const HttpReply refused = called("rebound.example:8000");
  EXPECT_EQ(refused.status, 403);
  EXPECT_THAT(error_of(refused), AllOf(HasSubstr("rebound.example"), HasSubstr("--allowed-hosts")));
  for (const char* path : {"/metrics", "/version", "/v1/models/toy", "/nothing"})
    EXPECT_EQ(called("rebound.example", path).status, 403) << path;
  EXPECT_EQ(called("localhost", "http://rebound.example/v1/models").status, 403);  // the target counts
  EXPECT_EQ(called("rebound.example", "http://localhost/v1/models").status, 200);
  for (const char* host : {"localhost", "127.0.0.1:8000", "[::1]"})
    EXPECT_EQ(called(host).status, 200) << host;
  EXPECT_EQ(ask("GET /v1/models HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_EQ(called("a b").status, 400);
  EXPECT_EQ(called("10.1.2.3", "/health").status, 200);  // as probes call it; it tells nothing
}

TEST_F(ApiServerTest, OtherNamesMayBeAllowed) {
  ApiServerConfig config = quiet();
  const auto status = [&] {
    listen(config);
    load();
    return ask("GET /v1/models HTTP/1.1\r\nHost: ai.example\r\nAuthorization: Bearer key\r\n\r\n").status;
  };
  config.allowed_hosts = {"AI.example"};
  EXPECT_EQ(status(), 200);
  config.allowed_hosts = {"other.example"};
  EXPECT_EQ(status(), 403);
  config.api_keys = {"key"};
  EXPECT_EQ(status(), 403);
  config.allowed_hosts = {};
  EXPECT_EQ(status(), 200);  // the page has no key
}

TEST_F(ApiServerTest, WarnsWhereOtherMachinesMayComeInWithoutAKey) {
  const auto warning = [&](const char* host, std::vector<std::string> keys) {
    ApiServerConfig config = quiet();
    config.http.host = host;
    config.api_keys = std::move(keys);
    ::testing::internal::CaptureStderr();
    listen(config);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string said = warning("0.0.0.0", {});
  EXPECT_THAT(said, AllOf(HasSubstr("0.0.0.0"), HasSubstr("--api-key")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_EQ(warning("0.0.0.0", {"key"}), "");
  EXPECT_EQ(warning("127.0.0.1", {}), "");
}

// vLLM's boards compare it with the two others.
TEST_F(ApiServerTest, StepsCountThePromptAndEveryTokenOfTheOutput) {
  start();
  for (const int max_tokens : {1, 7})
    ask("/v1/completions",
        format_text(R"({{"prompt": [5, 6, 7, 8], "max_tokens": {}, "ignore_eos": true}})", max_tokens));
  const test::Scrape found = test::scrape(ask(get("/metrics")).body);
  EXPECT_EQ(found.value("vllm:prompt_tokens_total"), 8);
  EXPECT_EQ(found.value("vllm:generation_tokens_total"), 8);
  EXPECT_EQ(found.value("vllm:iteration_tokens_total_sum"), 16);
}

TEST_F(ApiServerTest, WhatAsksAfterTheServerIsNotCountedAsRequests) {
  start();
  for (const char* path : {"/health", "/live", "/version", "/metrics"}) {
    EXPECT_EQ(ask(get(path)).status, 200);
    EXPECT_EQ(ask(std::string("HEAD ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  }
  EXPECT_EQ(ask(get("/v1/models")).status, 200);
  const test::Scrape found = test::scrape(ask(get("/metrics?again")).body);
  ASSERT_EQ(found.samples.at("http_requests_total").size(), 1U);
  EXPECT_EQ(found.value("http_requests_total", {{"handler", "/v1/models"}}), 1);
  EXPECT_EQ(found.value("http_request_duration_seconds_count"), 1);
}

TEST_F(ApiServerTest, EveryRouteButHealthNeedsTheKey) {
  ApiServerConfig config = quiet();
  config.api_keys = {"first", "second"};
  listen(config);
  load();
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/live")).status, 200);
  for (const KnownRoute& route : kRoutes) {
    const auto with = [&](const std::string& header) {
      return ask(route.body == nullptr ? get(route.path, header) : post_json(route.path, route.body, header));
    };
    const HttpReply refused = with("");
    EXPECT_EQ(refused.status, 401) << route.path;
    EXPECT_EQ(json_of(refused)["error"]["type"], route.unauthorized);
    EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(with("Authorization: Bearer third\r\n").status, 401) << route.path;
    EXPECT_EQ(with("Authorization: bearer second\r\n").status, 200) << route.path;
  }
  EXPECT_EQ(ask(get("/nothing")).status, 401);
}

TEST_F(ApiServerTest, MetricsMayBePublic) {
  ApiServerConfig config = quiet();
  config.api_keys = {"key"};
  config.public_metrics = true;
  listen(config);
  load();
  EXPECT_EQ(ask(get("/metrics")).status, 200);
  EXPECT_EQ(ask(get("/v1/models")).status, 401);
}

TEST_F(ApiServerTest, RefusesWhatItDoesNotHave) {
  start();
  EXPECT_EQ(ask(get("/nothing")).status, 404);
  const HttpReply other = ask(get("/v1/models/other"));
  EXPECT_EQ(json_of(other)["error"]["code"], 404);
  EXPECT_THAT(error_of(other), HasSubstr("model_not_found"));
  EXPECT_EQ(ask(get("/v1/models/")).status, 404);
  const HttpReply method = ask(get("/v1/completions"));
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  EXPECT_EQ(ask("/v1/models", "{}").headers.at("allow"), "GET");
  EXPECT_EQ(ask("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  const std::string form =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
      "Content-Length: 2\r\n\r\n{}";
  EXPECT_EQ(ask(form).status, 415);
  for (const auto& [coding, status] : {std::pair("gzip", 415), {"Identity", 400}}) {
    EXPECT_EQ(ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: " +
                  std::string(coding) + "\r\nContent-Length: 2\r\n\r\n{}")
                  .status,
              status);
  }
}

TEST_F(ApiServerTest, ModelIdsMayHaveSlashes) {
  listen();
  ServiceOptions options;
  options.served_model_names = {"org/model", "alias"};
  load(small(), {}, options);
  EXPECT_EQ(json_of(ask(get("/v1/models/org/model")))["id"], "org/model");
  EXPECT_EQ(json_of(ask(get("/v1/models/org%2Fmodel")))["id"], "org/model");
  for (const char* broken : {"org%", "org%2", "org%2/model", "org%%2Fmodel"})
    EXPECT_EQ(ask(get(format_text("/v1/models/{}", broken))).status, 404) << broken;
  EXPECT_EQ(json_of(ask(get("/v1/models")))["data"].size(), 2U);
  EXPECT_EQ(json_of(ask("/v1/completions", R"({"model": "alias", "prompt": "a"})"))["model"], "alias");
}

TEST_F(ApiServerTest, WebPagesNeedToBeAllowed) {
  ApiServerConfig config = quiet();
  config.allowed_origins = {"https://good.example"};
  listen(config);
  load();
  const auto from = [&](const std::string& origin) {
    return ask(post_json("/v1/completions", kCompletion, "Origin: " + origin + "\r\n"));
  };
  EXPECT_EQ(from("https://bad.example").status, 403);
  const HttpReply good = from("https://good.example");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.headers.at("access-control-allow-origin"), "https://good.example");
  HttpClient client = connect();
  client.send(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://good.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n");
  const std::string preflight = client.read_until("\r\n\r\n");
  EXPECT_TRUE(preflight.starts_with("HTTP/1.1 204 "));
  EXPECT_THAT(preflight, HasSubstr("\r\nAccess-Control-Allow-Headers: authorization\r\n"));
  constexpr const char* kAllowed = "\r\nAccess-Control-Allow-Origin: https://good.example\r\n";
  const std::size_t allowed = preflight.find(kAllowed);
  ASSERT_NE(allowed, std::string::npos);
  EXPECT_EQ(preflight.find(kAllowed, allowed + 1), std::string::npos);
}

TEST_F(ApiServerTest, RequestIdsComeBack) {
  start();
  const HttpReply named = ask(post_json("/v1/completions", kCompletion, "X-Request-Id: my.id-1\r\n"));
  EXPECT_EQ(named.headers.at("x-request-id"), "my.id-1");
  EXPECT_EQ(json_of(named)["id"], "cmpl-my.id-1");
  const HttpReply other = ask(post_json("/v1/completions", kCompletion, "X-Request-Id: a b;c\r\n"));
  EXPECT_EQ(other.headers.at("x-request-id").size(), 32U);
}

TEST_F(ApiServerTest, AFullQueueIsToldSo) {
  StepGate gate(1);
  auto [running, waiting] = run_one(gate, 1, kLongCompletion);
  const HttpReply refused = ask("/v1/completions", R"({"prompt": ["a", "b"], "max_tokens": 1, "n": 2})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(json_of(refused)["error"]["type"], "RateLimitError");
  EXPECT_THAT(ask(get("/metrics")).body, HasSubstr("vllm:admission_rejections_total{"));
  running.close();
  waiting.close();
  gate.open();
  EXPECT_TRUE(becomes_true([&] { return all_blocks_free(); }));
}

TEST_F(ApiServerTest, AnIdleServerTakesAListHoweverFewMayWait) {
  EngineConfig config = small();
  config.max_num_seqs = 4;
  config.max_num_queued_reqs = 1;
  config.max_num_queued_tokens = 1;
  start(config);
  OrderedJson body = {{"prompt", OrderedJson::array()}, {"max_tokens", 1}};
  for (int i = 0; i < 1024; ++i) body["prompt"].push_back({300 + i, 301});
  const HttpReply reply = ask("/v1/completions", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json_of(reply)["choices"].size(), 1024U);
  EXPECT_EQ(json_of(reply)["usage"]["completion_tokens"], 1024);
}

TEST_F(ApiServerTest, WhatABodyHasBesideItsPromptCountsWhileItWaits) {
  StepGate gate(1);
  EngineConfig config = small();
  config.max_num_seqs = 1;
  config.max_num_queued_tokens = 600;
  listen(in_order());
  load(config, gate.hooks());
  HttpClient running = connect();
  running.send(post_json("/v1/completions", kLongCompletion));
  gate.wait_reached();
  const auto with = [](std::size_t bytes) {
    return OrderedJson{{"prompt", "a"}, {"max_tokens", 1}, {"metadata", std::string(bytes, 'x')}}.dump();
  };
  const auto send = [&](const std::string& body) {
    HttpClient client = connect();
    client.send(post_json("/v1/completions", body));
    EXPECT_EQ(ask("/tokenize", R"({"prompt": "a"})").status, 200);  // so the engine has it
    return client;
  };
  HttpClient waiting = send(with(4000));
  EXPECT_EQ(ask("/v1/completions", with(4000)).status, 429);
  HttpClient other = send(with(40));
  // 60 of the some 83 tokens that are left: what a prompt is in the body does not count once more.
  HttpClient ids = send(OrderedJson{{"prompt", std::vector<int>(60, 1)}, {"max_tokens", 1}}.dump());
  running.close();
  gate.open();
  for (HttpClient* client : {&waiting, &other, &ids}) EXPECT_EQ(client->read_reply().status, 200);
}

TEST_F(ApiServerTest, AListIsRefusedAsAWhole) {
  StepGate gate(1);
  auto [running, waiting] = run_one(gate, 3, kLongCompletion);
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": [[1], [2], [3]], "max_tokens": 1})").status, 429);
  HttpClient fits = connect();  // nothing is left of the list: two more have room
  fits.send(post_json("/v1/completions", R"({"prompt": [[1], [2]], "max_tokens": 1})"));
  EXPECT_EQ(ask("/tokenize", R"({"prompt": "a"})").status, 200);
  running.close();
  waiting.close();
  gate.open();
  EXPECT_EQ(fits.read_reply().status, 200);
}

TEST_F(ApiServerTest, LargeRequestsThatWaitForAWorkerAreBounded) {
  ApiServerConfig config = quiet();
  config.max_waiting_body_bytes = 30'000;
  listen(config);
  load();
  const auto completion = [](std::size_t bytes) {
    return R"({"prompt": "a", "max_tokens": 1, "user": ")" + std::string(bytes, 'x') + "\"}";
  };
  for (int i = 0; i < 3; ++i)  // what has been read no longer counts
    EXPECT_EQ(ask("/v1/completions", completion(20'000)).status, 200);
  const HttpReply refused = ask("/v1/completions", completion(30'000));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_THAT(error_of(refused), HasSubstr("too many large requests"));
}

TEST_F(ApiServerTest, ErrorsTellNothingOfTheInside) {
  start();
  const std::array<const char*, 10> bodies = {
      "",
      "{",
      R"({"prompt": 1e999})",
      R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]})",
      "[]",
      R"({"prompt": []})",
      R"({"prompt": [[]]})",
      R"({"prompt": {"a": 1}, "messages": 3, "input": {}, "tokens": "a"})",
      R"({"prompt": [99999999]})",
      R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"};
  for (const KnownRoute& route : kRoutes) {
    if (route.body == nullptr) continue;
    for (const char* body : bodies) {
      const HttpReply reply = ask(route.path, body);
      EXPECT_EQ(reply.status, 400) << route.path << " " << body;
      for (const char* secret :
           {"0x", "/src", "/usr", "models/", ".cpp", "nlohmann", "json.exception", "parse_error"})
        EXPECT_THAT(error_of(reply), Not(HasSubstr(secret))) << route.path << " " << body;
    }
  }
}

TEST_F(ApiServerTest, TheLogHasNoText) {
  ApiServerConfig config = quiet();
  config.access_log = AccessLogFormat::kJson;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  listen(config);
  load();
  ask("/v1/completions", R"({"prompt": "canary bird", "max_tokens": 5, "user": "canary"})");
  ask("/v1/completions", R"({"prompt": "canary", "temperature": "canary"})");
  ask(get("/canary?key=canary"));
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n").status,
            431);
  EXPECT_THAT(ask(get("/metrics")).body,
              HasSubstr(R"(http_requests_total{handler="none",method="other",status="4xx"} 1)"));
  server_.reset();
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("canary")));
  EXPECT_THAT(log, HasSubstr(R"("path":"/v1/completions","status":200)"));
  EXPECT_THAT(log, HasSubstr(R"("output_tokens":5)"));
  EXPECT_THAT(log, HasSubstr(R"("status":400)"));
  EXPECT_THAT(log, HasSubstr(R"("status":431)"));                   // which never became a request
  EXPECT_THAT(log, HasSubstr(R"("path":"/canary","status":404)"));  // the path alone
  EXPECT_THAT(log.substr(0, log.find("/canary")), Not(HasSubstr("canary")));
}

TEST_F(ApiServerTest, MayStopWhileEveryRouteIsAsked) {
  start();
  std::atomic<bool> stopped = false;
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < kRoutes.size(); ++i) {
    clients.emplace_back([&, i] {
      const KnownRoute& route = kRoutes[i];
      const std::string bytes = route.body == nullptr ? get(route.path) : post_json(route.path, route.body);
      try {
        while (!stopped) {
          HttpClient client = connect();
          if (!client.send(bytes)) continue;
          const HttpReply reply = client.read_reply();
          EXPECT_THAT(reply.status, AnyOf(200, 503, 0)) << route.path << " " << reply.body;
        }
      } catch (const std::runtime_error&) {  // nobody listens any more
      }
    });
  }
  EXPECT_TRUE(becomes_true([&] { return engine_->stats().decode_tokens > 50; }));
  server_->stop(std::chrono::milliseconds(5));
  stopped = true;
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace quire::server
