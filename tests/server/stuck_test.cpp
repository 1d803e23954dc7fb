// A step that does not end, as clients and supervisors see it.
#include <gmock/gmock.h>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

class StuckTest : public ApiServerTest {};

TEST_F(StuckTest, HealthIs503AndRequestsEndWithAnError) {
  StepGate gate(1);
  const std::shared_ptr<void> opens_it(nullptr, [&](void*) {
    gate.open();
    server_.reset();
    service_.reset();
  });
  EngineConfig config = small();
  config.watchdog = 0.05;
  start(config, gate.hooks());
  EXPECT_EQ(ask(get("/health")).status, 200);
  HttpClient client = connect();
  client.send(post_json("/v1/completions", R"({"prompt": "a", "max_tokens": 3})"));
  gate.wait_reached();
  const HttpReply reply = client.read_reply();
  ASSERT_EQ(reply.status, 500) << reply.body;
  EXPECT_THAT(error_of(reply), HasSubstr("step 1 is stuck"));
  EXPECT_EQ(ask(get("/health")).status, 503);
  EXPECT_EQ(ask(get("/live")).status, 503);
  EXPECT_GE(ask("/v1/completions", R"({"prompt": "b", "max_tokens": 3})").status, 500);
}

}  // namespace
}  // namespace quire::server
