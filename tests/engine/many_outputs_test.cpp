// Several outputs of one prompt: computed once, and each the same as if it were asked for alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "quire/llm.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using testing::submit;

SamplingParams random_params(int n, int max_tokens) {
  SamplingParams params;
  params.n = n;
  params.temperature = 1.5F;
  params.seed = 7;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

std::vector<TokenId> long_prompt(int num_tokens) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < num_tokens; ++i) prompt.push_back((i * 37 + i * i % 11) % 512);
  return prompt;
}

void expect_those_of_single_requests(LLM& llm, LLM& alone, const std::vector<TokenId>& prompt, int n) {
  const SamplingParams params = random_params(n, 20);
  const RequestOutput request = llm.generate({prompt}, params).front();
  ASSERT_EQ(request.outputs.size(), static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    SamplingParams single = params;
    single.n = 1;
    *single.seed += static_cast<std::uint64_t>(i);
    const CompletionOutput& output = request.outputs[static_cast<std::size_t>(i)];
    EXPECT_EQ(output.index, i);
    EXPECT_EQ(output.finish_reason, FinishReason::kLength);
    EXPECT_EQ(output.token_ids, alone.generate({prompt}, single).front().outputs.front().token_ids);
  }
  EXPECT_NE(request.outputs[0].token_ids, request.outputs[1].token_ids);
}

class ManyOutputsTest : public ::testing::TestWithParam<bool> {};

// Prompts that end inside a block, with one, and with the first token of one.
TEST_P(ManyOutputsTest, EachOutputIsThatOfASingleRequestWithItsSeed) {
  EngineConfig config = testing::golden_config("qwen3");
  LLM alone(config);
  config.enable_prefix_caching = GetParam();
  LLM llm(config);
  for (const int num_tokens : {1, 15, 16, 17, 40, 64, 65})
    expect_those_of_single_requests(llm, alone, long_prompt(num_tokens), 5);
}

TEST_P(ManyOutputsTest, BestOfGivesTheMostLikelyOnesInOrder) {
  EngineConfig config = testing::golden_config("qwen3");
  config.enable_prefix_caching = GetParam();
  LLM llm(config);
  SamplingParams params = random_params(6, 12);
  params.logprobs = 0;
  std::vector<CompletionOutput> all = llm.generate({long_prompt(20)}, params).front().outputs;
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return *a.cumulative_logprob > *b.cumulative_logprob; });
  params.best_of = 6;
  params.n = 2;
  params.logprobs.reset();
  const std::vector<CompletionOutput> best = llm.generate({long_prompt(20)}, params).front().outputs;
  ASSERT_EQ(best.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(best[i].index, static_cast<int>(i));
    EXPECT_EQ(best[i].token_ids, all[i].token_ids);
    EXPECT_DOUBLE_EQ(*best[i].cumulative_logprob, *all[i].cumulative_logprob);
    EXPECT_TRUE(best[i].logprobs.empty());
  }
  params.best_of = 1;
  EXPECT_THROW(llm.generate({long_prompt(20)}, params), Error);
}

// The first of three ends, the second is under way, and the last waits for its turn.
TEST_P(ManyOutputsTest, BestOfPrefersWhatHasEndedWhenTheRestIsAborted) {
  EngineConfig config = testing::golden_config("qwen3");
  config.enable_prefix_caching = GetParam();
  config.max_num_seqs = 1;
  Engine engine(config);
  EngineRequest request;
  request.prompt = long_prompt(20);
  request.params = random_params(2, 12);
  request.params.best_of = 3;
  std::vector<CompletionOutput> given;
  std::promise<void> done;
  request.on_update = [&](const RequestUpdate& update) {
    given.push_back(update.output);
    if (update.finished) done.set_value();
  };
  int steps = 0;
  RequestId id = 0;
  std::promise<void> submitted;
  engine.observe_steps([&](const StepRecord&) {
    if (++steps == 1) submitted.get_future().wait();
    if (steps == 15) engine.abort(id);
  });
  id = engine.submit(std::move(request));
  submitted.set_value();
  done.get_future().wait();
  engine.observe_steps({});
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(given[0].token_ids.size(), 12U);
  EXPECT_EQ(given[1].finish_reason, FinishReason::kAbort);
  EXPECT_GT(given[1].token_ids.size(), 0U);
}

TEST_P(ManyOutputsTest, MoreOutputsThanRunAtOnceAreTheSame) {
  EngineConfig config = testing::golden_config("qwen3");
  LLM alone(config);
  config.enable_prefix_caching = GetParam();
  config.max_num_seqs = 3;
  LLM llm(config);
  expect_those_of_single_requests(llm, alone, long_prompt(32), 10);
  expect_those_of_single_requests(llm, alone, long_prompt(37), 10);
}

TEST_P(ManyOutputsTest, PreemptedOutputsAreTheSame) {
  EngineConfig config = testing::golden_config("qwen3");
  LLM alone(config);
  config.enable_prefix_caching = GetParam();
  config.block_size = 8;
  config.max_num_batched_tokens = 13;
  const std::size_t block_bytes = std::size_t{2} * 3 * 2 * 8 * 32 * sizeof(float);
  config.kv_cache_memory = 14 * block_bytes;
  LLM llm(config);
  expect_those_of_single_requests(llm, alone, long_prompt(44), 6);
  Engine engine(config);
  EngineRequest request;
  request.prompt = long_prompt(44);
  request.params = random_params(6, 20);
  submit(engine, std::move(request)).wait();
  EXPECT_GT(engine.stats().scheduler.num_preemptions, 0U);
}

TEST_P(ManyOutputsTest, APromptOf2048TokensIsComputedOnce) {
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(testing::golden_directory("qwen3"), directory);
  nlohmann::json model = nlohmann::json::parse(std::ifstream(directory / "config.json"));
  model["max_position_embeddings"] = 4096;
  std::ofstream(directory / "config.json") << model;
  EngineConfig config = testing::golden_config("qwen3");
  config.model = directory.string();
  config.enable_prefix_caching = GetParam();
  config.max_num_batched_tokens = 512;
  Engine engine(config);
  std::uint64_t prompt_tokens = 0;
  std::uint64_t others = 0;
  engine.observe_steps([&](const StepRecord& step) {
    prompt_tokens += step.prefill_tokens;
    others += step.tokens - step.prefill_tokens;
  });
  EngineRequest request;
  request.prompt = long_prompt(2048);
  request.params = random_params(8, 4);
  submit(engine, std::move(request)).wait();
  EXPECT_EQ(prompt_tokens, 2048U + 7);  // each but the first computes the last prompt token, for its logits
  EXPECT_EQ(others, 8U * 3);
}

INSTANTIATE_TEST_SUITE_P(PrefixCaching, ManyOutputsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "on" : "off"; });

// What is asked of every output beside a draw of its own.
struct OutputsWish {
  std::string name;
  void (*ask)(SamplingParams&);
  bool changes_tokens;
};
void PrintTo(const OutputsWish& wish, std::ostream* out) { *out << wish.name; }

const OutputsWish kWishes[] = {
    {"nothing", [](SamplingParams&) {}, false},
    {"prompt_logprobs", [](SamplingParams& params) { params.prompt_logprobs = 2; }, false},
    {"penalties",
     [](SamplingParams& params) {
       params.presence_penalty = 1.5F;
       params.frequency_penalty = 0.5F;
       params.repetition_penalty = 1.3F;
     },
     true},
    {"min_tokens",
     [](SamplingParams& params) {
       params.min_tokens = 9;
       for (TokenId id = 0; id < 100; ++id) params.stop_token_ids.push_back(id);
     },
     true},
};

class WishesTest : public ::testing::TestWithParam<std::tuple<OutputsWish, bool>> {
 protected:
  static constexpr int kOutputs = 6;

  static EngineRequest request_of(const SamplingParams& params) {
    EngineRequest request;
    request.prompt = long_prompt(44);
    request.params = params;
    return request;
  }

  // In a cache that holds less than two outputs, two tokens a step, behind one that ranks first and grows
  // while the prompt is computed: so the first output loses its blocks as well, in the middle of it.
  static RequestOutput output_in_a_small_cache(const SamplingParams& params) {
    EngineConfig config = testing::golden_config("qwen3");
    config.block_size = 8;
    config.max_num_batched_tokens = 2;
    const std::size_t block_bytes = std::size_t{2} * 3 * 2 * 8 * 32 * sizeof(float);
    config.kv_cache_memory = 14 * block_bytes;
    std::promise<void> all_there;
    EngineHooks hooks;
    hooks.fault = [ready = all_there.get_future().share()](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kSubmit) ready.wait();
    };
    Engine engine(config, open_model(config.model), std::move(hooks));
    EngineRequest older = request_of(random_params(1, 50));
    older.prompt = long_prompt(40);
    older.cache_salt = "its own";
    auto before = submit(engine, std::move(older));
    auto output = submit(engine, request_of(params));
    all_there.set_value();
    before.wait();
    EXPECT_GT(engine.stats().scheduler.num_preemptions, 0U);
    output.wait();
    return output.get();
  }
};

TEST_P(WishesTest, OfEachOutputAreFulfilledAsThoseOfASingleRequest) {
  const auto& [wish, in_small_cache] = GetParam();
  LLM alone(testing::golden_config("qwen3"));
  SamplingParams params = random_params(kOutputs, 20);
  wish.ask(params);
  Engine engine(testing::golden_config("qwen3"));
  const RequestOutput together =
      in_small_cache ? output_in_a_small_cache(params) : submit(engine, request_of(params)).get();
  ASSERT_EQ(together.outputs.size(), static_cast<std::size_t>(kOutputs));
  int num_changed = 0;
  for (const CompletionOutput& output : together.outputs) {
    SCOPED_TRACE(output.index);
    const auto generate = [&](SamplingParams single) {
      single.n = 1;
      *single.seed += static_cast<std::uint64_t>(output.index);
      return alone.generate({long_prompt(44)}, single).front();
    };
    const RequestOutput single = generate(params);
    EXPECT_EQ(output.token_ids, single.outputs[0].token_ids);
    EXPECT_EQ(output.finish_reason, single.outputs[0].finish_reason);
    num_changed += output.token_ids != generate(random_params(1, 20)).outputs[0].token_ids ? 1 : 0;
    ASSERT_EQ(together.prompt_logprobs.size(), single.prompt_logprobs.size());
    for (std::size_t i = 0; i < single.prompt_logprobs.size(); ++i) {
      const PositionLogprobs& expected = single.prompt_logprobs[i];
      EXPECT_EQ(together.prompt_logprobs[i].token.token_id, expected.token.token_id);
      EXPECT_NEAR(together.prompt_logprobs[i].token.logprob, expected.token.logprob, 1e-4);
      EXPECT_EQ(together.prompt_logprobs[i].top.size(), expected.top.size());
    }
  }
  EXPECT_EQ(together.prompt_logprobs.size(), params.prompt_logprobs ? 43U : 0U);
  EXPECT_EQ(num_changed > 0, wish.changes_tokens);
}

INSTANTIATE_TEST_SUITE_P(Caches, WishesTest,
                         ::testing::Combine(::testing::ValuesIn(kWishes), ::testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param).name +
                                  (std::get<1>(test.param) ? "_preempted" : "");
                         });

TEST(OutputsTest, AnAbortEndsAllOutputsOnce) {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_num_seqs = 2;  // some of them still wait
  Engine engine(config);
  std::promise<void> started;
  std::promise<RequestOutput> done;
  std::vector<int> ends(5);
  EngineRequest request;
  request.prompt = {1, 2, 3};
  request.params = random_params(5, 900);
  request.on_update = [&, first = true](const RequestUpdate& update) mutable {
    if (std::exchange(first, false)) started.set_value();
    if (update.output.finished()) ++ends[static_cast<std::size_t>(update.output.index)];
    if (update.finished) done.set_value(update.request);
  };
  const RequestId id = engine.submit(std::move(request));
  started.get_future().wait();
  engine.abort(id);
  const RequestOutput output = done.get_future().get();
  for (const CompletionOutput& one : output.outputs) EXPECT_EQ(one.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(ends, std::vector<int>(5, 1));
}

TEST(OutputsTest, AStopStringEndsItsOutputAlone) {
  LLM llm{EngineConfig{}};  // the bundled model: the others make no text
  SamplingParams params = random_params(4, 30);
  const auto free = llm.generate({"The KV cache"}, params).front().outputs;
  const auto said_by = [&](const std::string& words) {
    return std::count_if(free.begin(), free.end(), [&](const CompletionOutput& output) {
      return output.text.find(words) != std::string::npos;
    });
  };
  const std::string& third = free[2].text;
  for (std::size_t i = 0; i + 8 < third.size() && params.stop.empty(); ++i)
    if (said_by(third.substr(i, 8)) == 1) params.stop = {third.substr(i, 8)};
  ASSERT_EQ(params.stop.size(), 1U);
  std::vector<std::string> streamed(4);
  GenerateOptions options;
  options.on_text = [&](std::size_t, const CompletionOutput& output, std::string_view text) {
    streamed[static_cast<std::size_t>(output.index)] += text;
  };
  const auto stopped = llm.generate({"The KV cache"}, params, options).front().outputs;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string& whole = free[i].text;
    const std::size_t end = whole.find(params.stop[0]);
    EXPECT_EQ(stopped[i].text, whole.substr(0, end));
    EXPECT_EQ(streamed[i], stopped[i].text);
    EXPECT_EQ(stopped[i].finish_reason, i == 2 ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST(OutputsTest, APromptThatCannotFitFailsEveryOutput) {
  EngineConfig config = testing::golden_config("qwen3");
  config.max_model_len = 32;
  LLM llm(config);
  const RequestOutput request = llm.generate({long_prompt(40)}, random_params(3, 4)).front();
  ASSERT_EQ(request.outputs.size(), 3U);
  for (const CompletionOutput& output : request.outputs) EXPECT_THAT(output.error, HasSubstr("40 tokens"));
}

TEST(OutputsTest, ImpossibleNumbersAreRefused) {
  LLM llm(testing::golden_config("qwen3"));
  const auto refusal = [&](int n, float temperature) -> std::string {
    SamplingParams params = random_params(n, 4);
    params.temperature = temperature;
    try {
      llm.check(params);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(0, 1.0F), HasSubstr("n is 0; it must be from 1 to 16384"));
  EXPECT_THAT(refusal(-1, 1.0F), HasSubstr("n is -1"));
  EXPECT_EQ(refusal(16384, 1.0F), "");
  EXPECT_THAT(refusal(16385, 1.0F), HasSubstr("n is 16385"));
  EXPECT_THAT(refusal(2, 0.0F), HasSubstr("must be 1 with temperature 0"));
  EXPECT_EQ(refusal(1, 0.0F), "");
}

}  // namespace
}  // namespace quire
