// Which GPUs a build's kernels run on.
#include "backends/cuda/architectures.h"

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

TEST(ArchitecturesTest, MachineCodeRunsWithinItsMajorVersion) {
  EXPECT_TRUE(runs_on("80-real", 8, 0));
  EXPECT_TRUE(runs_on("80-real", 8, 9));
  EXPECT_FALSE(runs_on("86-real", 8, 0));
  EXPECT_FALSE(runs_on("80-real", 9, 0));
  EXPECT_TRUE(runs_on("80-real 120-real", 12, 1));
  EXPECT_FALSE(runs_on("80-real 120-real", 10, 0));
}

TEST(ArchitecturesTest, WhatHasALetterRunsWhereItIsFor) {
  EXPECT_TRUE(runs_on("90a-real", 9, 0));
  EXPECT_TRUE(runs_on("90a", 9, 0));
  EXPECT_FALSE(runs_on("90a", 10, 0));
  EXPECT_FALSE(runs_on("100a", 10, 3));
  EXPECT_TRUE(runs_on("100f", 10, 3));
  EXPECT_FALSE(runs_on("100f", 12, 0));
}

TEST(ArchitecturesTest, PtxRunsOnWhatIsNewerAndWantsNoMore) {
  EXPECT_TRUE(runs_on("80-virtual", 8, 9));
  EXPECT_TRUE(runs_on("100-virtual", 12, 0));
  EXPECT_TRUE(runs_on("120", 12, 0));
  EXPECT_FALSE(runs_on("100-virtual", 9, 0));
  EXPECT_FALSE(runs_on("80", 9, 0));
  EXPECT_FALSE(runs_on("90", 9, 0));
  EXPECT_FALSE(runs_on("80-virtual", 12, 0));
}

TEST(ArchitecturesTest, NamesAreTakenForRight) {
  EXPECT_TRUE(runs_on("native", 7, 5));
  EXPECT_TRUE(runs_on("all-major", 9, 0));
  EXPECT_FALSE(runs_on("", 9, 0));
}

}  // namespace
}  // namespace quire::cuda
