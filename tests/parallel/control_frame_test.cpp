#include "parallel/control_frame.h"

#include <gtest/gtest.h>

#include "parallel/silence.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

TEST(FrameReaderTest, CutsFramesWhereverTheBytesAreCut) {
  std::vector<std::byte> bytes;
  for (std::uint8_t i = 0; i < 5; ++i) {
    FrameHeader header;
    header.type = FrameType::kMessage;
    header.kind = i;
    header.length = 7 * i;
    const auto head = std::as_bytes(std::span(&header, 1));
    bytes.insert(bytes.end(), head.begin(), head.end());
    bytes.insert(bytes.end(), header.length, std::byte{i});
  }
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    FrameReader reader;
    std::uint8_t next = 0;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      const auto part = std::span(bytes).subspan(at, std::min(piece, bytes.size() - at));
      ASSERT_TRUE(reader.take(part, [&](const FrameHeader& header, std::vector<std::byte> body) {
        EXPECT_EQ(header.kind, next);
        EXPECT_EQ(body, std::vector<std::byte>(7U * next, std::byte{next}));
        ++next;
      }));
    }
    EXPECT_EQ(next, 5);
  }
}

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
