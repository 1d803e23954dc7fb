// A model with a sliding window, in a cache that holds its windows and little more: sequences give up the
// blocks that they have left behind, and generate what they do in a cache that holds all.
#include <gtest/gtest.h>

#include <future>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"

namespace quire {
namespace {

constexpr int kBlockSize = 8;
constexpr std::size_t kBlockBytes =
    std::size_t{2} * 3 * 2 * kBlockSize * 16 * sizeof(float);  // of "mistral-window"
constexpr int kOutputTokens = 200;

struct Setting {
  int num_blocks = 0;
  bool prefix_caching = false;
  double swap_space = 0;  // GiB
  int n = 1;
};

std::vector<TokenId> prompt_of(int num_tokens, int which) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < num_tokens; ++i)
    prompt.push_back((i * 37 + (i < 40 ? 0 : which) * 101 + i * i % 11) % 512);
  return prompt;
}

// Requests with prompts of 40 tokens in common, longer and longer. The first has run for some steps when the
// others come, which go before it.
std::vector<RequestOutput> run(const Setting& setting, SchedulerStats* stats = nullptr) {
  EngineConfig config = testing::golden_config("mistral-window");
  config.deterministic = true;
  config.block_size = kBlockSize;
  config.max_num_batched_tokens = 24;
  config.kv_cache_memory = static_cast<std::size_t>(setting.num_blocks) * kBlockBytes;
  config.enable_prefix_caching = setting.prefix_caching;
  config.swap_space = setting.swap_space;
  config.scheduling_policy = "priority";
  config.preemption_mode = setting.swap_space > 0 ? "swap" : "auto";
  EngineHooks hooks;
  hooks.poison_blocks = true;
  std::promise<void> reached, all_there;
  hooks.fault = [&reached, ready = all_there.get_future().share(), steps = 0](EngineStage stage,
                                                                              SequenceId) mutable {
    if (stage != EngineStage::kSubmit || ++steps != 6) return;
    reached.set_value();
    ready.wait();
  };
  Engine engine(config, open_model(config.model), std::move(hooks));
  std::vector<std::future<RequestOutput>> outputs;
  for (int i = 0; i < 4; ++i) {
    EngineRequest request;
    request.prompt = prompt_of(41 + 30 * i, i);
    request.params.temperature = setting.n > 1 ? 1 : 0;
    request.params.seed = 7;
    request.params.n = setting.n;
    request.params.max_tokens = kOutputTokens;
    request.params.ignore_eos = true;
    request.priority = -i;
    outputs.push_back(testing::submit(engine, std::move(request)));
    if (i == 0) reached.get_future().wait();
  }
  all_there.set_value();
  std::vector<RequestOutput> result;
  for (auto& output : outputs) result.push_back(output.get());
  if (stats != nullptr) *stats = engine.stats().scheduler;
  return result;
}

void expect_equal(const std::vector<RequestOutput>& actual, const std::vector<RequestOutput>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].outputs.size(), expected[i].outputs.size());
    for (std::size_t n = 0; n < expected[i].outputs.size(); ++n) {
      EXPECT_EQ(actual[i].outputs[n].token_ids.size(), static_cast<std::size_t>(kOutputTokens));
      EXPECT_EQ(actual[i].outputs[n].token_ids, expected[i].outputs[n].token_ids) << "request " << i;
    }
  }
}

// 331 tokens of the longest take 42 blocks; a window of 16 and a step of 24 take 6.
TEST(WindowTest, SequencesLongerThanTheCacheGenerateTheSame) {
  expect_equal(run({.num_blocks = 8}), run({.num_blocks = 200}));
}

TEST(WindowTest, PreemptionAndPrefixHitsChangeNothing) {
  for (const int n : {1, 3}) {
    const auto expected = run({.num_blocks = 400, .n = n});
    for (const bool prefix_caching : {false, true}) {
      for (const double swap_space : {0.0, 1.0 / 64}) {
        SchedulerStats stats;
        expect_equal(run({12, prefix_caching, swap_space, n}, &stats), expected);
        EXPECT_GT(stats.num_preemptions, 0U) << "nothing was tested";
      }
    }
  }
}

}  // namespace
}  // namespace quire
