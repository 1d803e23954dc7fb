#include "kvcache/kv_cache.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(PreemptionCostsTest, SavingPaysWhereCopiesCostLessThanTokensAgain) {
  const PreemptionCosts costs{.block_copied = 40, .token = 2, .pair = 0.01};
  EXPECT_FALSE(costs.saving_pays(0, 16, 1));    // 40 against 33
  EXPECT_TRUE(costs.saving_pays(0, 160, 10));   // 400 against 448
  EXPECT_FALSE(costs.saving_pays(0, 160, 12));  // 480
  EXPECT_TRUE(costs.saving_pays(50, 160, 12));  // against 528
}

}  // namespace
}  // namespace quire
