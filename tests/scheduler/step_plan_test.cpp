// Which tokens a sequence's wishes leave it.
#include "scheduler/step_plan.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(SamplingStateTest, AMaskOfBitsLeavesWhatItsBitsSay) {
  SamplingState state;
  const std::vector<std::uint32_t> bits = {0, 0, 1};  // token 64
  EXPECT_TRUE(state.leaves_token({}, false, 70, bits));
  EXPECT_FALSE(state.leaves_token({}, false, 64, bits));
  state.allowed_ids = {63};
  EXPECT_FALSE(state.leaves_token({}, false, 70, bits));
  state.allowed_ids = {63, 64};
  EXPECT_TRUE(state.leaves_token({}, false, 70, bits));
  state.stop_ids = {64};
  EXPECT_TRUE(state.leaves_token({}, false, 70, bits));
  EXPECT_FALSE(state.leaves_token({}, true, 70, bits));
}

TEST(SamplingStateTest, AWordIsMaskedAtItsLastToken) {
  SamplingState state;
  state.allowed_ids = {5};
  state.bad_words = {{3, 4, 5}};
  EXPECT_TRUE(state.leaves_token(std::vector<TokenId>{1, 3}, false, 9, {}));
  EXPECT_FALSE(state.leaves_token(std::vector<TokenId>{1, 3, 4}, false, 9, {}));
}

}  // namespace
}  // namespace quire
