#include "server/text_requests.h"

#include "response_fixtures.h"

namespace quire::server {
namespace {

using test::error_of;
using test::head;
using test::served_model;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ids = std::vector<TokenId>;

TokenizeRequest tokenize(const char* body) {
  return parse_tokenize_request(parse_body(body), served_model(), ContentFormat::kText);
}
EmbeddingsRequest embed(const std::string& body) {
  return parse_embeddings_request(parse_body(body), served_model());
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

TEST(EmbeddingsTest, InputsAreTextsOrTokens) {
  EXPECT_THAT(embed(R"({"input": "a"})").inputs, ElementsAre(Ids{256, 97}));
  EXPECT_THAT(embed(R"({"input": ["a", "b"], "add_special_tokens": false})").inputs,
              ElementsAre(Ids{97}, Ids{98}));
  EXPECT_THAT(embed(R"({"input": [1, 2]})").inputs, ElementsAre(Ids{1, 2}));
  EXPECT_THAT(embed(R"({"input": [[1], [2, 3]], "truncate_prompt_tokens": 1})").inputs,
              ElementsAre(Ids{1}, Ids{3}));
  EXPECT_EQ(embed(R"({"input": "a"})").model, "toy");
  for (const char* input : {"null", "3", "[]", "{}", "[[]]", "[258]", "[\"a\", 1]"}) {
    EXPECT_THAT(error_of([&] { embed(R"({"input": )" + std::string(input) + "}"); }).param,
                StartsWith("input"))
        << input;
  }
}

TEST(EmbeddingsTest, InputsMustFit) {
  const auto body = [](std::size_t length, const std::string& fields) {
    return R"({"add_special_tokens": false, "input": ")" + std::string(length, 'x') + "\"" + fields + "}";
  };
  EXPECT_EQ(embed(body(64, "")).inputs[0].size(), 64U);
  EXPECT_EQ(error_of([&] { embed(body(65, "")); }).code, "context_length_exceeded");
  EXPECT_EQ(embed(body(100, R"(, "truncate_prompt_tokens": -1)")).inputs[0].size(), 64U);
  EXPECT_EQ(error_of([&] { embed(body(1, R"(, "truncate_prompt_tokens": 0)")); }).param,
            "truncate_prompt_tokens");
  ServedModel model = served_model();
  model.kv_cache_tokens = 2;
  const auto parsed = [&](const char* text) { return parse_embeddings_request(parse_body(text), model); };
  EXPECT_NO_THROW(parsed(R"({"input": [[1, 2], [3]]})"));
  EXPECT_EQ(error_of([&] { parsed(R"({"input": [[1], [1, 2, 3]]})"); }).code, "context_length_exceeded");
}

TEST(EmbeddingsTest, OptionsAreChecked) {
  EXPECT_EQ(error_of([] { embed(R"({"input": "a", "encoding_format": "hex"})"); }).param, "encoding_format");
  for (const auto& [name, value] : {std::pair{"dimensions", "8"},
                                    {"embed_dtype", R"("float16")"},
                                    {"endianness", R"("big")"},
                                    {"truncation_side", R"("right")"},
                                    {"normalize", "false"},
                                    {"use_activation", "false"}}) {
    const std::string body = format_text(R"({{"input": "a", "{}": {}}})", name, value);
    EXPECT_EQ(error_of([&] { embed(body); }).param, name);
  }
  EXPECT_NO_THROW(embed(R"({"input": "a", "embed_dtype": "float32", "normalize": true})"));
}

TEST(EmbeddingsTest, AreNumbersOrBase64) {
  std::vector<RequestOutput> outputs(2);
  outputs[0].embedding = {1, -2};
  outputs[1].embedding = {0.5F};
  const auto request = embed(R"({"input": [[1, 2], [3]]})");
  EXPECT_EQ(
      to_line(EmbeddingsResponse(head("embd-1"), request).body(outputs)),
      R"({"id":"embd-1","object":"list","created":1700000000,"model":"toy","data":[)"
      R"({"index":0,"object":"embedding","embedding":[1.0,-2.0]},{"index":1,"object":"embedding","embedding":[0.5]}],)"
      R"("usage":{"prompt_tokens":3,"total_tokens":3}})");
  const auto base64 = embed(R"({"input": [[1, 2], [3]], "encoding_format": "base64"})");
  const auto body = EmbeddingsResponse(head("embd-1"), base64).body(outputs);
  EXPECT_EQ(body["data"][0]["embedding"], "AACAPwAAAMA=");  // 0000803f 000000c0
  EXPECT_EQ(body["data"][1]["embedding"], "AAAAPw==");      // 0000003f
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
