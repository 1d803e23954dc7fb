#include "completion_fixtures.h"

namespace quire::server {
namespace {

using test::completion_to_engine;
using test::completion_with;
using test::error_of;
using test::parse_completion;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ids = std::vector<TokenId>;

TEST(CompletionPromptTest, APromptIsATextOrIdsOrAListOfEither) {
  EXPECT_THAT(parse_completion(R"({"prompt": "ab"})").prompts, ElementsAre(Prompt("ab")));
  EXPECT_THAT(parse_completion(R"({"prompt": ["a", "b"]})").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(parse_completion(R"({"prompt": [1, 2]})").prompts, ElementsAre(Prompt(Ids{1, 2})));
  EXPECT_THAT(parse_completion(R"({"prompt": [[1, 2], [3]]})").prompts,
              ElementsAre(Prompt(Ids{1, 2}), Prompt(Ids{3})));
}

TEST(CompletionPromptTest, AnythingElseIsNoPrompt) {
  for (const char* prompt :
       {"null", "3", "true", "{}", "[]", "[null]", "[1, \"a\"]", "[\"a\", 1]", "[[1], \"a\"]", "[[1], 2]",
        "[1, [2]]", "[-1]", "[258]", "[1.5]", "[[\"a\"]]", "[9223372036854775808]", "[true]", "[{}]"}) {
    const ApiError error = error_of([&] { parse_completion(R"({"prompt": )" + std::string(prompt) + "}"); });
    EXPECT_EQ(error.status, 400) << prompt;
    EXPECT_THAT(error.param, StartsWith("prompt")) << prompt;
  }
  EXPECT_EQ(error_of([] { parse_completion("{}"); }).param, "prompt");
}

TEST(CompletionPromptTest, PromptsAreCounted) {
  const ServedModel model = test::served_model();
  std::string prompt = "\"a\"";
  for (int i = 1; i < 1024; ++i) prompt += ",\"a\"";
  EXPECT_EQ(parse_completion(R"({"prompt": [)" + prompt + "]}", model).prompts.size(), 1024U);
  EXPECT_THAT(error_of([&] { parse_completion(R"({"prompt": [)" + prompt + ",\"a\"]}", model); }).what(),
              HasSubstr("1025 entries; at most 1024"));
}

TEST(CompletionPromptTest, WhatEveryPromptGetsACopyOfIsBounded) {
  std::string ids = "1";
  for (int i = 1; i < 200; ++i) ids += ",1";
  std::string prompt = "[1]";
  for (int i = 1; i < 1024; ++i) prompt += ",[1]";
  const std::string words = R"(, "bad_words": [")" + std::string(250, 'x') + "\"";
  const auto body = [&](int num_words) {
    std::string text = R"({"prompt": [)" + prompt + R"(], "allowed_token_ids": [)" + ids + "]" + words;
    for (int i = 1; i < num_words; ++i) text += ",\"" + std::string(250, 'x') + "\"";
    return text + "]}";
  };
  EXPECT_EQ(completion_to_engine(parse_completion(body(15))).size(), 1024U);  // 3,950 each
  const ApiError error = error_of([&] { completion_to_engine(parse_completion(body(16))); });
  EXPECT_EQ(error.status, 400);
  EXPECT_THAT(error.what(), HasSubstr("1024 entries, and allowed_token_ids, logit_bias and bad_words 4200; "
                                      "at most 998 prompts may have so many"));
}

// Their words are read once: each of the list's prompts would take as long as all of one request.
TEST(CompletionPromptTest, ABadWordCostsAListNoMoreThanOnePrompt) {
  const auto seconds = [](int num_prompts, bool words) {
    std::string body = R"({"prompt": [[1])";
    for (int i = 1; i < num_prompts; ++i) body += ",[1]";
    body += R"(], "min_tokens": 1, "allowed_token_ids": [1, 2], "bad_words": ["a")";
    for (int i = 0; words && i < 60; ++i)
      body += ",\"" + std::string(60, static_cast<char>('b' + i % 20)) + "\"";
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const std::clock_t begin = std::clock();  // of this process alone: the machine may be busy
      EXPECT_EQ(completion_to_engine(parse_completion(body + "]}")).size(),
                static_cast<std::size_t>(num_prompts));
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  EXPECT_LT(seconds(1024, true) - seconds(1024, false), 100 * seconds(1, true));
}

TEST(CompletionPromptTest, APromptIsHandedOn) {
  for (const bool echo : {false, true}) {
    CompletionRequest request = completion_with(echo ? R"("echo": true)" : R"("echo": false)");
    ASSERT_EQ(make_engine_requests(request, test::served_model()).size(), 1U);
    ASSERT_EQ(request.prompts.size(), 1U);
    EXPECT_EQ(std::get<std::string>(request.prompts[0]), echo ? "x" : "");
    CompletionRequest ids = parse_completion(R"({"prompt": [1, 2], "echo": true})");
    EXPECT_EQ(make_engine_requests(ids, test::served_model()).front().prompt, (Ids{1, 2}));
    EXPECT_THAT(std::get<Ids>(ids.prompts[0]), ::testing::IsEmpty());
  }
}

TEST(CompletionPromptTest, TextIsTokenizedAndIdsAreLeftAsTheyAre) {
  EXPECT_EQ(completion_to_engine(parse_completion(R"({"prompt": "ab"})")).front().prompt, (Ids{256, 97, 98}));
  EXPECT_EQ(completion_to_engine(parse_completion(R"({"prompt": "ab<|end|>", "add_special_tokens": false})"))
                .front()
                .prompt,
            (Ids{97, 98, 257}));
  const auto both = completion_to_engine(
      parse_completion(R"({"prompt": [[97], [98, 99]], "priority": 4, "cache_salt": "z"})"));
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].prompt, (Ids{97}));
  EXPECT_EQ(both[1].prompt, (Ids{98, 99}));
  EXPECT_EQ(both[1].priority, 4);
  EXPECT_EQ(both[1].cache_salt, "z");
  EXPECT_EQ(both[1].params.max_tokens, 16);
}

TEST(CompletionPromptTest, AnEmptyPromptIsRefused) {
  EXPECT_EQ(completion_to_engine(parse_completion(R"({"prompt": ""})")).front().prompt, (Ids{256}));
  for (const char* body : {R"({"prompt": "", "add_special_tokens": false})", R"({"prompt": [[1], []]})"})
    EXPECT_EQ(error_of([&] { completion_to_engine(parse_completion(body)); }).status, 400) << body;
}

TEST(CompletionPromptTest, PromptAndOutputMustFitInTheContext) {
  const auto body = [](int prompt, int max_tokens) {
    return format_text(R"({{"prompt": "{}", "add_special_tokens": false, "max_tokens": {}}})",
                       std::string(static_cast<std::size_t>(prompt), 'x'), max_tokens);
  };
  EXPECT_EQ(completion_to_engine(parse_completion(body(48, 16))).front().params.max_tokens, 16);
  EXPECT_EQ(completion_to_engine(parse_completion(body(63, 1))).size(), 1U);
  for (const auto& [prompt, max_tokens] :
       {std::pair{49, 16}, {64, 1}, {63, 2}, {1, 2147483647}, {1000, 16}}) {
    const ApiError error =
        error_of([&] { completion_to_engine(parse_completion(body(prompt, max_tokens))); });
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_THAT(error.what(), HasSubstr("maximum context length is 64 tokens"));
  }
}

TEST(CompletionPromptTest, APromptMustFitInTheCache) {
  ServedModel model = test::served_model();
  model.kv_cache_tokens = 3;
  EXPECT_EQ(completion_to_engine(parse_completion(R"({"prompt": [1, 2, 3]})", model), model).size(), 1U);
  EXPECT_EQ(error_of([&] {
              completion_to_engine(parse_completion(R"({"prompt": [1, 2, 3, 4]})", model), model);
            }).code,
            "context_length_exceeded");
}

TEST(CompletionPromptTest, APromptIsTruncatedBeforeItIsMeasured) {
  const std::string body = R"({"prompt": ")" + std::string(98, 'x') + R"(yz", "truncate_prompt_tokens": )";
  const EngineRequest two = completion_to_engine(parse_completion(body + "2}")).front();
  EXPECT_EQ(two.prompt, (Ids{'y', 'z'}));
  EXPECT_FALSE(two.params.truncate_prompt_tokens);
  EXPECT_EQ(completion_to_engine(parse_completion(body + R"(2, "truncation_side": "left"})")).front().prompt,
            two.prompt);
  EXPECT_EQ(completion_to_engine(parse_completion(body + R"(3, "truncation_side": "right"})")).front().prompt,
            (Ids{256, 'x', 'x'}));
  EXPECT_EQ(completion_to_engine(parse_completion(body + R"(-1, "truncation_side": "right"})"))
                .front()
                .prompt.size(),
            48U);
  EXPECT_EQ(completion_to_engine(parse_completion(body + "48}")).front().prompt.size(), 48U);
  const ApiError error =
      error_of([&] { completion_to_engine(parse_completion(body + "49}")); });  // of 64, 16 are the output's
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "truncate_prompt_tokens");
  EXPECT_THAT(error.what(), HasSubstr("holds 48"));
  EXPECT_EQ(completion_to_engine(parse_completion(body + "-1}")).front().prompt.size(), 48U);
}

TEST(CompletionPromptTest, APromptIsTruncatedToWhatFitsWhereNoTokenIsAskedForToo) {
  const std::string body = R"({"echo": true, "max_tokens": 0, "truncate_prompt_tokens": -1, "prompt": ")";
  EXPECT_EQ(
      completion_to_engine(parse_completion(body + std::string(100, 'x') + "\"}")).front().prompt.size(),
      63U);
}

}  // namespace
}  // namespace quire::server
