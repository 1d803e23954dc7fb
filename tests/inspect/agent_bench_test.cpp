#include "inspect/agent_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "expect_error.h"
#include "inspect/small_shape.h"

namespace quire {
namespace {

const AgentSizes kSmall{.system_tokens = 70,
                        .turns = 4,
                        .input = {10, 30},
                        .output = {3, 8},
                        .conversations = 5,
                        .vocab_size = 320,
                        .seed = 7};

TEST(AgentWorkloadTest, FollowsTheSeed) {
  const AgentWorkload workload = make_agent_workload(kSmall);
  const AgentWorkload same = make_agent_workload(kSmall);
  AgentSizes sizes = kSmall;
  sizes.seed = 8;
  const AgentWorkload other = make_agent_workload(sizes);
  EXPECT_EQ(workload.system, same.system);
  EXPECT_NE(workload.system, other.system);
  for (std::size_t i = 0; i < workload.turns.size(); ++i) {
    EXPECT_EQ(workload.turns[i].prompt, same.turns[i].prompt);
    EXPECT_EQ(workload.turns[i].output_tokens, same.turns[i].output_tokens);
    EXPECT_NE(workload.turns[i].prompt, other.turns[i].prompt);
  }
}

TEST(AgentWorkloadTest, LengthsAndTokensFillTheirRanges) {
  AgentSizes sizes = kSmall;
  sizes.turns = sizes.conversations = 40;
  const AgentWorkload workload = make_agent_workload(sizes);
  ASSERT_EQ(workload.turns.size(), 1600U);
  EXPECT_EQ(workload.num_turns, 40);
  EXPECT_EQ(workload.system.size(), 70U);
  std::vector<std::size_t> inputs;
  std::vector<int> outputs;
  std::vector<TokenId> ids;
  std::vector<int> lengths(40, 70);
  for (std::size_t i = 0; i < 1600; ++i) {
    const AgentTurn& turn = workload.turns[i];
    EXPECT_EQ(turn.conversation, static_cast<int>(i) / 40);
    EXPECT_EQ(turn.number, static_cast<int>(i) % 40);
    inputs.push_back(turn.prompt.size());
    outputs.push_back(turn.output_tokens);
    ids.insert(ids.end(), turn.prompt.begin(), turn.prompt.end());
    lengths[i / 40] += static_cast<int>(turn.prompt.size()) + turn.output_tokens;
  }
  using Sizes = std::pair<std::size_t, std::size_t>;
  const auto range = [](const auto& values) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return std::pair(*least, *most);
  };
  EXPECT_EQ(range(inputs), Sizes(10, 30));
  EXPECT_EQ(range(outputs), std::pair(3, 8));
  EXPECT_EQ(range(ids), std::pair(256, 319));
  EXPECT_EQ(workload.longest, *std::max_element(lengths.begin(), lengths.end()));
}

TEST(AgentWorkloadTest, LengthsTheWrongWayRoundAreRefused) {
  AgentSizes sizes = kSmall;
  sizes.output = {5, 4};
  expect_error([&] { make_agent_workload(sizes); }, {"lengths from 5 to 4"});
}

// Answers each turn as it is told, one turn a wait.
class FakeTurns : public TurnRunner {
 public:
  explicit FakeTurns(std::function<void(AgentTurn&)> answer) : answer_(std::move(answer)) {}

  void start(AgentTurn turn) override {
    prompts.push_back(turn.prompt);
    waiting_.push_back(std::move(turn));
    most_at_once = std::max(most_at_once, waiting_.size());
  }
  std::vector<AgentTurn> wait() override {
    AgentTurn turn = std::move(waiting_.front());
    waiting_.pop_front();
    answer_(turn);
    return {turn};
  }

  std::vector<std::vector<TokenId>> prompts;
  std::size_t most_at_once = 0;

 private:
  const std::function<void(AgentTurn&)> answer_;
  std::deque<AgentTurn> waiting_;
};

void answer_with_ones(AgentTurn& turn) {
  turn.output.assign(static_cast<std::size_t>(turn.output_tokens), 1);
}

TEST(AgentRunTest, APromptIsAllThatTheConversationHasHad) {
  AgentSizes sizes = kSmall;
  sizes.conversations = 1;
  const AgentWorkload workload = make_agent_workload(sizes);
  FakeTurns runner(answer_with_ones);
  const std::vector<AgentTurn> turns = run_agents(runner, workload, 1);
  ASSERT_EQ(turns.size(), 4U);
  std::vector<TokenId> text = workload.system;
  for (std::size_t i = 0; i < 4; ++i) {
    text.insert(text.end(), workload.turns[i].prompt.begin(), workload.turns[i].prompt.end());
    EXPECT_EQ(runner.prompts[i], text);
    EXPECT_EQ(turns[i].prompt_tokens, static_cast<int>(text.size()));
    text.insert(text.end(), static_cast<std::size_t>(workload.turns[i].output_tokens), 1);
  }
}

// All but the last token of what a conversation had; of what another one had, the system prompt; nothing at
// first, when nothing has ended.
TEST(AgentRunTest, CountsWhatCouldBeReused) {
  const AgentWorkload workload = make_agent_workload(kSmall);
  FakeTurns runner(answer_with_ones);
  const std::vector<AgentTurn> turns = run_agents(runner, workload, 2);
  ASSERT_EQ(turns.size(), 20U);
  EXPECT_EQ(runner.most_at_once, 2U);
  std::vector<int> had(5, 0);
  for (const AgentTurn& turn : turns) {
    const auto conversation = static_cast<std::size_t>(turn.conversation);
    const int expected = turn.number > 0 ? had[conversation] - 1 : turn.conversation < 2 ? 0 : 70;
    EXPECT_EQ(turn.reusable_tokens, expected) << turn.conversation << ", " << turn.number;
    had[conversation] = turn.prompt_tokens + turn.output_tokens;
  }
}

TEST(AgentRunTest, OfOutputsThatAreNotToldOnlyThePromptCouldBeReused) {
  AgentSizes sizes = kSmall;
  sizes.conversations = 1;
  const AgentWorkload workload = make_agent_workload(sizes);
  FakeTurns runner([](AgentTurn&) {});
  const std::vector<AgentTurn> turns = run_agents(runner, workload, 1);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(turns[i].reusable_tokens, turns[i - 1].prompt_tokens);
    EXPECT_EQ(turns[i].prompt_tokens, turns[i - 1].prompt_tokens + turns[i - 1].output_tokens +
                                          static_cast<int>(workload.turns[i].prompt.size()));
  }
}

TEST(AgentRunTest, AFailureEndsItsConversationAlone) {
  FakeTurns runner([](AgentTurn& turn) {
    answer_with_ones(turn);
    if (turn.conversation == 1 && turn.number == 2) turn.error = "out of luck";
  });
  const std::vector<AgentTurn> turns = run_agents(runner, make_agent_workload(kSmall), 3);
  EXPECT_EQ(turns.size(), 4U * 4 + 3);
  EXPECT_EQ(std::count_if(turns.begin(), turns.end(), [](const auto& turn) { return !turn.error.empty(); }),
            1);
}

TEST(AgentRunTest, AnInterruptionLeavesWhatHasEnded) {
  FakeTurns runner(answer_with_ones);
  std::size_t seen = 0;
  const std::vector<AgentTurn> turns = run_agents(
      runner, make_agent_workload(kSmall), 3, [&] { return seen == 7; },
      [&](std::size_t done, std::size_t total) {
        EXPECT_EQ(done, ++seen);
        EXPECT_EQ(total, 20U);
      });
  EXPECT_EQ(turns.size(), 7U);
}

std::vector<AgentTurn> run_small_model(EngineConfig config) {
  config.device = "cpu";
  config.cpu_threads = 1;
  const AgentWorkload workload = make_agent_workload(kSmall);
  return run_agents(*engine_turns(config, random_model(test::small_shape()), workload, 0.6F), workload, 2);
}

TEST(EngineTurnsTest, WhatCouldBeReusedIsCachedButForPartsOfBlocks) {
  const std::vector<AgentTurn> turns = run_small_model({});
  ASSERT_EQ(turns.size(), 20U);
  const AgentWorkload workload = make_agent_workload(kSmall);
  for (const AgentTurn& turn : turns) {
    EXPECT_EQ(turn.error, "");
    const auto index = static_cast<std::size_t>(turn.conversation * 4 + turn.number);
    EXPECT_EQ(turn.output.size(), static_cast<std::size_t>(workload.turns[index].output_tokens));
    EXPECT_GT(turn.first_token_ms, 0);
    ASSERT_TRUE(turn.cached_tokens);
    if (turn.number > 0) {
      EXPECT_EQ(*turn.cached_tokens, turn.reusable_tokens / 16 * 16);
    }
  }
}

TEST(EngineTurnsTest, WithoutAPrefixCacheAllIsComputedAgain) {
  EngineConfig config;
  config.enable_prefix_caching = false;
  int reusable = 0;
  for (const AgentTurn& turn : run_small_model(config)) {
    EXPECT_EQ(turn.cached_tokens, 0);
    reusable += turn.reusable_tokens;
  }
  EXPECT_GT(reusable, 20 * 70);
}

TEST(EngineTurnsTest, AConversationThatDoesNotFitIsRefused) {
  EngineConfig config;
  config.max_model_len = 100;
  expect_error([&] { run_small_model(config); }, {"max-model-len is 100"});
}

}  // namespace
}  // namespace quire
