#include "inspect/forced_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "inspect/small_shape.h"

namespace quire {
namespace {

constexpr int kStepTokens = 4;
constexpr std::size_t kNumTokens = 60;

class ForcedRunTest : public ::testing::Test {
 protected:
  static EngineConfig config() {
    EngineConfig config;
    config.device = "cpu";
    config.max_num_batched_tokens = kStepTokens;
    config.max_model_len = 64;
    return config;
  }
  // Once the engine goes no further.
  std::uint64_t num_computed() const {
    for (std::uint64_t before = 0, now;; before = now) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      now = engine_.stats().prefill_tokens;
      if (now == before && now > 0) return now;
    }
  }

  Engine engine_{config(), random_model(test::small_shape())};
  const std::vector<TokenId> tokens_ = std::vector<TokenId>(kNumTokens, 7);
};

TEST_F(ForcedRunTest, TheEngineWaitsUntilLogitsAreTaken) {
  const auto run = ForcedRun::start(engine_, tokens_, true);
  std::vector<float> logits;
  for (std::uint64_t taken = 0; taken < 4; ++taken) {
    EXPECT_LE(num_computed(), (taken + 3) * kStepTokens);
    const std::vector<float> next = run->take();
    logits.insert(logits.end(), next.begin(), next.end());
  }
  for (const float logit : run->take_all()) logits.push_back(logit);
  EXPECT_EQ(num_computed(), kNumTokens);
  EXPECT_EQ(logits, ForcedRun::start(engine_, tokens_)->take_all());
  EXPECT_EQ(logits.size(), kNumTokens * static_cast<std::size_t>(engine_.config().spec.vocab_size));
}

TEST_F(ForcedRunTest, OneThatIsGivenUpHoldsNobodyUp) {
  const auto run = ForcedRun::start(engine_, tokens_, true);
  EXPECT_LT(num_computed(), kNumTokens);
  run->give_up();
  EXPECT_EQ(ForcedRun::start(engine_, tokens_, true)->take_all().size(),
            kNumTokens * static_cast<std::size_t>(engine_.config().spec.vocab_size));
}

}  // namespace
}  // namespace quire
