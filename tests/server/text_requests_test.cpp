#include "server/text_requests.h"

#include "protocol_fixtures.h"
#include "server/api_response.h"

namespace quire::server {
namespace {

using test::error_of;
using test::served_model;
using ::testing::StartsWith;

OrderedJson tokenize(const char* body, bool adds_special_tokens = true) {
  return tokenize_body(parse_body(body), served_model(), [&](const ChatRequest& chat) {
    EXPECT_EQ(chat.add_special_tokens, adds_special_tokens);
    return std::vector<TokenId>{1};
  });
}

TEST(TokenizeTest, TakesAPromptOrMessages) {
  EXPECT_EQ(to_line(tokenize(R"({"prompt": "a\u00e2", "return_token_strs": true})")),
            "{\"count\":4,\"max_model_len\":64,\"tokens\":[256,97,195,162],\"token_strs\":[\"<s>\",\"a\","
            "\"\xC3\x83\",\"\xC2\xA2\"]}");
  const OrderedJson chat = tokenize(R"({"messages": [{"role": "user", "content": "hi"}]})", false);
  EXPECT_EQ(chat["tokens"], std::vector<TokenId>{1});
  EXPECT_TRUE(chat["token_strs"].is_null());
}

TEST(TokenizeTest, WhatCannotBeSaidOfTokensIsRefusedByName) {
  for (const char* source : {R"("prompt": "a")", R"("messages": [{"role": "user", "content": "a"}])"}) {
    for (const char* name : {"return_token_offsets", "return_assistant_tokens_mask"}) {
      const std::string body = format_text(R"({{{}, "{}": true}})", source, name);
      const ApiError error = error_of([&] { tokenize(body.c_str()); });
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, name);
    }
  }
}

TEST(TokenizeTest, NeedsOneOfThem) {
  for (const char* body : {"{}", R"({"prompt": null})", R"({"prompt": 3})", R"({"prompt": ["a"]})"})
    EXPECT_EQ(error_of([&] { tokenize(body); }).param, "prompt") << body;
  EXPECT_EQ(error_of([] { tokenize(R"({"model": "none", "prompt": "a"})"); }).status, 404);
}

TEST(DetokenizeTest, TurnsTokensIntoText) {
  const auto detokenize = [](const char* body) { return detokenize_body(parse_body(body), served_model()); };
  EXPECT_EQ(to_line(detokenize(R"({"tokens": [97, 257, 226]})")),
            "{\"prompt\":\"a<|end|>\xEF\xBF\xBD\",\"content\":\"a<|end|>\xEF\xBF\xBD\"}");
  for (const char* body : {"{}", R"({"tokens": "a"})", R"({"tokens": [258]})", R"({"tokens": [-1]})"})
    EXPECT_THAT(error_of([&] { detokenize(body); }).param, StartsWith("tokens")) << body;
}

TEST(ModelsTest, EveryNameIsAModel) {
  const auto body = models_body("", served_model(), 1700000000);
  EXPECT_EQ(body["object"], "list");
  ASSERT_EQ(body["data"].size(), 2U);
  EXPECT_EQ(
      to_line(body["data"][1]),
      R"({"id":"alias","object":"model","created":1700000000,"owned_by":"quire","root":"alias","parent":null,)"
      R"("max_model_len":64,"permission":[]})");
  EXPECT_EQ(models_body("toy", served_model(), 1)["id"], "toy");
  EXPECT_EQ(error_of([] { models_body("other", served_model(), 1); }).status, 404);
}

}  // namespace
}  // namespace quire::server
