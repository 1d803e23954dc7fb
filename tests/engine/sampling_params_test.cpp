// What a request may ask of sampling, and what it gets: compared with definitions written out in doubles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/sampling_context.h"
#include "engine/sampling_oracle.h"
#include "engine/submit.h"
#include "expect_error.h"
#include "quire/llm.h"

namespace quire {
namespace {

using testing::plain_choice;
using testing::SamplingRig;
using testing::tokens_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kPlenty = 64;  // blocks
constexpr int kScarce = 6;

SequenceRequest make_request(SequenceId id, int max_tokens = 60) {
  SequenceRequest request;
  request.id = id;
  request.prompt = testing::golden_ids("qwen3", "prompt.0");
  request.max_tokens = max_tokens;
  return request;
}

// Every token is the one that the definition takes after those before it.
void expect_plain_choices(SamplingRig& rig, const SequenceRequest& request,
                          const std::vector<TokenId>& output) {
  std::vector<TokenId> text = request.prompt;
  text.insert(text.end(), output.begin(), output.end());
  const auto logits = rig.logits(text);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const std::vector<TokenId> before(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(i));
    ASSERT_EQ(output[i], plain_choice(logits[request.prompt.size() - 1 + i], request, before))
        << "token " << i;
  }
}

class SamplingParamsTest : public ::testing::TestWithParam<int> {  // steps in flight
 protected:
  // Runs the request beside two without parameters, and again where blocks are so few that sequences wait for
  // each other and start anew.
  void expect_as_defined(const SequenceRequest& request) {
    for (const int num_blocks : {kPlenty, kScarce}) {
      SamplingRig rig(num_blocks);
      const std::vector<SequenceRequest> all = {make_request(1), make_request(2), request};
      const auto updates = rig.run(all, GetParam());
      for (const SequenceRequest& one : all) {
        SCOPED_TRACE("sequence " + std::to_string(one.id) + ", blocks " + std::to_string(num_blocks));
        expect_plain_choices(rig, one, tokens_of(updates.at(one.id)));
      }
      if (num_blocks == kScarce) {
        EXPECT_GT(rig.num_preemptions(), 0U);
      }
    }
  }

  static std::vector<TokenId> unconstrained() {
    SamplingRig rig(kPlenty);
    return tokens_of(rig.run({make_request(30)}, 1).at(30));
  }
};

TEST_P(SamplingParamsTest, PenaltiesAreAsDefined) {
  for (const auto& [presence, frequency, repetition] : {std::tuple{1.5F, 0.0F, 1.0F},
                                                        {0.0F, 0.7F, 1.0F},
                                                        {0.0F, 0.0F, 1.3F},
                                                        {-2.0F, -0.5F, 0.8F},
                                                        {0.5F, 1.0F, 1.1F}}) {
    SequenceRequest request = make_request(30);
    request.sampling.presence_penalty = presence;
    request.sampling.frequency_penalty = frequency;
    request.sampling.repetition_penalty = repetition;
    expect_as_defined(request);
  }
}

TEST_P(SamplingParamsTest, BiasesAndAllowedTokensAreAsDefined) {
  const std::vector<TokenId> free = unconstrained();
  SequenceRequest request = make_request(30);
  request.sampling.biases = {{free[0], -100}, {free[3], 1.5F}, {7, 2.5F}};
  expect_as_defined(request);
  request.sampling.allowed_ids = {3, 17, free[1], 300, 511, free[5]};
  expect_as_defined(request);
  request.sampling.presence_penalty = 2;
  request.sampling.repetition_penalty = 1.2F;
  expect_as_defined(request);
}

TEST_P(SamplingParamsTest, BadWordsAreNeverCompleted) {
  const std::vector<TokenId> free = unconstrained();
  SequenceRequest request = make_request(30);
  request.sampling.bad_words = {{free[2], free[3], free[4]}, {free[9]}, {free[6], free[7]}};
  expect_as_defined(request);
  // A word of one token twice: known only when the token before it is.
  request.sampling.biases = {{5, 100}};
  request.sampling.bad_words = {{5, 5}, {8, 5, 8}};
  expect_as_defined(request);
}

TEST_P(SamplingParamsTest, BeforeMinTokensNoStopIsSampled) {
  const std::vector<TokenId> free = unconstrained();
  SequenceRequest request = make_request(30);
  request.sampling.stop_ids = {free[1], free[4]};
  request.min_tokens = 10;
  request.sampling.frequency_penalty = 0.1F;
  expect_as_defined(request);
}

TEST_P(SamplingParamsTest, ASequenceThatRulesOutEveryTokenEndsAndIsNotCorrupted) {
  SequenceRequest all = make_request(30), after_two = make_request(31), before_min = make_request(32);
  all.sampling.allowed_ids = {5, 6};
  all.sampling.bad_words = {{5}, {6}, {9, 5}};
  after_two.sampling.allowed_ids = {5};
  after_two.sampling.bad_words = {{5, 5, 5}, {7}};
  after_two.sampling.num_logprobs = 2;
  before_min.sampling.allowed_ids = {5, 6};
  before_min.sampling.bad_words = {{6}, {5, 5}};
  before_min.sampling.biases = {{6, 100}};
  before_min.sampling.stop_ids = {6, 5};
  before_min.min_tokens = 3;
  for (const float temperature : {0.0F, 1.0F}) {
    for (SequenceRequest* request : {&all, &after_two, &before_min})
      request->sampling.temperature = temperature;
    SamplingRig rig(kPlenty);
    const auto updates = rig.run({make_request(1), all, after_two, before_min, make_request(2)}, GetParam());
    for (const auto& [id, output] :
         {std::pair<SequenceId, std::vector<TokenId>>{30, {}}, {31, {5, 5}}, {32, {}}}) {
      EXPECT_EQ(tokens_of(updates.at(id)), output) << id;
      EXPECT_EQ(updates.at(id).back().finish, FinishReason::kError) << id;
      EXPECT_TRUE(updates.at(id).back().none_left) << id;
    }
    EXPECT_EQ(rig.num_invalid_logits(), 0U);
    for (const SequenceId id : {1, 2}) expect_plain_choices(rig, make_request(id), tokens_of(updates.at(id)));
  }
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SamplingParamsTest, ::testing::Values(1, 2));

TEST(SamplingStateTest, ReadsExtremeValuesAsVllmDoes) {
  const std::vector<TokenId> eos = {7, 7};
  const SamplingContext context{.vocab_size = 100, .max_logprobs = 0, .eos_token_ids = eos};
  SamplingParams params;
  params.temperature = 1e-6F;
  params.top_k = -1;
  params.logit_bias = {{3, 250.0F}, {4, -kInfinity}, {5, 1.5F}};
  SamplingState state = make_sampling_state(params, context, 9);
  EXPECT_EQ(state.temperature, 0);
  EXPECT_EQ(state.top_k, 0);
  EXPECT_EQ(state.seed, 9U);
  ASSERT_EQ(state.biases.size(), 3U);
  EXPECT_EQ(state.biases[0].value, 100);
  EXPECT_EQ(state.biases[1].value, -100);
  EXPECT_EQ(state.biases[2].value, 1.5F);
  EXPECT_EQ(state.stop_ids, std::vector<TokenId>{7});
  EXPECT_FALSE(state.needs_history());
  params.temperature = 0.005F;
  params.ignore_eos = true;
  state = make_sampling_state(params, context, 9);
  EXPECT_EQ(state.temperature, 0.01F);
  EXPECT_TRUE(state.stop_ids.empty());
}

TEST(SamplingStateTest, AllOrNamedTokensAreReported) {
  const SamplingContext context{.vocab_size = 100, .max_logprobs = 100};
  SamplingParams params;
  params.logprobs = params.prompt_logprobs = -1;
  SamplingState state = make_sampling_state(params, context, 9);
  EXPECT_EQ(state.num_logprobs, 100);
  EXPECT_EQ(state.num_prompt_logprobs, 100);
  params.logprob_token_ids = {5, 3, 5};
  state = make_sampling_state(params, context, 9);
  EXPECT_EQ(state.logprob_ids, (std::vector<TokenId>{5, 3}));
  EXPECT_EQ(state.num_logprobs, 2);
  params.logprobs.reset();
  EXPECT_THROW(validate(params, context), Error);
}

TEST(SamplingStateTest, ABadWordIsSpelledAtTheBeginningAndAfterASpace) {
  const Tokenizer tokenizer = Tokenizer::from_file(QUIRE_SOURCE_DIR "/models/toy/tokenizer.json");
  const SamplingContext context{
      .vocab_size = tokenizer.vocab_size(), .max_logprobs = 0, .tokenizer = &tokenizer};
  SamplingParams params;
  params.bad_words = {" smallest"};
  const auto words = make_sampling_state(params, context, 0).bad_words;
  const auto bare = tokenizer.encode("smallest", false);
  const auto spaced = tokenizer.encode(" smallest", false);
  EXPECT_NE(bare.size(), spaced.size());  // so neither is found where the other one is looked for
  EXPECT_THAT(words, ::testing::ElementsAre(bare, spaced));
}

struct Edge {
  const char* parameter;  // the error begins with it
  std::function<void(SamplingParams&)> set;
  bool legal;
};

template <typename T>
Edge edge(const char* parameter, T SamplingParams::*member, std::type_identity_t<T> value, bool legal) {
  return {parameter, [=](SamplingParams& params) { params.*member = value; }, legal};
}

void expect_edges(const std::vector<Edge>& edges) {
  const SamplingContext context{.vocab_size = 100, .max_logprobs = 20};
  for (std::size_t i = 0; i < edges.size(); ++i) {
    SCOPED_TRACE("edge " + std::to_string(i) + " of " + edges[i].parameter);
    SamplingParams params;
    edges[i].set(params);
    if (edges[i].legal) {
      EXPECT_NO_THROW(validate(params, context));
    } else {
      expect_error([&] { validate(params, context); }, {edges[i].parameter});
    }
  }
}

TEST(SamplingEdgesTest, NumbersBeyondTheirRangeAreRefusedByName) {
  using P = SamplingParams;
  std::vector<Edge> edges;
  const auto range = [&](const char* name, float P::*member, float min, float max) {
    for (const float inside : {min, max, (min + max) / 2}) edges.push_back(edge(name, member, inside, true));
    for (const float outside :
         {std::nextafter(min, -kInfinity), std::nextafter(max, kInfinity), kNan, kInfinity, -kInfinity}) {
      edges.push_back(edge(name, member, outside, false));
    }
  };
  range("temperature", &P::temperature, 0, 1e4F);
  range("min_p", &P::min_p, 0, 1);
  range("top_p", &P::top_p, std::numeric_limits<float>::denorm_min(), 1);
  range("presence_penalty", &P::presence_penalty, -2, 2);
  range("frequency_penalty", &P::frequency_penalty, -2, 2);
  range("repetition_penalty", &P::repetition_penalty, 1e-4F, 1e4F);
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const int legal : {-1, 0, 1, kMost}) edges.push_back(edge("top_k", &P::top_k, legal, true));
  edges.push_back(edge("top_k", &P::top_k, -2, false));
  for (const int legal : {0, 1, 20}) {
    edges.push_back(edge("logprobs", &P::logprobs, legal, true));
    edges.push_back(edge("prompt_logprobs", &P::prompt_logprobs, legal, true));
  }
  for (const int wrong : {-1, 21}) {
    edges.push_back(edge("logprobs", &P::logprobs, wrong, false));
    edges.push_back(edge("prompt_logprobs", &P::prompt_logprobs, wrong, false));
  }
  for (const int few : {0, -1}) edges.push_back(edge("max_tokens", &P::max_tokens, few, false));
  for (const int legal : {1, kMost}) edges.push_back(edge("max_tokens", &P::max_tokens, legal, true));
  for (const int legal : {0, 16}) edges.push_back(edge("min_tokens", &P::min_tokens, legal, true));
  for (const int wrong : {-1, 17}) edges.push_back(edge("min_tokens", &P::min_tokens, wrong, false));
  edges.push_back({"max_tokens",
                   [](P& params) {
                     params.max_tokens = 0;
                     params.prompt_logprobs = 0;
                   },
                   true});
  expect_edges(edges);
}

TEST(SamplingEdgesTest, ListsBeyondTheirLimitsAreRefusedByName) {
  using P = SamplingParams;
  using Ids = std::vector<std::int32_t>;
  std::map<std::int32_t, float> many;
  for (int i = 0; i < 1025; ++i) many[i] = 1;
  expect_edges({edge("stop", &P::stop, std::vector<std::string>(16, std::string(256, 'x')), true),
                edge("stop", &P::stop, std::vector<std::string>(17, "x"), false),
                edge("stop", &P::stop, {""}, false), edge("stop", &P::stop, {std::string(257, 'x')}, false),
                edge("stop_token_ids", &P::stop_token_ids, Ids(128, 99), true),
                edge("stop_token_ids", &P::stop_token_ids, Ids(129, 99), false),
                edge("stop_token_ids", &P::stop_token_ids, {100}, false),
                edge("stop_token_ids", &P::stop_token_ids, {-1}, false),
                edge("allowed_token_ids", &P::allowed_token_ids, {0, 99}, true),
                edge("allowed_token_ids", &P::allowed_token_ids, {100}, false),
                edge("allowed_token_ids", &P::allowed_token_ids, {-1}, false),
                edge("allowed_token_ids", &P::allowed_token_ids, Ids(101, 1), false),
                edge("logit_bias", &P::logit_bias, {{0, -100.0F}, {99, kInfinity}}, true),
                edge("logit_bias", &P::logit_bias, {{100, 1.0F}}, false),
                edge("logit_bias", &P::logit_bias, {{-1, 1.0F}}, false),
                edge("logit_bias", &P::logit_bias, {{1, kNan}}, false),
                edge("logit_bias", &P::logit_bias, many, false),
                edge("bad_words", &P::bad_words, {"x"}, false)});  // there is no tokenizer
}

TEST(SamplingEdgesTest, TextParametersBeyondTheirRangeAreRefusedByName) {
  using P = SamplingParams;
  std::vector<Edge> edges;
  for (const int legal : {-1, 1, 1 << 30})
    edges.push_back(edge("truncate_prompt_tokens", &P::truncate_prompt_tokens, legal, true));
  for (const int wrong : {0, -2})
    edges.push_back(edge("truncate_prompt_tokens", &P::truncate_prompt_tokens, wrong, false));
  edges.push_back(edge("detokenize", &P::detokenize, false, true));
  edges.push_back({"stop",
                   [](P& params) {
                     params.detokenize = false;
                     params.stop = {"x"};
                   },
                   false});
  expect_edges(edges);
}

TEST(SamplingEdgesTest, ParametersThatLeaveNoFirstTokenAreRefusedByName) {
  const Tokenizer tokenizer = Tokenizer::from_file(QUIRE_SOURCE_DIR "/models/toy/tokenizer.json");
  const std::vector<TokenId> eos = {7};
  const SamplingContext context{
      .vocab_size = tokenizer.vocab_size(), .max_logprobs = 0, .eos_token_ids = eos, .tokenizer = &tokenizer};
  const TokenId bare = tokenizer.encode("a", false).at(0), spaced = tokenizer.encode(" a", false).at(0);
  SamplingParams params;
  const auto refused_for = [&](const char* names) {
    expect_error([&] { validate(params, context); }, {std::string(names) + " leave no token"});
  };
  params.bad_words = {"a", "aa ab"};
  params.allowed_token_ids = {bare, spaced, bare};
  refused_for("allowed_token_ids and bad_words");
  params.allowed_token_ids.push_back(7);
  EXPECT_NO_THROW(validate(params, context));
  params.min_tokens = 1;
  refused_for("allowed_token_ids and bad_words and min_tokens");
  params.ignore_eos = true;
  EXPECT_NO_THROW(validate(params, context));
  params.stop_token_ids = {9, 7};
  refused_for("allowed_token_ids and bad_words and min_tokens");
  params.bad_words.clear();
  EXPECT_NO_THROW(validate(params, context));
  params.allowed_token_ids = {9};
  refused_for("allowed_token_ids and min_tokens");
  params.min_tokens = 0;
  EXPECT_NO_THROW(validate(params, context));
  // Of a vocabulary so small, all of it.
  const SamplingContext small{.vocab_size = 2, .max_logprobs = 0, .eos_token_ids = {}};
  params = {};
  params.stop_token_ids = {0, 1};
  EXPECT_NO_THROW(validate(params, small));
  params.min_tokens = 1;
  expect_error([&] { validate(params, small); }, {"min_tokens leave no token"});
}

TEST(SamplingStateTest, ATruncatedPromptKeepsItsEnd) {
  const auto truncated = [](std::optional<int> kept, int max_tokens) {
    SamplingParams params;
    params.truncate_prompt_tokens = kept;
    params.max_tokens = max_tokens;
    std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
    truncate_prompt(prompt, params, 10);
    return prompt;
  };
  EXPECT_EQ(truncated({}, 4).size(), 8U);
  EXPECT_EQ(truncated(3, 4), (std::vector<TokenId>{6, 7, 8}));
  EXPECT_EQ(truncated(8, 4).size(), 8U);
  EXPECT_EQ(truncated(9, 4).size(), 8U);
  EXPECT_EQ(truncated(-1, 4), (std::vector<TokenId>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(truncated(-1, 2).size(), 8U);
  EXPECT_EQ(truncated(-1, 0).size(), 8U);
  EXPECT_EQ(truncated(-1, 1000), std::vector<TokenId>{8}) << "one is left, whatever max_tokens asks for";
}

// The bundled model: a text with tokens of its own, a chat's end, and what may be said about them.
class OutputTextTest : public ::testing::Test {
 protected:
  SamplingParams greedy() const {
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = 40;
    return params;
  }
  CompletionOutput run(const SamplingParams& params) {
    const auto prompt = llm_.apply_chat_template({{"user", "What is a KV cache?"}});
    return llm_.generate({prompt}, params).front().outputs.front();
  }

  LLM llm_{[] {
    EngineConfig config = testing::golden_config("qwen3");
    config.model.clear();
    return config;
  }()};
};

TEST_F(OutputTextTest, AStopStringMayStay) {
  SamplingParams params = greedy();
  const std::string whole = run(params).text;
  ASSERT_GT(whole.size(), 40U);
  for (const std::size_t begin : {9U, 14U, 23U}) {
    const std::string stop = whole.substr(begin, 5);
    params.stop = {stop};
    params.include_stop_str_in_output = false;
    const std::size_t at = whole.find(stop);
    EXPECT_EQ(run(params).text, whole.substr(0, at));
    params.include_stop_str_in_output = true;
    const CompletionOutput output = run(params);
    EXPECT_EQ(output.text, whole.substr(0, at + stop.size()));
    EXPECT_EQ(output.finish_reason, FinishReason::kStop);
  }
}

TEST_F(OutputTextTest, TheTextOfAStopTokenMayStay) {
  SamplingParams params = greedy();
  const CompletionOutput whole = run(params);
  params.stop_token_ids = {whole.token_ids[5]};
  const CompletionOutput without = run(params);
  params.include_stop_str_in_output = true;
  const CompletionOutput with = run(params);
  EXPECT_EQ(with.token_ids, without.token_ids);
  EXPECT_EQ(with.text, llm_.decode(with.token_ids));
  EXPECT_EQ(without.text, llm_.decode(std::span(with.token_ids).first(with.token_ids.size() - 1)));
}

TEST_F(OutputTextTest, WithoutDetokenizingThereAreTokensAlone) {
  SamplingParams params = greedy();
  const auto tokens = run(params).token_ids;
  params.detokenize = false;
  EXPECT_EQ(run(params).token_ids, tokens);
  EXPECT_EQ(run(params).text, "");
}

TEST_F(OutputTextTest, ABadWordIsNotInTheText) {
  SamplingParams params = greedy();
  const std::string whole = run(params).text;
  ASSERT_NE(whole.find(" cache"), std::string::npos) << whole;
  params.bad_words = {"cache"};
  EXPECT_EQ(run(params).text.find(" cache"), std::string::npos);
}

TEST_F(OutputTextTest, OnlyTheEndOfATruncatedPromptIsUsed) {
  SamplingParams params = greedy();
  const std::vector<TokenId> prompt =
      llm_.encode("The KV cache holds what was computed before. Once there was");
  params.truncate_prompt_tokens = 4;
  const RequestOutput truncated = llm_.generate({prompt}, params).front();
  const std::vector<TokenId> end(prompt.end() - 4, prompt.end());
  EXPECT_EQ(truncated.prompt_token_ids, end);
  params.truncate_prompt_tokens.reset();
  EXPECT_EQ(truncated.outputs[0].token_ids, llm_.generate({end}, params).front().outputs[0].token_ids);
}

TEST(SamplingEdgesTest, BadWordsThatAreNoneAreRefused) {
  const Tokenizer tokenizer = Tokenizer::from_file(QUIRE_SOURCE_DIR "/models/toy/tokenizer.json");
  const SamplingContext context{
      .vocab_size = tokenizer.vocab_size(), .max_logprobs = 0, .tokenizer = &tokenizer};
  SamplingParams params;
  params.bad_words = std::vector<std::string>(256, std::string(256, 'x'));
  EXPECT_NO_THROW(validate(params, context));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{""}, {" \n"}, {std::string(257, 'x')}, std::vector<std::string>(257, "x")}) {
    params.bad_words = wrong;
    expect_error([&] { validate(params, context); }, {"bad_words"});
  }
}

// A tokenizer may have tokens that the model has not.
TEST(SamplingEdgesTest, AnEndOfThinkingThatTheModelCannotSayIsRefused) {
  const Tokenizer tokenizer = Tokenizer::from_file(QUIRE_SOURCE_DIR "/models/toy/tokenizer.json");
  SamplingContext context{.vocab_size = tokenizer.vocab_size(), .max_logprobs = 0, .tokenizer = &tokenizer};
  SamplingParams params;
  params.thinking_budget = {.max_tokens = 1, .end = "</think>"};
  EXPECT_NO_THROW(validate(params, context));
  context.vocab_size = std::ranges::max(tokenizer.encode("</think>", false));
  expect_error([&] { validate(params, context); }, {"thinking_token_budget", "</think>"});
}

}  // namespace
}  // namespace quire
