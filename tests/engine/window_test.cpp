// Models with a sliding window in all layers or in some, in a cache that holds their windows and little more:
// sequences give up the blocks that they have left behind, and generate what they do in a cache that holds
// all.
#include <gtest/gtest.h>

#include <future>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"

namespace quire {
namespace {

constexpr int kWindowBlock = 8;
constexpr int kOutputTokens = 200;

struct Model {
  const char* name;
  std::size_t block_bytes;
  int num_blocks_of_one;   // in which one sequence fits
  int num_blocks_of_some;  // in which not all do
  int num_blocks_of_all;
};
// 331 tokens of the longest take 42 blocks in a lane; a window of 16 and a step of 24 take 6. Gemma 3 has a
// lane for each of its layers, of which one holds all tokens.
constexpr std::size_t kLayerBytes = std::size_t{2} * kWindowBlock * 16 * sizeof(float);  // of a head
constexpr Model kMistral = {"mistral-window", 3 * 2 * kLayerBytes, 8, 12, 400};
constexpr Model kGemma = {"gemma3", 1 * kLayerBytes, 54, 90, 2000};

struct Setting {
  Model model;
  int num_blocks = 0;
  bool prefix_caching = false;
  double swap_space = 0;  // GiB
  int n = 1;
};

std::vector<TokenId> window_prompt(int num_tokens, int which) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < num_tokens; ++i)
    prompt.push_back((i * 37 + (i < 40 ? 0 : which) * 101 + i * i % 11) % 320);
  return prompt;
}

// Requests with prompts of 40 tokens in common, longer and longer. The first has run for some steps when the
// others come, which go before it.
std::vector<RequestOutput> run_windows(const Setting& setting, SchedulerStats* stats = nullptr) {
  EngineConfig config = testing::golden_config(setting.model.name);
  config.deterministic = true;
  config.block_size = kWindowBlock;
  config.max_num_batched_tokens = 24;
  config.kv_cache_memory = static_cast<std::size_t>(setting.num_blocks) * setting.model.block_bytes;
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
    request.prompt = window_prompt(41 + 30 * i, i);
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

class WindowTest : public ::testing::TestWithParam<Model> {};

TEST_P(WindowTest, SequencesLongerThanTheCacheGenerateTheSame) {
  const Model model = GetParam();
  expect_equal(run_windows({model, model.num_blocks_of_one}), run_windows({model, model.num_blocks_of_all}));
}

TEST_P(WindowTest, PreemptionAndPrefixHitsChangeNothing) {
  const Model model = GetParam();
  std::uint64_t num_hits = 0, num_restored = 0;
  for (const int n : {1, 3}) {
    const auto expected = run_windows({model, model.num_blocks_of_all, false, 0, n});
    for (const bool prefix_caching : {false, true}) {
      for (const double swap_space : {0.0, 1.0 / 64}) {
        SchedulerStats stats;
        expect_equal(run_windows({model, model.num_blocks_of_some, prefix_caching, swap_space, n}, &stats),
                     expected);
        EXPECT_GT(stats.num_preemptions, 0U) << "nothing was tested";
        num_hits += stats.prefix_cache_hits;
        num_restored += stats.num_restored_blocks;
      }
    }
  }
  EXPECT_GT(num_hits, 0U);
  EXPECT_GT(num_restored, 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, WindowTest, ::testing::Values(kMistral, kGemma),
                         [](const auto& test) { return testing::test_name({test.param.name}); });

}  // namespace
}  // namespace quire
