// Log-probabilities of outputs and prompts, compared with the log-softmax of the model's logits in doubles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/sampling_oracle.h"
#include "parity/logprob_fixtures.h"
#include "quire/llm.h"

namespace quire {
namespace {

using testing::SamplingRig;

void expect_logprobs_of(const PositionLogprobs& actual, const std::vector<float>& logits, TokenId token,
                        int num_top, const std::vector<TokenId>& named = {}) {
  const auto expected = testing::log_softmax(logits);
  const auto top = named.empty() ? testing::most_likely(logits, num_top) : named;
  EXPECT_EQ(actual.token.token_id, token);
  EXPECT_EQ(actual.token.rank, testing::rank_of(logits, token));
  EXPECT_NEAR(actual.token.logprob, expected[static_cast<std::size_t>(token)], 1e-4);
  ASSERT_EQ(std::ssize(actual.top), num_top);
  for (std::size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(actual.top[i].token_id, top[i]);
    EXPECT_EQ(actual.top[i].rank, named.empty() ? static_cast<int>(i) + 1 : 0);
    EXPECT_NEAR(actual.top[i].logprob, expected[static_cast<std::size_t>(top[i])], 1e-4);
  }
}

class LogprobsTest : public ::testing::TestWithParam<int> {  // steps in flight
 protected:
  static SequenceRequest make_request(SequenceId id, const std::string& prompt) {
    SequenceRequest request;
    request.id = id;
    request.prompt = testing::golden_ids("qwen3", prompt);
    request.max_tokens = 40;
    request.sampling.temperature = 1;
    request.sampling.seed = id;
    return request;
  }

  // Of every token that came, and of every prompt token where asked for.
  static void expect_as_defined(SamplingRig& rig, const SequenceRequest& request,
                                const std::vector<SequenceUpdate>& updates) {
    std::vector<TokenId> text = request.prompt;
    std::vector<PositionLogprobs> reported;
    for (const SequenceUpdate& update : updates) {
      reported.insert(reported.end(), update.prompt_logprobs.begin(), update.prompt_logprobs.end());
    }
    const bool has_prompt = request.prompt_output == OutputKind::kLogprobs;
    ASSERT_EQ(reported.size(), has_prompt ? text.size() - 1 : 0);
    for (const SequenceUpdate& update : updates) {
      if (!update.token) continue;
      text.push_back(*update.token);
      ASSERT_EQ(update.logprobs.has_value(), request.sampling.num_logprobs != SamplingState::kNoLogprobs);
      if (update.logprobs) reported.push_back(*update.logprobs);
    }
    const auto logits = rig.logits(text);
    std::size_t position = has_prompt ? 1 : request.prompt.size();
    for (const PositionLogprobs& one : reported) {
      SCOPED_TRACE("sequence " + std::to_string(request.id) + ", position " + std::to_string(position));
      const bool of_prompt = position < request.prompt.size();
      expect_logprobs_of(one, logits[position - 1], text[position],
                         of_prompt ? request.sampling.num_prompt_logprobs : request.sampling.num_logprobs,
                         of_prompt ? std::vector<TokenId>() : request.sampling.logprob_ids);
      ++position;
    }
  }
};

TEST_P(LogprobsTest, AreThoseOfTheUnchangedLogits) {
  for (const int num_blocks : {64, 10}) {
    SamplingRig rig(num_blocks);
    std::vector<SequenceRequest> requests;
    for (SequenceId id = 0; id < 5; ++id)
      requests.push_back(make_request(id, id == 4 ? "prompt.2" : "prompt.0"));
    requests[0].sampling.num_logprobs = 5;
    requests[1].sampling.num_logprobs = 0;
    requests[1].sampling.repetition_penalty = 1.5F;
    requests[2].sampling.num_logprobs = 20;
    requests[2].sampling.biases = {{3, 5.0F}};
    requests[2].sampling.top_k = 3;
    requests[3].sampling.logprob_ids = {7, 0, 500};  // beside rows of the most likely ones
    requests[3].sampling.num_logprobs = 3;
    requests[4].max_tokens = 20;  // as long as the smaller cache
    requests[4].sampling.num_logprobs = 1;
    requests[4].sampling.temperature = 0;
    const auto updates = rig.run(requests, GetParam());
    EXPECT_EQ(rig.num_preemptions() > 0, num_blocks == 10);
    for (const SequenceRequest& request : requests) expect_as_defined(rig, request, updates.at(request.id));
  }
}

// The prompts are longer than a step, and other sequences' tokens are in the same steps.
TEST_P(LogprobsTest, OfAPromptComeInChunksAndNeverFromTheCache) {
  for (const int num_blocks : {64, 14}) {
    SamplingRig rig(num_blocks);
    for (const int round : {0, 1}) {  // the second time, all is cached
      std::vector<SequenceRequest> requests;
      for (SequenceId id = 0; id < 4; ++id)
        requests.push_back(make_request(10 * round + id, id % 2 == 0 ? "prompt.2" : "prompt.1"));
      requests[0].prompt_output = requests[1].prompt_output = requests[3].prompt_output =
          OutputKind::kLogprobs;
      requests[0].sampling.num_prompt_logprobs = 4;
      requests[0].sampling.num_logprobs = 2;
      requests[1].sampling.num_prompt_logprobs = 0;
      requests[3].sampling.num_prompt_logprobs = 20;
      std::ranges::fill(requests[0].prompt, 0);  // the first token of the vocabulary is one as others
      requests[3].prompt.resize(1);
      const auto updates = rig.run(requests, GetParam());
      EXPECT_EQ(rig.num_preemptions() > 0, num_blocks == 14);
      for (const SequenceRequest& request : requests) expect_as_defined(rig, request, updates.at(request.id));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, LogprobsTest, ::testing::Values(1, 2));

TEST(LogprobsOutputTest, AreReportedWithTheirSum) {
  LLM llm(testing::golden_config("qwen3"));
  SamplingParams params;
  params.max_tokens = 6;
  params.ignore_eos = true;
  params.seed = 3;
  params.logprobs = 2;
  const auto request = llm.generate({testing::golden_ids("qwen3", "prompt.0")}, params).front();
  const CompletionOutput& output = request.outputs[0];
  ASSERT_EQ(output.logprobs.size(), 6U);
  double sum = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(output.logprobs[i].token.token_id, output.token_ids[i]);
    EXPECT_EQ(output.logprobs[i].top.size(), 2U);
    sum += output.logprobs[i].token.logprob;
  }
  ASSERT_TRUE(output.cumulative_logprob);
  EXPECT_DOUBLE_EQ(*output.cumulative_logprob, sum);
  EXPECT_TRUE(request.prompt_logprobs.empty());
  params.logprobs.reset();
  const CompletionOutput without =
      llm.generate({testing::golden_ids("qwen3", "prompt.0")}, params).front().outputs[0];
  EXPECT_EQ(without.token_ids, output.token_ids);
  EXPECT_TRUE(without.logprobs.empty());
  EXPECT_FALSE(without.cumulative_logprob);
}

TEST(LogprobsOutputTest, NoTokensAreLegalWithThoseOfThePrompt) {
  LLM llm(testing::golden_config("qwen3"));
  const auto prompt = testing::golden_ids("qwen3", "prompt.2");
  SamplingParams params;
  params.max_tokens = 0;
  params.prompt_logprobs = 1;
  params.logprobs = 1;
  for (const int round : {0, 1}) {
    const auto request = llm.generate({prompt}, params).front();
    const CompletionOutput& output = request.outputs[0];
    EXPECT_EQ(output.finish_reason, FinishReason::kLength) << "round " << round;
    EXPECT_TRUE(output.token_ids.empty());
    EXPECT_TRUE(output.logprobs.empty());
    EXPECT_EQ(output.text, "");
    ASSERT_EQ(request.prompt_logprobs.size(), prompt.size() - 1);
    for (std::size_t i = 1; i < prompt.size(); ++i)
      EXPECT_EQ(request.prompt_logprobs[i - 1].token.token_id, prompt[i]);
  }
}

}  // namespace
}  // namespace quire
