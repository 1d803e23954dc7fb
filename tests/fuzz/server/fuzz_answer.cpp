// A server's answer to the client of `quire bench serve`, in pieces: the first byte of the input is the size
// of a piece. Events are the same in any pieces, no line of theirs is lost, and no answer ends the client.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "load/answer_reader.h"

namespace {

template <typename Read>
void in_pieces(std::string_view bytes, std::size_t piece, const Read& read) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) read(bytes.substr(0, piece));
}

std::string events_of(std::string_view bytes, std::size_t piece) {
  std::string events;
  quire::SseReader reader;
  in_pieces(bytes, piece, [&](std::string_view part) {
    reader.read(part, [&](std::string_view data) { (events += data) += '\r'; });  // which is in no data
  });
  return events;
}

quire::RequestTimeline timeline_of(std::string_view bytes, std::size_t piece, bool stream) {
  constexpr int kOk = 200;
  quire::RequestTimeline timeline;
  quire::AnswerReader reader(timeline, stream);
  in_pieces(bytes, piece, [&](std::string_view part) { reader.read(kOk, part, 1); });
  reader.end({.status = kOk}, 2);
  return timeline;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = std::max<std::size_t>(data[0], 1);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string events = events_of(bytes, bytes.size());
  QUIRE_CHECK(events_of(bytes, piece) == events);
  QUIRE_CHECK(events_of(bytes, 1) == events);
  for (const bool stream : {false, true}) {
    const quire::RequestTimeline whole = timeline_of(bytes, bytes.size(), stream);
    const quire::RequestTimeline parts = timeline_of(bytes, piece, stream);
    QUIRE_CHECK(whole.state == parts.state && whole.error == parts.error);
    QUIRE_CHECK(whole.chunks == parts.chunks && whole.token_ids == parts.token_ids);
    QUIRE_CHECK(whole.output_tokens == parts.output_tokens && whole.cached_tokens == parts.cached_tokens);
  }
  return 0;
}
