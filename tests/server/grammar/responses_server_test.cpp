// The form of /v1/responses' texts.
#include <gmock/gmock.h>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kResponses = "/v1/responses";

TEST_F(ApiServerTest, AResponseHasTheFormOfItsText) {
  start();
  const auto made = [&](const std::string& format, const std::string& fields = {}) {
    return ask(kResponses, R"({"input": "a", "seed": 1, "max_output_tokens": 60, )" + fields +
                               R"("text": {"format": )" + format + "}}");
  };
  const auto text_of = [](const HttpReply& reply) {
    return json_of(reply)["output"].back()["content"][0]["text"].get<std::string>();
  };
  const HttpReply schema =
      made(R"({"type": "json_schema", "name": "n", "strict": true, "schema": {"enum": ["yes", "no"]}})");
  ASSERT_EQ(schema.status, 200) << schema.body;
  EXPECT_EQ(json_of(schema)["text"]["format"]["name"], "n");
  EXPECT_THAT(text_of(schema), AnyOf("\"yes\"", "\"no\""));
  const HttpReply object = made(R"({"type": "json_object"})");
  EXPECT_THAT(text_of(object), StartsWith("{"));
  for (const char* stream : {"", "\"stream\": true, "}) {
    const HttpReply wrong =
        made(R"({"type": "json_schema", "name": "n", "schema": {"required": 3}})", stream);
    EXPECT_EQ(wrong.status, 400);
    EXPECT_EQ(json_of(wrong)["error"]["param"], "text.format");
    EXPECT_THAT(error_of(wrong), HasSubstr("text.format"));
  }
}

}  // namespace
}  // namespace quire::server
