// Beam search: its rules by hand, and its results against those of Hugging Face transformers.
#include "beams/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "quire/llm.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::submit;

constexpr TokenId kEnd = 9;

std::vector<TokenLogprob> tokens(std::initializer_list<std::pair<TokenId, float>> likely) {
  std::vector<TokenLogprob> list;
  for (const auto& [id, logprob] : likely) list.push_back({id, logprob, static_cast<int>(list.size()) + 1});
  return list;
}

void advance(BeamSearch& search, const std::vector<std::vector<TokenLogprob>>& next) { search.advance(next); }

TEST(BeamSearchRulesTest, KeepsTheMostLikelyOfAllContinuations) {
  BeamSearch search({.width = 2, .max_tokens = 9, .stop_ids = {kEnd}});
  advance(search, {tokens({{1, -1}, {2, -2}, {3, -2.5F}})});
  ASSERT_EQ(search.beams().size(), 2U);
  advance(search, {tokens({{4, -3}, {5, -4}, {6, -5}}), tokens({{7, -1}, {8, -1.5F}, {6, -9}})});
  ASSERT_EQ(search.beams().size(), 2U);  // both of the second beam; the first one is dropped
  EXPECT_THAT(search.beams()[0].tokens, ElementsAre(2, 7));
  EXPECT_THAT(search.beams()[1].tokens, ElementsAre(2, 8));
  EXPECT_EQ(search.beams()[0].parent, 1U);
  EXPECT_DOUBLE_EQ(search.beams()[1].logprob, -3.5);
}

TEST(BeamSearchRulesTest, OnlyTheBestCandidatesOfARoundEndATextAndTheOthersGoOn) {
  BeamSearch search({.width = 2, .max_tokens = 9, .stop_ids = {kEnd}});
  advance(search, {tokens({{1, -1}, {2, -2}, {kEnd, -3}})});  // the third: not among the best two
  advance(search, {tokens({{kEnd, -1}, {3, -2}, {4, -3}}), tokens({{5, -2.5F}, {6, -4}, {kEnd, -5}})});
  const auto found = search.best();
  EXPECT_THAT(found.front().tokens, ElementsAre(1, kEnd));
  EXPECT_EQ(found.front().finish, FinishReason::kStop);
  EXPECT_DOUBLE_EQ(found.front().score, -2.0 / 2);
  ASSERT_EQ(search.beams().size(), 2U);
  EXPECT_THAT(search.beams()[0].tokens, ElementsAre(1, 3));
  EXPECT_THAT(search.beams()[1].tokens, ElementsAre(1, 4));
}

TEST(BeamSearchRulesTest, LengthPenaltyDecidesBetweenShortAndLong) {
  for (const double penalty : {0.0, 2.0}) {
    BeamSearch search({.width = 2,
                       .length_penalty = penalty,
                       .early_stopping = EarlyStopping::kNever,
                       .max_tokens = 3,
                       .stop_ids = {kEnd}});
    advance(search, {tokens({{kEnd, -1}, {1, -1.1F}, {2, -8}})});
    advance(search, {tokens({{1, -0.5F}, {3, -6}, {kEnd, -9}}), tokens({{1, -1}, {2, -2}, {3, -3}})});
    advance(search, {tokens({{1, -0.5F}, {3, -7}, {kEnd, -9}}), tokens({{1, -7}, {2, -8}, {3, -9}})});
    EXPECT_TRUE(search.beams().empty());
    const auto found = search.best();
    EXPECT_EQ(found.front().tokens.size(), penalty == 0 ? 1U : 3U);
    EXPECT_EQ(found.front().finish, penalty == 0 ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_FLOAT_EQ(static_cast<float>(found.front().score), penalty == 0 ? -1.0F : -2.1F / 9);
  }
}

// With two finished texts of score -1, and a beam of -2.1 / 2 now and of -2.1 / 8 at best.
TEST(BeamSearchRulesTest, EarlyStoppingDecidesWhenAFullSearchEnds) {
  for (const auto& [stopping, ends] :
       {std::pair(EarlyStopping::kYes, true), std::pair(EarlyStopping::kNo, true),
        std::pair(EarlyStopping::kNever, false)}) {
    BeamSearch search({.width = 2, .early_stopping = stopping, .max_tokens = 8, .stop_ids = {kEnd}});
    advance(search, {tokens({{kEnd, -1}, {1, -1.5F}, {2, -1.6F}})});
    EXPECT_EQ(search.beams().size(), 2U);
    advance(search, {tokens({{kEnd, -0.5F}, {3, -0.6F}, {4, -9}}), tokens({{5, -8}, {6, -8}, {7, -8}})});
    EXPECT_EQ(search.beams().empty(), ends);
  }
}

TEST(BeamSearchRulesTest, NothingEndsBeforeMinTokensAndWhatIsImpossibleIsNotTaken) {
  BeamSearch search({.width = 2, .max_tokens = 9, .min_tokens = 1, .stop_ids = {kEnd}});
  advance(search, {tokens({{kEnd, -1}, {1, -2}, {2, -INFINITY}})});
  ASSERT_EQ(search.beams().size(), 1U);
  EXPECT_THAT(search.beams()[0].tokens, ElementsAre(1));
  advance(search, {tokens({{kEnd, -1}, {1, -2}, {2, -3}})});
  EXPECT_EQ(search.best().front().finish, FinishReason::kStop);
}

TEST(BeamSearchRulesTest, WhatIsUnfinishedIsThereBeforeTheEnd) {
  BeamSearch search({.width = 2, .max_tokens = 9, .stop_ids = {kEnd}});
  EXPECT_TRUE(search.best().empty());
  advance(search, {tokens({{kEnd, -1}, {1, -2}, {2, -3}})});
  const auto found = search.best();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[1].finish, FinishReason::kNone);
}

// A case of beams.json: what transformers found.
struct Case {
  EngineRequest request;
  std::vector<std::vector<TokenId>> texts;
  std::vector<double> scores;
};

std::vector<Case> golden_cases(const std::string& model) {
  std::vector<Case> cases;
  for (const auto& entry :
       nlohmann::json::parse(std::ifstream(testing::golden_directory(model) / "beams.json"))) {
    Case& one = cases.emplace_back();
    one.request.prompt =
        testing::golden_ids(model, "prompt." + std::to_string(entry.at("prompt").get<int>()));
    SamplingParams& params = one.request.params;
    params.beam_width = entry.at("beam_width").get<int>();
    params.n = entry.at("n").get<int>();
    params.length_penalty = entry.at("length_penalty").get<float>();
    const std::string stopping = entry.at("early_stopping").get<std::string>();
    params.early_stopping = stopping == "true"    ? EarlyStopping::kYes
                            : stopping == "never" ? EarlyStopping::kNever
                                                  : EarlyStopping::kNo;
    params.max_tokens = entry.at("max_tokens").get<int>();
    params.stop_token_ids = entry.at("stop_token_ids").get<std::vector<TokenId>>();
    params.ignore_eos = true;
    one.texts = entry.at("texts").get<std::vector<std::vector<TokenId>>>();
    one.scores = entry.at("scores").get<std::vector<double>>();
  }
  return cases;
}

void expect_that_of_transformers(const RequestOutput& output, const Case& expected) {
  ASSERT_EQ(output.outputs.size(), expected.texts.size());
  for (std::size_t i = 0; i < expected.texts.size(); ++i) {
    const CompletionOutput& found = output.outputs[i];
    EXPECT_EQ(found.index, static_cast<int>(i));
    EXPECT_EQ(found.token_ids, expected.texts[i]);
    EXPECT_NEAR(found.score.value_or(0), expected.scores[i], 1e-4 * std::abs(expected.scores[i]));
    const auto& stops = expected.request.params.stop_token_ids;
    const bool stopped = std::count(stops.begin(), stops.end(), found.token_ids.back()) > 0;
    EXPECT_EQ(found.finish_reason, stopped ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(std::holds_alternative<TokenId>(found.stop_reason), stopped);
  }
}

void expect_all_blocks_free(const Engine& engine) {
  const SchedulerStats stats = engine.stats().scheduler;
  EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
  EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
}

EngineRequest plain_request(const std::string& model, int prompt) {
  EngineRequest request;
  request.prompt = testing::golden_ids(model, "prompt." + std::to_string(prompt));
  request.params.temperature = 0;
  request.params.max_tokens = 24;
  request.params.ignore_eos = true;
  return request;
}

class BeamSearchTest : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  std::string model() const { return std::get<0>(GetParam()); }
  EngineConfig config() const {
    EngineConfig config = testing::golden_config(model());
    config.enable_prefix_caching = std::get<1>(GetParam());
    return config;
  }
};

TEST_P(BeamSearchTest, EqualsTransformersAmongOtherRequests) {
  Engine engine(config());
  const std::vector<Case> cases = golden_cases(model());
  ASSERT_GE(cases.size(), 20U);
  std::vector<std::future<RequestOutput>> searches, others;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    searches.push_back(submit(engine, cases[i].request));
    if (i % 4 == 0) others.push_back(submit(engine, plain_request(model(), static_cast<int>(i / 4 % 3))));
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    expect_that_of_transformers(searches[i].get(), cases[i]);
  }
  for (std::size_t i = 0; i < others.size(); ++i)
    EXPECT_EQ(others[i].get().outputs[0].token_ids,
              testing::golden_ids(model(), "greedy." + std::to_string(i % 3)));
  expect_all_blocks_free(engine);
}

TEST_P(BeamSearchTest, OfWidthOneIsGreedy) {
  LLM llm(config());
  SamplingParams params = plain_request(model(), 0).params;
  params.beam_width = 1;
  for (int i = 0; i < 3; ++i) {
    const Prompt prompt = testing::golden_ids(model(), "prompt." + std::to_string(i));
    EXPECT_EQ(llm.generate({prompt}, params).front().outputs[0].token_ids,
              testing::golden_ids(model(), "greedy." + std::to_string(i)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, BeamSearchTest, ::testing::Combine(::testing::Values("qwen3", "qwen3-untied"), ::testing::Bool()),
    [](const auto& test) {
      return testing::test_name({std::get<0>(test.param), std::get<1>(test.param) ? "cached" : "uncached"});
    });

TEST(BeamRequestTest, PreemptedBeamsFindTheSameTexts) {
  for (const bool caching : {false, true}) {
    EngineConfig config = testing::golden_config("qwen3");
    config.enable_prefix_caching = caching;
    config.block_size = 8;
    config.max_num_batched_tokens = 13;
    const std::size_t block_bytes = std::size_t{2} * 3 * 2 * 8 * 32 * sizeof(float);
    config.kv_cache_memory = 22 * block_bytes;  // one beam of the longest prompt
    Engine engine(config);
    const std::vector<Case> cases = golden_cases("qwen3");
    std::vector<EngineRequest> requests;
    for (const Case& one : cases) requests.push_back(one.request);
    std::vector<std::future<RequestOutput>> searches = submit(engine, std::move(requests));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(i);
      expect_that_of_transformers(searches[i].get(), cases[i]);
    }
    EXPECT_GT(engine.stats().scheduler.num_preemptions, 10U);
    expect_all_blocks_free(engine);
  }
}

TEST(BeamRequestTest, AnAbortEndsAllOutputsWithWhatTheyHave) {
  Engine engine(testing::golden_config("qwen3"));
  std::promise<RequestOutput> done;
  EngineRequest request = plain_request("qwen3", 0);
  request.params.beam_width = 4;
  request.params.n = 3;
  request.params.max_tokens = 900;
  request.on_update = [&](const RequestUpdate& update) {
    if (update.finished) done.set_value(update.request);
  };
  const RequestId id = engine.submit(std::move(request));
  while (engine.stats().decode_tokens < 20) std::this_thread::yield();
  engine.abort(id);
  const RequestOutput output = done.get_future().get();
  ASSERT_EQ(output.outputs.size(), 3U);
  for (const CompletionOutput& one : output.outputs) {
    EXPECT_EQ(one.finish_reason, FinishReason::kAbort);
    EXPECT_GE(one.token_ids.size(), 4U);
  }
  submit(engine, plain_request("qwen3", 0)).wait();
  expect_all_blocks_free(engine);
}

TEST(BeamRequestTest, AFaultThatComesAgainEndsItsSearchAndTheNextOneIsWell) {
  for (const EngineStage stage : {EngineStage::kSchedule, EngineStage::kSubmit, EngineStage::kCollect}) {
    EngineConfig config = testing::golden_config("qwen3");
    int visits = 0;
    EngineHooks hooks;
    hooks.fault = [&](EngineStage at, SequenceId) {
      if (at != stage) return;
      const int last = stage == EngineStage::kSchedule ? 9 : 10;  // a lost step is tried again
      if (++visits >= 9 && visits <= last) throw std::runtime_error("injected");
    };
    Engine engine(config, open_model(config.model), hooks);
    const Case one = golden_cases("qwen3")[1];
    EXPECT_EQ(submit(engine, one.request).get().outputs[0].error, "injected");
    expect_that_of_transformers(submit(engine, one.request).get(), one);
    expect_all_blocks_free(engine);
  }
}

TEST(BeamRequestTest, ASearchEndsWhereTheContextDoes) {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_model_len = 50;
  LLM llm(config);
  SamplingParams params = plain_request("qwen3", 1).params;
  params.beam_width = 3;
  const auto output = llm.generate({testing::golden_ids("qwen3", "prompt.1")}, params).front().outputs.at(0);
  EXPECT_EQ(output.token_ids.size(), 10U);
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
}

TEST(BeamRequestTest, HasTextAndItsLogProbability) {
  LLM llm{EngineConfig{}};
  SamplingParams params = llm.default_sampling_params();
  params.beam_width = 4;
  params.n = 4;
  params.max_tokens = 12;
  const auto outputs = llm.generate({"The KV cache"}, params).front().outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const CompletionOutput& output = outputs[i];
    EXPECT_NEAR(*output.score, *output.cumulative_logprob / static_cast<double>(output.token_ids.size()),
                1e-9);
    EXPECT_EQ(output.text, llm.decode(output.token_ids));
    EXPECT_LE(*output.score, *outputs[i > 0 ? i - 1 : 0].score);
  }
}

TEST(BeamRequestTest, RefusesWhatASearchCannotDo) {
  EngineConfig config = testing::golden_config("qwen3");
  LLM llm(config);
  const auto error_of = [&](const std::function<void(SamplingParams&)>& change) {
    SamplingParams params = plain_request("qwen3", 0).params;
    params.beam_width = 4;
    change(params);
    try {
      const auto output = llm.generate({std::vector<TokenId>{1, 2, 3}}, params).front().outputs.front();
      return output.error;
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of([](SamplingParams& p) { p.n = 4; }), "");
  EXPECT_THAT(error_of([](SamplingParams& p) { p.n = 5; }), HasSubstr("at most beam_width, 4"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.beam_width = 0; }), HasSubstr("beam_width is 0"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.beam_width = 9; }), HasSubstr("at most max-num-seqs, 8"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.beam_width = 21; }),
              HasSubstr("a max-logprobs of 21, not 20"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.length_penalty = NAN; }),
              HasSubstr("length_penalty is nan"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.stop = {"x"}; }), HasSubstr("beam_width and stop exclude"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.best_of = 4; }), HasSubstr("beam_width and best_of"));
  EXPECT_THAT(error_of([](SamplingParams& p) { p.logprobs = 1; }), HasSubstr("beam_width and logprobs"));
}

}  // namespace
}  // namespace quire
