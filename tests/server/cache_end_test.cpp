// Why no more of a prompt came from the prefix cache, as clients and Prometheus are told.
#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "server/api_server_fixture.h"
#include "server/prometheus_parser.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

class CacheEndServerTest : public ApiServerTest {
 protected:
  static std::vector<int> counted(int count, int first) {
    std::vector<int> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  OrderedJson timings(const OrderedJson& prompt, const OrderedJson& more = OrderedJson::object()) const {
    OrderedJson body = {{"prompt", prompt}, {"max_tokens", 1}, {"timings", true}};
    body.update(more);
    return json_of(ask("/v1/completions", body.dump())).at("timings");
  }
  void expect_end(const OrderedJson& timings, int num_cached, const std::string& reason, int token = -1) {
    EXPECT_EQ(timings.at("cache_n"), num_cached) << reason;
    OrderedJson end = {{"reason", reason}};
    if (token >= 0) end["token"] = token;
    EXPECT_EQ(timings.at("cache_end"), end);
    ++ends_[reason];
  }
  // As many as Prometheus is told of, and no others.
  void expect_counted() const {
    const test::Scrape found = test::scrape(ask(get("/metrics")).body);
    EXPECT_EQ(found.types.at("quire:prefix_cache_ends_total"), "counter");
    for (const char* reason : {"whole", "no_checkpoint", "differs", "salt", "evicted", "new", "off"}) {
      const auto known = ends_.find(reason);
      EXPECT_EQ(found.value("quire:prefix_cache_ends_total", {{"reason", reason}}),
                known == ends_.end() ? 0 : known->second)
          << reason;
    }
  }

  std::map<std::string, int> ends_;
};

TEST_F(CacheEndServerTest, EveryReasonStandsInTimingsAndIsCounted) {
  EngineConfig config = small();
  config.kv_cache_memory = 2 << 20;
  start(config);
  const std::vector<int> prompt = counted(40, 10);
  expect_end(timings(prompt), 0, "new");
  expect_end(timings(prompt), 32, "whole");
  std::vector<int> other = prompt;
  other[20] = 1000;
  expect_end(timings(other), 16, "differs", 20);
  expect_end(timings(prompt, {{"cache_salt", "mine"}}), 0, "salt");
  expect_end(timings(prompt, {{"prompt_logprobs", 1}}), 0, "off");
  expect_end(timings(prompt, {{"n", 2}, {"use_beam_search", true}}), 32, "whole");
  const OrderedJson both = timings({prompt, other});
  EXPECT_EQ(both.at("cache_end").at("reason"), "whole");
  ends_["whole"] += 2;
  for (int sent = 0, first = 100; sent < service_->model().kv_cache_tokens; sent += 320, first += 320)
    expect_end(timings(counted(320, first)), 0, "new");
  expect_end(timings(prompt), 0, "evicted");
  expect_counted();
}

TEST_F(CacheEndServerTest, WithoutAPrefixCacheItIsOff) {
  EngineConfig config = small();
  config.enable_prefix_caching = false;
  start(config);
  for (int i = 0; i < 2; ++i) expect_end(timings(counted(40, 10)), 0, "off");
  expect_counted();
}

TEST_F(CacheEndServerTest, TheAccessLogHasTheReasonOfTheFirstPromptThatIsNotThere) {
  ApiServerConfig config = quiet();
  config.access_log = AccessLogFormat::kText;
  ::testing::internal::CaptureStdout();
  listen(config);
  load();
  timings(counted(40, 10));
  std::vector<int> other = counted(40, 10);
  other[2] = 1000;
  const OrderedJson said = timings({counted(40, 10), other, counted(40, 500)});
  server_.reset();
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(said.at("cache_end"), OrderedJson({{"reason", "differs"}, {"token", 2}}));
  EXPECT_THAT(log, HasSubstr(" cached=0 cache_end=new "));
  EXPECT_THAT(log, HasSubstr(" cached=32 cache_end=differs "));
}

}  // namespace
}  // namespace quire::server
