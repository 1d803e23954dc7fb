#include <gtest/gtest.h>

#include <vector>

#include "expect_error.h"
#include "load/answer_reader.h"

namespace quire {
namespace {

using Events = std::vector<std::string>;

Events read_pieces(const std::vector<std::string_view>& pieces) {
  Events events;
  SseReader reader;
  for (const std::string_view piece : pieces)
    reader.read(piece, [&](std::string_view data) { events.emplace_back(data); });
  return events;
}

// At every pair of places, and byte by byte.
void expect_events(std::string_view stream, const Events& expected) {
  for (std::size_t first = 0; first <= stream.size(); ++first) {
    for (std::size_t second = first; second <= stream.size(); ++second) {
      ASSERT_EQ(
          read_pieces({stream.substr(0, first), stream.substr(first, second - first), stream.substr(second)}),
          expected)
          << first << " and " << second;
    }
  }
  std::vector<std::string_view> bytes;
  for (std::size_t i = 0; i < stream.size(); ++i) bytes.push_back(stream.substr(i, 1));
  EXPECT_EQ(read_pieces(bytes), expected);
}

TEST(SseReaderTest, EventsAreTheSameForEverySplit) {
  expect_events("data: {\"a\": 1}\n\ndata: [DONE]\n\n", {"{\"a\": 1}", "[DONE]"});
}

TEST(SseReaderTest, LinesMayEndWithReturns) {
  expect_events("data: a\r\n\r\ndata: b\r\n\r\n", {"a", "b"});
  expect_events("data: a\r\rdata: b\r\r", {"a", "b"});
}

TEST(SseReaderTest, CommentsAndOtherFieldsAreDropped) {
  expect_events(": ping\n\nevent: x\nid: 7\ndata: a\n: in between\n\n\n\nretry: 3\n\n", {"a"});
}

TEST(SseReaderTest, OneSpaceAfterTheColonIsNotData) {
  expect_events("data:a\n\ndata:  b\n\ndata:\n\n", {"a", " b", ""});
}

TEST(SseReaderTest, LinesOfAnEventAreJoined) { expect_events("data: a\ndata: b\n\n", {"a\nb"}); }

TEST(SseReaderTest, AnUnfinishedEventIsNone) { expect_events("data: a\n\ndata: b\n", {"a"}); }

TEST(SseReaderTest, AnEndlessEventIsRefused) {
  SseReader reader;
  const std::string megabyte(1 << 20, 'x');
  expect_error(
      [&] {
        for (int i = 0; i < 17; ++i) reader.read(megabyte, [](std::string_view) {});
      },
      {"longer than 16777216 bytes"});
}

}  // namespace
}  // namespace quire
