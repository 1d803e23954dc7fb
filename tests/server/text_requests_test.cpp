#include "server/text_requests.h"

#include "protocol_fixtures.h"

namespace quire::server {
namespace {

using test::error_of;
using test::served_model;
using ::testing::ElementsAre;
using ::testing::StartsWith;

TokenizeRequest tokenize(const char* body) {
  return parse_tokenize_request(parse_body(body), served_model(), ContentFormat::kText);
}

TEST(TokenizeTest, TakesAPromptOrMessages) {
  const TokenizeRequest text = tokenize(R"({"prompt": "ab", "return_token_strs": true})");
  EXPECT_EQ(text.prompt, "ab");
  EXPECT_TRUE(text.add_special_tokens);
  EXPECT_EQ(to_line(tokenize_body(text, {256, 97, 226}, served_model())),
            "{\"count\":3,\"max_model_len\":64,\"tokens\":[256,97,226],\"token_strs\":[\"<s>\",\"a\","
            "\"\xC3\xA2\"]}");
  const TokenizeRequest chat = tokenize(R"({"messages": [{"role": "user", "content": "hi"}]})");
  ASSERT_TRUE(chat.chat);
  EXPECT_FALSE(chat.add_special_tokens);
  EXPECT_TRUE(tokenize_body(chat, {1}, served_model())["token_strs"].is_null());
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
  const auto parse = [](const char* body) {
    return parse_detokenize_request(parse_body(body), served_model());
  };
  EXPECT_THAT(parse(R"({"tokens": [97, 98]})"), ElementsAre(97, 98));
  EXPECT_EQ(to_line(detokenize_body({97, 257, 0xE2}, served_model())),
            "{\"prompt\":\"a<|end|>\xEF\xBF\xBD\",\"content\":\"a<|end|>\xEF\xBF\xBD\"}");
  for (const char* body : {"{}", R"({"tokens": "a"})", R"({"tokens": [258]})", R"({"tokens": [-1]})"})
    EXPECT_THAT(error_of([&] { parse(body); }).param, StartsWith("tokens")) << body;
}

TEST(ModelsTest, EveryNameIsAModel) {
  const auto body = models_body(served_model(), 1700000000);
  EXPECT_EQ(body["object"], "list");
  ASSERT_EQ(body["data"].size(), 2U);
  EXPECT_EQ(
      to_line(body["data"][1]),
      R"({"id":"alias","object":"model","created":1700000000,"owned_by":"quire","root":"alias","parent":null,)"
      R"("max_model_len":64,"permission":[]})");
  EXPECT_EQ(model_body("toy", served_model(), 1)["id"], "toy");
  EXPECT_EQ(error_of([] { model_body("other", served_model(), 1); }).status, 404);
}

}  // namespace
}  // namespace quire::server
