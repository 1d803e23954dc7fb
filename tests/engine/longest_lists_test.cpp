// The longest lists that sampling takes, all at once, also in the only row that a step has: the room for what
// it is given has to do for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model_files.h"
#include "engine/submit.h"

namespace quire {
namespace {

class LongestListsTest : public ::testing::TestWithParam<int> {};  // sequences

TEST_P(LongestListsTest, EverySequenceMayHaveThem) {
  constexpr TokenId kNumIds = 128;  // of stop_token_ids, of tokens that end a text, and of named logprobs
  EngineConfig config;
  config.model = QUIRE_SOURCE_DIR "/models/toy";
  config.device = "cpu";
  config.max_num_seqs = config.max_num_batched_tokens = GetParam();
  config.max_model_len = 32;
  ModelFiles model = open_model(config.model);
  model.generation.eos_token_ids.clear();
  EngineRequest request = testing::request_of({1, 2, 3});
  SamplingParams& params = request.params;
  params.n = config.max_num_seqs;
  params.temperature = 1;
  params.min_tokens = params.max_tokens;
  params.ignore_eos = false;
  params.logprobs = 1;
  for (TokenId id = 0; id < SamplingState::kMaxBiases; ++id) params.logit_bias[id] = 1;
  for (TokenId id = 0; id < kNumIds; ++id) {
    params.stop_token_ids.push_back(id);
    params.logprob_token_ids.push_back(id);
    model.generation.eos_token_ids.push_back(kNumIds + id);
  }
  // Words of one token, both with a space before them and without.
  for (TokenId id = 0; 2 * std::ssize(params.bad_words) < SamplingState::kMaxBadWords; ++id) {
    const std::string text(model.tokenizer->token_bytes(id));
    if (text.size() > 1 && text.front() == ' ' && model.tokenizer->encode(text.substr(1), false).size() == 1)
      params.bad_words.push_back(text.substr(1));
  }
  Engine engine(config, std::move(model));
  for (const CompletionOutput& output : testing::submit(engine, std::move(request)).get().outputs) {
    EXPECT_EQ(output.finish_reason, FinishReason::kLength) << output.error;
    EXPECT_THAT(output.token_ids, ::testing::Each(::testing::Ge(2 * kNumIds)));
    ASSERT_EQ(output.logprobs.size(), output.token_ids.size());
    EXPECT_EQ(output.logprobs.front().top.size(), kNumIds);
  }
}

INSTANTIATE_TEST_SUITE_P(Sequences, LongestListsTest, ::testing::Values(1, 4));

}  // namespace
}  // namespace quire
