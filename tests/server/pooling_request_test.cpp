#include "protocol_fixtures.h"
#include "server/completion.h"
#include "server/pooling.h"

namespace quire::server {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ids = std::vector<TokenId>;

ServedModel pooled_model() {
  ServedModel model = test::served_model();
  model.hidden_size = 8;
  return model;
}

EmbeddingsRequest parsed_input(const std::string& body, bool pooling = false) {
  return parse_embeddings_request(parse_body(body), pooled_model(), pooling);
}
ScoreRequest parsed_score(const std::string& body) {
  return parse_score_request(parse_body(body), pooled_model(), false);
}
ScoreRequest parsed_rerank(const std::string& body) {
  return parse_score_request(parse_body(body), pooled_model(), true);
}

// The inputs as the engine gets them.
std::vector<Ids> fitted(const std::string& body, const ServedModel& model = pooled_model()) {
  EmbeddingsRequest request = parse_embeddings_request(parse_body(body), model);
  std::vector<Ids> inputs = tokenize_prompts(request.inputs, request.add_special_tokens, model);
  for (Ids& input : inputs) fit_input(input, request, "input", model);
  return inputs;
}

TEST(EmbeddingsTest, InputsAreTextsOrTokens) {
  EXPECT_THAT(fitted(R"({"input": "a"})"), ElementsAre(Ids{256, 97}));
  EXPECT_THAT(fitted(R"({"input": ["a", "b"], "add_special_tokens": false})"), ElementsAre(Ids{97}, Ids{98}));
  EXPECT_THAT(fitted(R"({"input": [1, 2]})"), ElementsAre(Ids{1, 2}));
  EXPECT_EQ(parsed_input(R"({"input": "a"})").model, "toy");
  for (const char* input : {"null", "3", "[]", "{}", "[[]]", "[258]", "[\"a\", 1]"}) {
    EXPECT_THAT(error_of([&] { fitted(R"({"input": )" + std::string(input) + "}"); }).param,
                StartsWith("input"))
        << input;
  }
}

TEST(EmbeddingsTest, InputsAreCutOnEitherSide) {
  constexpr const char* kBody = R"({{"input": [[1], [2, 3]], "truncate_prompt_tokens": 1{}}})";
  EXPECT_THAT(fitted(format_text(kBody, "")), ElementsAre(Ids{1}, Ids{3}));
  EXPECT_THAT(fitted(format_text(kBody, R"(, "truncation_side": "left")")), ElementsAre(Ids{1}, Ids{3}));
  EXPECT_THAT(fitted(format_text(kBody, R"(, "truncation_side": "right")")), ElementsAre(Ids{1}, Ids{2}));
}

TEST(EmbeddingsTest, InputsMustFit) {
  const auto body = [](std::size_t length, const std::string& fields) {
    return R"({"add_special_tokens": false, "input": ")" + std::string(length, 'x') + "\"" + fields + "}";
  };
  EXPECT_EQ(fitted(body(64, ""))[0].size(), 64U);
  EXPECT_EQ(error_of([&] { fitted(body(65, "")); }).code, "context_length_exceeded");
  EXPECT_EQ(fitted(body(100, R"(, "truncate_prompt_tokens": -1)"))[0].size(), 64U);
  EXPECT_EQ(fitted(body(100, R"(, "truncate_prompt_tokens": 64)"))[0].size(), 64U);
  for (const char* kept : {"0", "65", "-2"})
    EXPECT_EQ(
        error_of([&] { fitted(body(1, format_text(R"(, "truncate_prompt_tokens": {})", kept))); }).param,
        "truncate_prompt_tokens");
  ServedModel model = pooled_model();
  model.kv_cache_tokens = 2;
  EXPECT_NO_THROW(fitted(R"({"input": [[1, 2], [3]]})", model));
  EXPECT_EQ(error_of([&] { fitted(R"({"input": [[1], [1, 2, 3]]})", model); }).code,
            "context_length_exceeded");
}

TEST(EmbeddingsTest, MessagesAreAChatWithoutAGenerationPrompt) {
  constexpr const char* kMessages = R"("messages": [{"role": "user", "content": "hi"}])";
  const auto chat = [&](const std::string& more) {
    return parsed_input(format_text("{{{}{}}}", kMessages, more)).chat;
  };
  ASSERT_TRUE(chat(""));
  EXPECT_EQ(chat("")->context["add_generation_prompt"], false);
  EXPECT_FALSE(chat("")->add_special_tokens);
  EXPECT_EQ(chat(R"(, "add_generation_prompt": true)")->context["add_generation_prompt"], true);
  EXPECT_TRUE(chat(R"(, "truncation_side": "right", "truncate_prompt_tokens": 3)"));
  EXPECT_FALSE(parsed_input(format_text(R"({{"input": "a", {}}})", kMessages)).chat);
  EXPECT_EQ(error_of([] { parsed_input(R"({"messages": []})"); }).param, "messages");
}

TEST(EmbeddingsTest, TheFormOfNumbersIsRead) {
  EXPECT_FALSE(parsed_input(R"({"input": "a"})").base64);
  EXPECT_EQ(parsed_input(R"({"input": "a", "encoding_format": "base64"})").base64, DType::kF32);
  const auto request = parsed_input(
      R"({"input": "a", "encoding_format": "base64", "embed_dtype": "bfloat16", "endianness": "big"})");
  EXPECT_EQ(request.base64, DType::kBF16);
  EXPECT_TRUE(request.big_endian);
  EXPECT_EQ(parsed_input(R"({"input": "a", "dimensions": 8})").dimensions, 8);
  for (const char* name : {"normalize", "use_activation"}) {
    EXPECT_TRUE(parsed_input(format_text(R"({{"input": "a", "{}": true}})", name)).normalise);
    EXPECT_FALSE(parsed_input(format_text(R"({{"input": "a", "{}": false}})", name)).normalise);
  }
}

TEST(EmbeddingsTest, WhatIsNotHonouredIsRefusedByName) {
  for (const auto& [name, value] : {std::pair{"encoding_format", R"("bytes")"},
                                    {"encoding_format", R"("bytes_only")"},
                                    {"embed_dtype", R"("fp8_e4m3")"},
                                    {"embed_dtype", R"("float16")"},  // of numbers that are no bytes
                                    {"endianness", R"("big")"},
                                    {"truncation_side", R"("middle")"},
                                    {"padding", R"("max_length")"},
                                    {"stream", "true"},
                                    {"dimensions", "0"},
                                    {"dimensions", "9"},
                                    {"cache_salt", R"("")"},
                                    {"request_id", R"("a b")"}}) {
    const std::string body = format_text(R"({{"input": "a", "{}": {}}})", name, value);
    EXPECT_EQ(error_of([&] { parsed_input(body); }).param, name) << body;
  }
  EXPECT_NO_THROW(parsed_input(R"({"input": "a", "task": "embed"})", true));
  EXPECT_EQ(error_of([] { parsed_input(R"({"input": "a", "task": "token_embed"})", true); }).param, "task");
}

TEST(ScoreTest, PairsHaveManyNames) {
  for (const auto& [queries, documents] : {std::pair{"queries", "documents"},
                                           {"queries", "items"},
                                           {"text_1", "text_2"},
                                           {"data_1", "data_2"}}) {
    const ScoreRequest request =
        parsed_score(format_text(R"({{"{}": "q", "{}": ["a", {{"text": "b"}}]}})", queries, documents));
    EXPECT_THAT(request.queries, ElementsAre("q"));
    EXPECT_THAT(request.documents, ElementsAre("a", "b"));
    EXPECT_EQ(request.query_name, queries);
    EXPECT_EQ(request.document_name, documents);
  }
  EXPECT_THAT(parsed_score(R"({"text_1": ["p", "q"], "text_2": ["a", "b"]})").queries, ElementsAre("p", "q"));
}

TEST(ScoreTest, WhatIsNoPairIsRefusedByName) {
  for (const auto& [body, param] :
       {std::pair{R"({})", "queries"},
        {R"({"queries": "q"})", "documents"},
        {R"({"text_2": "a"})", "queries"},
        {R"({"queries": ["p", "q"], "documents": ["a"]})", "queries"},
        {R"({"queries": [], "documents": ["a"]})", "queries"},
        {R"({"queries": "q", "documents": []})", "documents"},
        {R"({"queries": "q", "documents": ["a", 3]})", "documents[1]"},
        {R"({"queries": "q", "documents": [{"image": "x"}]})", "documents[0]"},
        {R"({"queries": "q", "documents": "a", "max_tokens_per_doc": -1})", "max_tokens_per_doc"},
        {R"({"queries": "q", "documents": "a", "chat_template_kwargs": {"a": 1}})", "chat_template_kwargs"}})
    EXPECT_EQ(error_of([&] { parsed_score(body); }).param, param) << body;
}

TEST(ScoreTest, AQueryThatAllPromptsRepeatIsBounded) {
  const auto body = [](std::size_t length) {
    return format_text(R"({{"query": "{}", "documents": ["a", "b"]}})", std::string(length, 'q'));
  };
  EXPECT_NO_THROW(parsed_rerank(body(8 << 20)));
  const ApiError error = error_of([&] { parsed_rerank(body((8 << 20) + 1)); });
  EXPECT_EQ(error.param, "query");
  EXPECT_THAT(error.what(), HasSubstr("at most 1 "));
}

TEST(RerankTest, TakesOneQueryAndSaysWhatIsAnswered) {
  const ScoreRequest request = parsed_rerank(
      R"({"query": "q", "documents": ["a"], "top_n": 3, "return_documents": false, "instruction": "i"})");
  EXPECT_EQ(request.top_n, 3U);
  EXPECT_FALSE(request.return_documents);
  EXPECT_EQ(request.instruction, "i");
  EXPECT_TRUE(parsed_rerank(R"({"query": {"text": "q"}, "documents": "a"})").return_documents);
  EXPECT_TRUE(request.truncate_right);
  EXPECT_FALSE(
      parsed_rerank(R"({"query": "q", "documents": "a", "truncation_side": "left"})").truncate_right);
  for (const auto& [body, param] :
       {std::pair{R"({"documents": ["a"]})", "query"},
        {R"({"query": ["p", "q"], "documents": ["a", "b"]})", "query"},
        {R"({"query": "q", "documents": ["a"], "top_n": -1})", "top_n"},
        {R"({"query": "q", "documents": ["a"], "rank_fields": ["x"]})", "rank_fields"}})
    EXPECT_EQ(error_of([&] { parsed_rerank(body); }).param, param) << body;
}

TEST(CutTextTest, KeepsWholeCharactersOfEitherEnd) {
  const Tokenizer& tokenizer = test::byte_tokenizer();
  EXPECT_EQ(cut_text("abcd", 2, tokenizer), "ab");
  EXPECT_EQ(cut_text("abcd", 2, tokenizer, false), "cd");
  EXPECT_EQ(cut_text("abcd", 4, tokenizer), "abcd");
  EXPECT_EQ(cut_text("abcd", 0, tokenizer), "abcd");
  EXPECT_EQ(cut_text("abcd", std::nullopt, tokenizer), "abcd");
  EXPECT_EQ(cut_text("a\xC3\xA9z", 2, tokenizer), "a");  // é, cut in two
  EXPECT_EQ(cut_text("a\xC3\xA9z", 2, tokenizer, false), "z");
  EXPECT_EQ(cut_text("<s>", 1, tokenizer), "<");  // no special token
}

}  // namespace
}  // namespace quire::server
