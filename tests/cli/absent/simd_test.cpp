#include <gtest/gtest.h>

#include "cli/run_program.h"

namespace quire {
namespace {

using testing::run_quire;

TEST(WithoutSimdTest, AnInstructionSetIsRefusedByName) {
  const testing::ProgramResult result = run_quire("generate -p hi --cpu-isa avx2");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "quire: cpu-isa avx2: this build has no SIMD kernels (QUIRE_SIMD=OFF); use auto or reference\n");
  EXPECT_EQ(run_quire("generate -p hi --max-tokens 1 --cpu-isa reference").code, 0);
}

TEST(WithoutSimdTest, TheDoctorSaysSo) {
  EXPECT_NE(run_quire("doctor").out.find("QUIRE_SIMD=OFF"), std::string::npos);
}

}  // namespace
}  // namespace quire
