#include <gtest/gtest.h>

#include "cli/run_program.h"

namespace quire {
namespace {

TEST(WithoutBeamsTest, ABeamSearchIsRefusedByName) {
  const testing::ProgramResult result = testing::run_quire("generate -p hi --beam-width 4");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "quire: prompt 1: beam_width is 4; this build has no beam search (QUIRE_BEAMS=OFF)\n");
}

}  // namespace
}  // namespace quire
