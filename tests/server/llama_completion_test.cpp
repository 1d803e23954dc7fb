#include "server/llama_completion.h"

#include "response_fixtures.h"
#include "server/text_requests.h"

namespace quire::server {
namespace {

using test::error_of;
using test::head;
using test::output;
using test::request_output;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ids = std::vector<TokenId>;

LlamaRequest parse_llama(std::string_view body, const ServedModel& model = test::served_model()) {
  return parse_llama_request(parse_body(body), model);
}
LlamaRequest llama_with(const std::string& fields) {
  return parse_llama(R"({"prompt": "x", )" + fields + "}");
}
ApiError llama_error(const std::string& fields) {
  return error_of([&] { llama_with(fields); });
}

TEST(LlamaRequestTest, DefaultsAreTheAuthorsThenThoseOfLlamaCpp) {
  const SamplingParams plain = parse_llama(R"({"prompt": "x"})").params;
  EXPECT_EQ(plain.temperature, 0.8F);
  EXPECT_EQ(plain.top_k, 40);
  EXPECT_EQ(plain.top_p, 0.95F);
  EXPECT_EQ(plain.min_p, 0.05F);
  EXPECT_EQ(plain.repetition_penalty, 1);
  ServedModel model = test::served_model();
  model.author_defaults = {{"temperature", 0.6F}, {"top_k", 20}, {"repetition_penalty", 1.25F}};
  const LlamaRequest request = parse_llama(R"({"prompt": "x", "top_k": 3})", model);
  EXPECT_EQ(request.params.temperature, 0.6F);
  EXPECT_EQ(request.params.top_k, 3);
  EXPECT_EQ(request.params.top_p, 0.95F);
  EXPECT_EQ(request.params.repetition_penalty, 1.25F);
  EXPECT_FALSE(request.max_tokens);
  EXPECT_FALSE(request.params.logprobs);
  EXPECT_TRUE(request.cache_prompt);
}

TEST(LlamaRequestTest, FieldsHaveTheNamesOfLlamaCpp) {
  const LlamaRequest request = llama_with(
      R"("n_predict": 5, "temperature": 0.25, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.5,
         "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 7, "stop": ["a", "b"], "stream": true,
         "json_schema": {}, "ignore_eos": true, "n_probs": 3, "n_cmpl": 2, "cache_prompt": false,
         "return_tokens": true, "timings_per_token": true, "mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0,
         "xtc_probability": 0.0, "top_n_sigma": -1, "n_keep": 4, "id_slot": -1, "adaptive_target": -1.0)");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.params.temperature, 0.25F);
  EXPECT_EQ(llama_with("\"temperature\": -1").params.temperature, 0);
  EXPECT_EQ(request.params.top_p, 0.5F);
  EXPECT_EQ(request.params.min_p, 0.25F);
  EXPECT_EQ(request.params.repetition_penalty, 1.5F);
  EXPECT_EQ(request.params.presence_penalty, 0.5F);
  EXPECT_EQ(request.params.frequency_penalty, -0.5F);
  EXPECT_EQ(request.params.seed, 7U);
  EXPECT_THAT(request.params.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(request.stream && request.params.ignore_eos && request.return_tokens &&
              request.timings_per_token && !request.cache_prompt);
  EXPECT_EQ(request.params.logprobs, 3);
  EXPECT_EQ(request.params.n, 2);
  ASSERT_TRUE(request.params.structured_outputs);
  EXPECT_EQ(request.settings["repeat_penalty"], 1.5);
  EXPECT_EQ(request.settings["n_predict"], 5);
  EXPECT_FALSE(request.settings.contains("repetition_penalty"));
  EXPECT_EQ(parse_llama(R"({"prompt": "x", "stop": "a"})").settings["stop"].dump(), R"(["a"])");
  EXPECT_EQ(parse_llama(R"({"prompt": "x"})").settings["stop"].dump(), "[]");
  for (const char* seed : {"-1", "4294967295"})
    EXPECT_FALSE(llama_with(format_text("\"seed\": {}", seed)).params.seed) << seed;
  EXPECT_EQ(llama_with("\"max_tokens\": 4").max_tokens, 4);
  EXPECT_FALSE(llama_with("\"n_predict\": -1, \"max_tokens\": 4").max_tokens);
  EXPECT_FALSE(llama_with("\"repeat_penalty\": 1.5, \"repeat_last_n\": 0").params.repetition_penalty != 1);
}

TEST(LlamaRequestTest, ASamplerThatIsLeftOutDoesNothing) {
  const SamplingParams params =
      llama_with(R"("samplers": ["temperature", "top_k", "xtc"], "repeat_penalty": 1.5, "top_p": 0.5)")
          .params;
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.temperature, 0.8F);
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.min_p, 0);
  EXPECT_EQ(params.repetition_penalty, 1);
}

TEST(LlamaRequestTest, WhatIsNotHereIsRefusedByName) {
  for (const auto& [name, value] : {std::pair{"dry_multiplier", "0.8"},
                                    {"xtc_probability", "0.5"},
                                    {"mirostat", "2"},
                                    {"typical_p", "0.9"},
                                    {"dynatemp_range", "0.5"},
                                    {"top_n_sigma", "1"},
                                    {"adaptive_target", "0.5"},
                                    {"n_indent", "2"},
                                    {"min_keep", "1"},
                                    {"t_max_predict_ms", "100"},
                                    {"n_predict", "0"},
                                    {"lora", R"([{"id": 0, "scale": 1}])"},
                                    {"response_fields", R"(["content"])"},
                                    {"return_progress", "true"},
                                    {"post_sampling_probs", "true"}}) {
    const ApiError error = llama_error(format_text("\"{}\": {}", name, value));
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_EQ(error.param, name);
    EXPECT_THAT(error.what(), StartsWith(name));
  }
}

TEST(LlamaRequestTest, ErrorsNameTheClientsField) {
  for (const auto& [name, value] : {std::pair{"repeat_penalty", "-1"},
                                    {"repeat_penalty", R"("x")"},
                                    {"n_cmpl", "0"},
                                    {"n_probs", "21"},
                                    {"n_predict", "1.5"},
                                    {"temperature", "[]"},
                                    {"samplers", R"("kypmt")"},
                                    {"top_p", "2"}}) {
    const ApiError error = llama_error(format_text("\"{}\": {}", name, value));
    EXPECT_EQ(error.param, name);
    EXPECT_THAT(error.what(), StartsWith(name)) << value;
  }
}

TEST(LlamaRequestTest, PromptsAreTextsTokensAndBoth) {
  EXPECT_THAT(parse_llama(R"({"prompt": "ab"})").prompts, ElementsAre(Ids{256, 'a', 'b'}));
  EXPECT_THAT(parse_llama(R"({"prompt": [97, 98]})").prompts, ElementsAre(Ids{'a', 'b'}));
  EXPECT_THAT(parse_llama(R"({"prompt": [97, "bc", 257, "d"]})").prompts,
              ElementsAre(Ids{'a', 'b', 'c', 257, 'd'}));
  EXPECT_THAT(parse_llama(R"({"prompt": ["a", "b"]})").prompts, ElementsAre(Ids{256, 'a'}, Ids{256, 'b'}));
  EXPECT_THAT(parse_llama(R"({"prompt": ["a", [98, "c"], [100]]})").prompts,
              ElementsAre(Ids{256, 'a'}, Ids{'b', 'c'}, Ids{'d'}));
  for (const char* prompt :
       {"null", "[]", "3", "{}", "[97, {}]", "[258]", "[-1]", "[[97], null]", R"([97, "a", []])"})
    EXPECT_THAT(error_of([&] { parse_llama(format_text(R"({{"prompt": {}}})", prompt)); }).param,
                StartsWith("prompt"))
        << prompt;
  EXPECT_EQ(error_of([] { parse_llama("{}"); }).param, "prompt");
}

TEST(LlamaRequestTest, BiasesAreOfTokensAndTexts) {
  const auto biases = [](const std::string& value) {
    return llama_with("\"logit_bias\": " + value).params.logit_bias;
  };
  using Biases = std::map<std::int32_t, float>;
  EXPECT_EQ(biases("[[97, 1.5], [98, false]]"), (Biases{{97, 1.5F}, {98, -100.0F}}));
  EXPECT_EQ(biases(R"([["ab", -0.5]])"), (Biases{{'a', -0.5F}, {'b', -0.5F}}));
  EXPECT_EQ(biases(R"({"97": 2, "bc": false})"), (Biases{{97, 2.0F}, {'b', -100.0F}, {'c', -100.0F}}));
  EXPECT_EQ(biases(R"({"99999999999999999999": 2, "": 3})"), (Biases{{'9', 2.0F}}));  // no numbers of a token
  for (const char* value :
       {"3", "[97]", "[[97]]", "[[258, 1]]", R"([[97, "x"]])", "[[97, true]]", R"({"-1": 1})"})
    EXPECT_THAT(llama_error(format_text("\"logit_bias\": {}", value)).param, StartsWith("logit_bias"))
        << value;
  EXPECT_THAT(llama_error("\"logit_bias\": [[\"" + std::string(5000, 'a') + "\", 1]]").what(),
              HasSubstr("more than 1024"));
}

TEST(LlamaTokenizeTest, HasTheFieldsOfLlamaCpp) {
  const auto tokens = [](const char* body) {
    return to_line(tokenize_body(parse_body(body), test::served_model(), {}));
  };
  EXPECT_EQ(tokens(R"({"content": "ab"})"), R"({"tokens":[97,98]})");
  EXPECT_EQ(tokens(R"({"content": "a<|end|>", "add_special": true})"), R"({"tokens":[256,97,257]})");
  EXPECT_EQ(tokens(R"({"content": "<|", "parse_special": false})"), R"({"tokens":[60,124]})");
  EXPECT_EQ(tokens(R"({"content": "<|end|>", "parse_special": false})").find("257"), std::string::npos);
  EXPECT_EQ(tokens("{\"content\": \"a\xC3\xA9\", \"with_pieces\": true}"),
            R"({"tokens":[{"id":97,"piece":"a"},{"id":195,"piece":[195]},{"id":169,"piece":[169]}]})");
  EXPECT_EQ(error_of([&] { tokens(R"({"content": 3})"); }).param, "content");
}

std::vector<OrderedJson> stream(const std::string& body, const RequestOutput& whole) {
  const ServedModel model = test::served_model();
  const auto response = make_llama_response(head("cmpl-1"), parse_llama(body, model), model);
  std::string events;
  test::Player(whole).play([&](const RequestUpdate& update) { events += response->events(0, update); });
  EXPECT_EQ(response->last_events({}), "");
  return test::chunks_of(events);
}
OrderedJson whole_body(const std::string& body, const std::vector<RequestOutput>& outputs) {
  const ServedModel model = test::served_model();
  return make_llama_response(head("cmpl-1"), parse_llama(body, model), model)->body(outputs);
}

TEST(LlamaResponseTest, ABodyIsWhatItsClientsRead) {
  CompletionOutput made = output(0, "a\nb", FinishReason::kStop);
  made.stop_reason = std::string("END");
  const OrderedJson body =
      whole_body(R"({"prompt": "hi", "n_predict": 9})", {request_output("hi", {made}, 1)});
  EXPECT_EQ(body["content"], "a\nb");
  EXPECT_EQ(body["tokens"].dump(), "[]");
  EXPECT_EQ(body["stop"], true);
  EXPECT_EQ(body["stop_type"], "word");
  EXPECT_EQ(body["stopping_word"], "END");
  EXPECT_EQ(body["prompt"], "hi");
  EXPECT_EQ(body["model"], "toy");
  EXPECT_EQ(body["tokens_predicted"], 3);
  EXPECT_EQ(body["tokens_evaluated"], 2);
  EXPECT_EQ(body["tokens_cached"], 1);
  EXPECT_EQ(body["has_new_line"], true);
  EXPECT_EQ(body["truncated"], false);
  EXPECT_EQ(body["generation_settings"]["n_predict"], 9);
  EXPECT_EQ(body["timings"]["predicted_n"], 3);
  EXPECT_FALSE(body.contains("completion_probabilities"));
}

TEST(LlamaResponseTest, SaysWhyATextHasEnded) {
  const auto ended = [](FinishReason reason, int length = 1) {
    return whole_body(
        R"({"prompt": "x"})",
        {request_output("x", {output(0, std::string(static_cast<std::size_t>(length), 'a'), reason)})});
  };
  EXPECT_EQ(ended(FinishReason::kStop)["stop_type"], "eos");
  EXPECT_EQ(ended(FinishReason::kLength)["stop_type"], "limit");
  EXPECT_EQ(ended(FinishReason::kLength)["truncated"], false);
  EXPECT_EQ(ended(FinishReason::kLength, 63)["truncated"], true);  // the context of 64 is full
  EXPECT_EQ(ended(FinishReason::kAbort)["stop_type"], "none");
}

TEST(LlamaResponseTest, SeveralOutputsAreAList) {
  const OrderedJson body = whole_body(
      R"({"prompt": ["x", "y"], "n_cmpl": 2, "return_tokens": true})",
      {request_output("x", {output(0, "a", FinishReason::kStop), output(1, "b", FinishReason::kStop)}),
       request_output("y", {output(0, "c", FinishReason::kStop), output(1, "d", FinishReason::kStop)})});
  ASSERT_EQ(body.size(), 4U);
  EXPECT_EQ(body[3]["content"], "d");
  EXPECT_EQ(body[3]["index"], 3);
  EXPECT_EQ(body[3]["tokens"].dump(), "[100]");
}

TEST(LlamaResponseTest, SeveralOutputsDoNotRepeatALongGrammar) {
  const auto settings = [](const std::string& fields, std::size_t length) {
    const std::string grammar = R"(root ::= \"a\" # )" + std::string(length, 'c');
    return parse_llama(R"({"grammar": ")" + grammar + R"(", "prompt": )" + fields + "}").settings;
  };
  EXPECT_GT(settings(R"("x")", 2000)["grammar"].get<std::string>().size(), 2000U);
  EXPECT_TRUE(settings(R"(["x", "y"])", 2000)["grammar"].is_null());
  EXPECT_TRUE(settings(R"("x", "n_cmpl": 2)", 2000)["grammar"].is_null());
  EXPECT_TRUE(settings(R"("x", "n_cmpl": 2)", 20)["grammar"].is_string());
}

TEST(LlamaResponseTest, AStreamEndsWithAnEventOfItsOwn) {
  const auto chunks = stream(R"({"prompt": "hi", "stream": true, "n_probs": 1})",
                             request_output("hi", {output(0, "ok", FinishReason::kLength, true)}));
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0]["content"], "o");
  EXPECT_EQ(chunks[0]["stop"], false);
  EXPECT_EQ(chunks[0]["tokens"].dump(), "[111]");
  EXPECT_FALSE(chunks[0].contains("timings"));
  EXPECT_EQ(
      chunks[1]["completion_probabilities"].dump(),
      R"([{"token":"k","logprob":-1.5,"bytes":[107],"top_logprobs":[{"token":"k","logprob":-1.5,"bytes":[107],"id":107}],"id":107}])");
  EXPECT_EQ(chunks[2]["content"], "");
  EXPECT_EQ(chunks[2]["tokens"].dump(), "[]");
  EXPECT_EQ(chunks[2]["stop"], true);
  EXPECT_EQ(chunks[2]["tokens_predicted"], 2);
  EXPECT_TRUE(chunks[2].contains("generation_settings"));
  const auto timed = stream(R"({"prompt": "hi", "stream": true, "timings_per_token": true})",
                            request_output("hi", {output(0, "ok", FinishReason::kStop)}));
  EXPECT_EQ(timed[0]["timings"]["predicted_n"], 1);
}

}  // namespace
}  // namespace quire::server
