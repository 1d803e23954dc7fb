// Structured outputs through the server: answers hold, and what is wrong is the client's 400.
#include <gmock/gmock.h>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPoint = R"({"type": "object", "properties": {"x": {"type": "integer", "maximum": 99,
  "minimum": 0}, "kind": {"enum": ["a", "b"]}}, "required": ["x", "kind"], "additionalProperties": false})";

std::string structured_chat(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 600, "temperature": 0, )" +
         fields + "}";
}
std::string structured_completion(const std::string& fields) {
  return R"({"prompt": "Once upon a time", "max_tokens": 600, "seed": 3, )" + fields + "}";
}

class StructuredOutputsServerTest : public ApiServerTest {
 protected:
  void SetUp() override { start(); }

  std::string chat(const std::string& fields) const {
    const HttpReply reply = ask("/v1/chat/completions", structured_chat(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply)["choices"][0]["message"]["content"].get<std::string>();
  }
};

void expect_point(const std::string& text) {
  const OrderedJson point = OrderedJson::parse(text);
  ASSERT_EQ(point.size(), 2U) << text;
  EXPECT_TRUE(point["x"] >= 0 && point["x"] <= 99) << text;
  EXPECT_TRUE(point["kind"] == "a" || point["kind"] == "b") << text;
}

TEST_F(StructuredOutputsServerTest, AnswersAreWhatWasAskedFor) {
  const std::string schema = kPoint;
  expect_point(chat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": true,
                       "schema": )" +
                    schema + "}}"));
  expect_point(chat(R"("structured_outputs": {"json": )" + schema + "}"));
  expect_point(chat(R"("json_schema": )" + schema));
  EXPECT_EQ(chat(R"("guided_choice": ["blue whale"])"), "blue whale");
  EXPECT_THAT(chat(R"("structured_outputs": {"regex": "[0-9]{3}-[0-9]{2}"})"),
              ::testing::MatchesRegex("[0-9][0-9][0-9]-[0-9][0-9]"));
}

TEST_F(StructuredOutputsServerTest, StreamsAreTheSame) {
  const std::string fields = R"("structured_outputs": {"json": )" + std::string(kPoint) + "}";
  const HttpReply reply = ask("/v1/chat/completions", structured_chat(fields + R"(, "stream": true)"));
  std::string text;
  for (std::size_t at = 0; (at = reply.body.find("data: {", at)) != std::string::npos; ++at) {
    const OrderedJson chunk =
        OrderedJson::parse(reply.body.substr(at + 6, reply.body.find('\n', at) - at - 6));
    const auto& delta = chunk["choices"][0]["delta"];
    if (delta.contains("content")) text += delta["content"].get<std::string>();
  }
  EXPECT_EQ(text, chat(fields));
}

TEST_F(StructuredOutputsServerTest, AWrongSourceIsTheClientsFaultInStreamsToo) {
  for (const char* stream : {"false", "true"}) {
    const HttpReply reply =
        ask("/v1/completions",
            structured_completion(std::string(R"("stream": )") + stream +
                                  R"(, "guided_json": {"properties": {"a": {"type": "thing"}}})"));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_THAT(error_of(reply), AllOf(HasSubstr("guided_json is refused"), HasSubstr("/properties/a")));
    EXPECT_EQ(json_of(reply)["error"]["param"], "guided_json");
  }
  EXPECT_TRUE(becomes_true([&] { return all_blocks_free(); }));
}

TEST_F(StructuredOutputsServerTest, ASourceThatIsTooLongIsCalledByItsField) {
  const std::string schema = R"({"type": "string", "description": ")" + std::string(1 << 20, 'x') + "\"}";
  const HttpReply format =
      ask("/v1/chat/completions",
          structured_chat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" +
                          schema + "}}"));
  EXPECT_EQ(format.status, 400);
  EXPECT_EQ(json_of(format)["error"]["param"], "response_format");
  EXPECT_THAT(error_of(format), HasSubstr("response_format has a source of"));
}

TEST_F(StructuredOutputsServerTest, ALimitThatIsMetWhileGeneratingIsTheClientsFault) {
  std::string deep = "a";
  for (int i = 0; i < 1200; ++i) deep += "b?";
  const HttpReply reply =
      ask("/v1/completions", structured_completion(R"("structured_outputs": {"regex": ")" + deep + "\"}"));
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(json_of(reply)["error"]["param"], "structured_outputs.regex");
  EXPECT_THAT(error_of(reply), HasSubstr("cannot be met: the grammar is nested too deep"));
}

TEST_F(StructuredOutputsServerTest, EveryPromptAndOutputIsHeld) {
  const HttpReply reply = ask(
      "/v1/completions", R"({"prompt": ["a", "b"], "n": 2, "seed": 1, "max_tokens": 600, "structured_outputs":
                             {"json": )" +
                             std::string(kPoint) + "}}");
  const OrderedJson choices = json_of(reply)["choices"];
  ASSERT_EQ(choices.size(), 4U);
  for (const auto& choice : choices) expect_point(choice["text"].get<std::string>());
}

TEST_F(StructuredOutputsServerTest, MetricsTellWhatTheyTake) {
  const auto value = [this](const std::string& name) {
    const std::string metrics = ask(get("/metrics")).body;
    const std::size_t at = metrics.find("quire:structured_outputs_" + name + "{");
    return at == std::string::npos ? -1 : std::stod(metrics.substr(metrics.find("} ", at) + 2));
  };
  for (const char* name : {"compile_seconds_count", "mask_seconds_sum", "bytes"})
    EXPECT_EQ(value(name), 0) << name;
  chat(R"("guided_choice": ["a"])");
  EXPECT_EQ(value("compile_seconds_count"), 1);
  EXPECT_GT(value("mask_seconds_sum"), 0);
  EXPECT_GT(value("bytes"), 0);
}

}  // namespace
}  // namespace quire::server
