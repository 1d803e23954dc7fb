#include "completion_fixtures.h"
#include "server/completion.h"

namespace quire::server {
namespace {

using test::completion_error;
using test::completion_to_engine;
using test::completion_with;
using test::error_of;
using test::parse_completion;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CompletionRequestTest, DefaultsAreTheModelAuthorsAndOpenAis) {
  ServedModel model = test::served_model();
  model.defaults.temperature = 0.6F;
  model.defaults.top_k = 20;
  const CompletionRequest request = parse_completion(R"({"prompt": "x", "top_k": 7})", model);
  EXPECT_EQ(request.model, "toy");
  EXPECT_EQ(request.params.temperature, 0.6F);
  EXPECT_EQ(request.params.top_k, 7);
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.echo);
  EXPECT_FALSE(request.params.logprobs);
  EXPECT_TRUE(request.add_special_tokens);
}

TEST(CompletionRequestTest, NullIsAbsentEverywhereAndUnknownFieldsAreIgnored) {
  std::string fields;
  for (const char* name : {"model",
                           "max_tokens",
                           "echo",
                           "frequency_penalty",
                           "logit_bias",
                           "logprobs",
                           "n",
                           "presence_penalty",
                           "seed",
                           "stop",
                           "stream",
                           "stream_options",
                           "suffix",
                           "temperature",
                           "top_p",
                           "user",
                           "best_of",
                           "use_beam_search",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "length_penalty",
                           "early_stopping",
                           "stop_token_ids",
                           "include_stop_str_in_output",
                           "ignore_eos",
                           "min_tokens",
                           "skip_special_tokens",
                           "spaces_between_special_tokens",
                           "truncate_prompt_tokens",
                           "truncation_side",
                           "allowed_token_ids",
                           "prompt_logprobs",
                           "logprob_token_ids",
                           "bad_words",
                           "prompt_embeds",
                           "add_special_tokens",
                           "response_format",
                           "structured_outputs",
                           "guided_json",
                           "priority",
                           "request_id",
                           "session_id",
                           "return_tokens_as_token_ids",
                           "return_token_ids",
                           "cache_salt",
                           "kv_transfer_params",
                           "vllm_xargs",
                           "repetition_detection",
                           "thinking_token_budget",
                           "stream_interval",
                           "timings"}) {
    fields += '"' + std::string(name) + "\": null, ";
  }
  const CompletionRequest request = completion_with(fields + R"("what_is_this": {"a": [1]})");
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.params.n, 1);
}

TEST(CompletionRequestTest, EveryParameterArrives) {
  const CompletionRequest request =
      completion_with(R"("model": "alias", "max_tokens": 5, "n": 2, "best_of": 3, "temperature": 0.5,
    "top_p": 0.25, "top_k": 9, "min_p": 0.125, "seed": -2, "presence_penalty": 1, "frequency_penalty": -1,
    "repetition_penalty": 1.5, "logit_bias": {"7": -100, "65": 2.5}, "allowed_token_ids": [1, 2],
    "bad_words": ["no"], "logprobs": 3, "min_tokens": 2, "ignore_eos": true, "stop": ["a", "b"],
    "stop_token_ids": [10], "include_stop_str_in_output": true, "skip_special_tokens": false,
    "spaces_between_special_tokens": false, "truncate_prompt_tokens": 4, "priority": -3, "cache_salt": "s",
    "request_id": "A.b-c_9", "add_special_tokens": false, "return_token_ids": true,
    "return_tokens_as_token_ids": true, "timings": true, "stream": true,
    "stream_options": {"include_usage": true, "continuous_usage_stats": true})");
  const SamplingParams& params = request.params;
  EXPECT_EQ(request.model, "alias");
  EXPECT_EQ(params.max_tokens, 5);
  EXPECT_EQ(params.n, 2);
  EXPECT_EQ(params.best_of, 3);
  EXPECT_EQ(params.temperature, 0.5F);
  EXPECT_EQ(params.top_p, 0.25F);
  EXPECT_EQ(params.top_k, 9);
  EXPECT_EQ(params.min_p, 0.125F);
  EXPECT_EQ(params.seed, ~std::uint64_t{1});
  EXPECT_EQ(params.presence_penalty, 1);
  EXPECT_EQ(params.frequency_penalty, -1);
  EXPECT_EQ(params.repetition_penalty, 1.5F);
  EXPECT_THAT(params.logit_bias, ElementsAre(std::pair(7, -100.0F), std::pair(65, 2.5F)));
  EXPECT_THAT(params.allowed_token_ids, ElementsAre(1, 2));
  EXPECT_THAT(params.bad_words, ElementsAre("no"));
  EXPECT_EQ(params.logprobs, 3);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_THAT(params.stop, ElementsAre("a", "b"));
  EXPECT_THAT(params.stop_token_ids, ElementsAre(10));
  EXPECT_TRUE(params.include_stop_str_in_output);
  EXPECT_FALSE(params.skip_special_tokens);
  EXPECT_FALSE(params.spaces_between_special_tokens);
  EXPECT_EQ(params.truncate_prompt_tokens, 4);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.request_id, "A.b-c_9");
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_TRUE(request.return_tokens_as_token_ids);
  EXPECT_TRUE(request.timings);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.continuous_usage);
}

TEST(CompletionRequestTest, MaxTokensMayBeZeroWithEcho) {
  EXPECT_EQ(completion_error(R"("max_tokens": 0)").param, "max_tokens");
  const CompletionRequest echo = completion_with(R"("max_tokens": 0, "echo": true)");
  EXPECT_EQ(echo.params.prompt_logprobs, 0);
  EXPECT_FALSE(echo.params.logprobs);
  EXPECT_FALSE(echo.report_prompt_logprobs);
  EXPECT_EQ(completion_to_engine(echo).front().params.max_tokens, 0);
}

TEST(CompletionRequestTest, EchoWithLogprobsAsksForThePromptsToo) {
  EXPECT_EQ(completion_with(R"("echo": true, "logprobs": 2)").params.prompt_logprobs, 2);
  EXPECT_FALSE(completion_with(R"("echo": true)").params.prompt_logprobs);
  EXPECT_FALSE(completion_with(R"("logprobs": 2)").params.prompt_logprobs);
  EXPECT_NO_THROW(completion_with(R"("echo": true, "logprobs": 2, "stream": true)"));
  const CompletionRequest own = completion_with(R"("prompt_logprobs": 3)");
  EXPECT_EQ(own.params.prompt_logprobs, 3);
  EXPECT_TRUE(own.report_prompt_logprobs);
  EXPECT_EQ(completion_error(R"("prompt_logprobs": 0, "stream": true)").param, "prompt_logprobs");
}

TEST(CompletionRequestTest, BeamSearchHasAsManyBeamsAsOutputs) {
  if (!QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  ServedModel model = test::served_model();
  model.defaults.repetition_penalty = 1.1F;
  const auto request = parse_completion(
      R"({"prompt": "x", "use_beam_search": true, "n": 4, "length_penalty": 0.5, "early_stopping": "never"})",
      model);
  EXPECT_EQ(request.params.beam_width, 4);
  EXPECT_EQ(request.params.n, 4);
  EXPECT_EQ(request.params.length_penalty, 0.5F);
  EXPECT_EQ(request.params.early_stopping, EarlyStopping::kNever);
  EXPECT_EQ(completion_with(R"("use_beam_search": true, "early_stopping": true)").params.early_stopping,
            EarlyStopping::kYes);
  EXPECT_FALSE(completion_with(R"("use_beam_search": false, "n": 2)").params.beam_width);
  EXPECT_EQ(completion_error(R"("early_stopping": "soon")").param, "early_stopping");
  EXPECT_EQ(completion_error(R"("use_beam_search": true, "stop": "x")").param, "use_beam_search");
}

TEST(CompletionRequestTest, StreamOptionsNeedAStream) {
  EXPECT_EQ(completion_error(R"("stream_options": {"include_usage": true})").param, "stream_options");
  EXPECT_FALSE(completion_with(R"("stream": true, "stream_options": {"continuous_usage_stats": true})")
                   .continuous_usage);
  EXPECT_EQ(completion_error(R"("stream": true, "stream_options": {"include_usage": 2})").param,
            "stream_options.include_usage");
  EXPECT_EQ(completion_error(R"("stream": true, "stream_options": [])").param, "stream_options");
}

TEST(CompletionRequestTest, StopIsATextOrAListOfThem) {
  EXPECT_THAT(completion_with(R"("stop": "a")").params.stop, ElementsAre("a"));
  EXPECT_THAT(completion_with(R"("stop": [])").params.stop, ElementsAre());
  for (const char* stop : {"3", "[3]", "[null]", "{}", "\"\"", "[\"a\", \"\"]"})
    EXPECT_THAT(completion_error("\"stop\": " + std::string(stop)).param, StartsWith("stop")) << stop;
  const std::string longest = '"' + std::string(256, 's') + '"';
  std::string most = longest;
  for (int i = 1; i < 16; ++i) most += "," + longest;
  EXPECT_EQ(completion_with("\"stop\": [" + most + "]").params.stop.size(), 16U);
  EXPECT_EQ(completion_error("\"stop\": [" + most + ", \"a\"]").param, "stop");
  EXPECT_EQ(completion_error("\"stop\": \"" + std::string(257, 's') + '"').param, "stop");
}

TEST(CompletionRequestTest, LogitBiasHasIdsForKeys) {
  for (const char* biases :
       {R"({"x": 1})", R"({"": 1})", R"({"1.5": 1})", R"({" 1": 1})", R"({"258": 1})", R"({"-1": 1})",
        R"({"99999999999": 1})", R"({"1": "x"})", R"({"1": null})", "[1]", "3"}) {
    EXPECT_THAT(completion_error("\"logit_bias\": " + std::string(biases)).param, StartsWith("logit_bias"))
        << biases;
  }
  EXPECT_EQ(completion_with(R"("logit_bias": {"1": 1e308})").params.logit_bias.size(), 1U);
  EXPECT_EQ(completion_with(R"("logit_bias": {"1": "-2.5"})").params.logit_bias.at(1), -2.5F);
}

TEST(CompletionRequestTest, ListsOfTokensAreChecked) {
  for (const char* name : {"stop_token_ids", "allowed_token_ids"}) {
    for (const char* ids :
         {"3", "\"3\"", "[-1]", "[258]", "[1.5]", "[null]", "[[1]]", "[9223372036854775808]"}) {
      EXPECT_THAT(completion_error(format_text("\"{}\": {}", name, ids)).param, StartsWith(name)) << ids;
    }
  }
  std::string ids = "1";
  for (int i = 1; i < 129; ++i) ids += ",1";
  EXPECT_EQ(completion_error("\"stop_token_ids\": [" + ids + "]").param, "stop_token_ids");
  EXPECT_EQ(completion_error(R"("bad_words": ["  "])").param, "bad_words");
}

TEST(CompletionRequestTest, RequestIdsAreOpaque) {
  for (const std::string& id : {std::string(), std::string(65, 'x'), std::string("a/b"), std::string("a b"),
                                std::string("a\\nb"), std::string("\xC3\xA9")}) {
    EXPECT_EQ(completion_error("\"request_id\": \"" + id + '"').param, "request_id") << id;
  }
  EXPECT_EQ(completion_with("\"request_id\": \"" + std::string(64, 'x') + '"').request_id.size(), 64U);
  EXPECT_EQ(completion_error(R"("request_id": 7)").param, "request_id");
}

TEST(CompletionRequestTest, CacheSaltsAreShortTexts) {
  EXPECT_EQ(completion_error(R"("cache_salt": "")").param, "cache_salt");
  EXPECT_EQ(completion_error("\"cache_salt\": \"" + std::string(257, 's') + '"').param, "cache_salt");
  EXPECT_EQ(completion_error(R"("cache_salt": {"a": 1})").param, "cache_salt");
}

TEST(CompletionRequestTest, AnUnknownModelIsNotFound) {
  const ApiError error = completion_error(R"("model": "gpt-4")");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.type(), "NotFoundError");
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_EQ(error.param, "model");
  EXPECT_EQ(completion_error(R"("model": 3)").status, 400);
  EXPECT_EQ(completion_error(R"("model": "../../etc/passwd")").status, 404);
}

TEST(CompletionRequestTest, WhatDoesNotExistIsRefusedByName) {
  for (const auto& [name, value] : {std::pair{"suffix", R"("x")"},
                                    {"prompt_embeds", R"("AAAA")"},
                                    {"response_format", R"({"type": "xml"})"},
                                    {"kv_transfer_params", R"({"a": 1})"},
                                    {"truncation_side", R"("middle")"},
                                    {"thinking_token_budget", "5"},
                                    {"return_token_offsets", "true"},
                                    {"return_assistant_tokens_mask", "true"},
                                    {"watermarking", "true"},
                                    {"stream_interval", "4"},
                                    {"ec_transfer_params", R"({"a": 1})"}}) {
    const ApiError error = completion_error(format_text("\"{}\": {}", name, value));
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_EQ(error.param, name);
    EXPECT_THAT(error.what(), HasSubstr("not supported"));
  }
  EXPECT_NO_THROW(
      completion_with(R"("suffix": "", "response_format": {"type": "text"}, "truncation_side": "left",
                          "guided_choice": null, "structured_outputs": null, "return_token_offsets": false)"));
}

TEST(CompletionRequestTest, FlagsMustBeFlags) {
  for (const char* name : {"stream", "echo", "ignore_eos", "use_beam_search", "include_stop_str_in_output",
                           "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens",
                           "return_token_ids", "return_tokens_as_token_ids", "timings"}) {
    for (const char* value : {"2", "-1", "0.5", "\"maybe\"", "\"\"", "[]", "[true]", "{}"})
      EXPECT_EQ(completion_error(format_text("\"{}\": {}", name, value)).param, name) << value;
  }
}

// As pydantic reads them, which vLLM's clients are used to.
TEST(CompletionRequestTest, FlagsAndNumbersMayBeTexts) {
  for (const char* yes : {"true", "1", "1.0", "\"true\"", "\"True\"", "\"1\"", "\"yes\"", "\"on\"", "\"T\""})
    EXPECT_TRUE(completion_with(format_text("\"stream\": {}", yes)).stream) << yes;
  for (const char* no : {"false", "0", "0.0", "\"FALSE\"", "\"0\"", "\"no\"", "\"off\"", "\"n\""})
    EXPECT_FALSE(completion_with(format_text("\"stream\": {}", no)).stream) << no;
  const auto request =
      completion_with(R"("temperature": "0.5", "n": "2", "max_tokens": "5.0", "seed": "-3", "top_k": 7.0,
                               "stop_token_ids": ["7", 8])");
  EXPECT_EQ(request.params.temperature, 0.5F);
  EXPECT_EQ(request.params.n, 2);
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.params.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(completion_with(R"("seed": -1)").params.seed, std::nullopt);
  EXPECT_EQ(request.params.top_k, 7);
  EXPECT_THAT(request.params.stop_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(completion_error(R"("seed": "99999999999999999999")").param, "seed");
}

TEST(CompletionRequestTest, AllOrNamedTokensMayBeReported) {
  ServedModel model = test::served_model();
  EXPECT_THAT(error_of([&] { parse_completion(R"({"prompt": "x", "logprobs": -1})", model); }).what(),
              StartsWith("logprobs is -1, all 258 tokens"));
  EXPECT_EQ(completion_error(R"("prompt_logprobs": -1)").param, "prompt_logprobs");
  EXPECT_THAT(completion_error(R"("prompt_logprobs": -2)").what(), HasSubstr("from -1"));
  EXPECT_EQ(completion_error(R"("logprobs": -2)").param, "logprobs");
  model.sampling.max_logprobs = 258;
  EXPECT_EQ(parse_completion(R"({"prompt": "x", "logprobs": -1})", model).params.logprobs, -1);
  EXPECT_EQ(
      parse_completion(R"({"prompt": "x", "echo": true, "logprobs": -1})", model).params.prompt_logprobs, -1);

  EXPECT_THAT(completion_with(R"("logprobs": 0, "logprob_token_ids": [5, 257])").params.logprob_token_ids,
              ElementsAre(5, 257));
  EXPECT_EQ(completion_error(R"("logprob_token_ids": [5])").param, "logprob_token_ids");
  EXPECT_EQ(completion_error(R"("logprobs": 0, "logprob_token_ids": [258])").param, "logprob_token_ids[0]");
  EXPECT_EQ(
      completion_error(R"("logprobs": 0, "n": 2, "use_beam_search": true, "logprob_token_ids": [5])").status,
      400);
  std::string many = "0";
  for (int i = 1; i < 129; ++i) many += "," + std::to_string(i);
  EXPECT_THAT(completion_error("\"logprobs\": 0, \"logprob_token_ids\": [" + many + "]").what(),
              HasSubstr("129 entries; at most 128"));
}

TEST(CompletionRequestTest, GreedyOutputsCannotDiffer) {
  EXPECT_EQ(completion_error(R"("n": 2, "temperature": 0)").param, "n");
  EXPECT_EQ(completion_error(R"("n": 3, "best_of": 2)").param, "best_of");
}

TEST(CompletionRequestTest, WithoutATokenizerOnlyIdsWork) {
  ServedModel model = test::served_model();
  model.sampling.tokenizer = nullptr;
  EXPECT_EQ(completion_to_engine(parse_completion(R"({"prompt": [1]})", model), model).size(), 1U);
  EXPECT_EQ(
      error_of([&] { completion_to_engine(parse_completion(R"({"prompt": "x"})", model), model); }).status,
      400);
}

// What the clients of the contract send, field for field.
TEST(CompletionRequestTest, KnownClientsAreUnderstood) {
  const auto lm_eval =
      parse_completion(R"({"model": "toy", "prompt": [[97, 98, 99], [100]], "temperature": 0, "max_tokens": 1,
    "logprobs": 1, "seed": 1234, "echo": true})");
  EXPECT_EQ(lm_eval.prompts.size(), 2U);
  EXPECT_EQ(lm_eval.params.prompt_logprobs, 1);
  const auto bench =
      parse_completion(R"({"model": "toy", "prompt": "a b", "repetition_penalty": 1.0, "max_tokens": 4,
    "logprobs": null, "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true})");
  EXPECT_TRUE(bench.include_usage);
}

}  // namespace
}  // namespace quire::server
