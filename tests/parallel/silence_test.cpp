#include <gtest/gtest.h>

#include "parallel/patience.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

TEST(SilenceTest, WhoIsNotHeardForTheLimitIsOverdue) {
  const Silence::Clock::time_point t;
  Silence silence(2, 10s, t);
  silence.begin_turn(t + 4s);
  silence.heard(1, t + 4s);
  EXPECT_EQ(silence.deadline(0), t + 10s);
  EXPECT_EQ(silence.deadline(1), t + 14s);
}

TEST(SilenceTest, AProcessThatDidNotRunItselfBlamesNobody) {
  const Silence::Clock::time_point t;
  Silence silence(2, 10s, t);
  silence.begin_turn(t + 5s);
  EXPECT_EQ(silence.deadline(1), t + 10s);
  silence.begin_turn(t + 60s);  // no turn for 55 s
  EXPECT_EQ(silence.deadline(0), t + 70s);
  EXPECT_EQ(silence.deadline(1), t + 70s);
}

}  // namespace
}  // namespace quire
