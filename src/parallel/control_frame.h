#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace quire {

// What goes over a control connection: frames, each a header and a body. All processes are of one program, on
// machines of one byte order.
static_assert(std::endian::native == std::endian::little);

enum class FrameType : std::uint16_t {
  kHello,    // a follower's first: Hello
  kWelcome,  // rank 0's answer to it: a Hello of its own
  kStart,    // to all, once all ranks are there: Start
  kPiece,    // the beginning of a message that is longer than a frame, or what follows in it, but for its end
  kMessage,  // an order or an answer, or the end of one
  kBeat,     // a sign of life, without a body
  kEnd,      // the sender ends in order and sends nothing more; without a body
  kLost,     // rank 0 tells who is lost, or a follower that it gives up; the body is the reason's text
};

struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x33435251;  // "QRC3"
  static constexpr std::uint64_t kMaxBody = std::uint64_t{64} << 20;

  std::uint32_t magic = kMagic;
  FrameType type = FrameType::kBeat;
  std::uint16_t kind = 0;    // of a message: the engine's to choose; of rank 0's kLost: the rank
  std::uint64_t length = 0;  // bytes of the body
  std::uint64_t step = 0;    // the last step of the sender; of kLost: of who is lost

  bool valid() const { return magic == kMagic && type <= FrameType::kLost && length <= kMaxBody; }
};

// 32 random bytes, as hexadecimal digits, that only the processes of one engine know.
using ControlSecret = std::array<char, 64>;

struct Hello {
  ControlSecret secret{};
  std::uint64_t rank = 0;
};
struct Start {
  std::uint32_t size = 0;
  std::uint32_t watchdog_ms = 0;
};

// A header and its body in a row, for the bodies above.
template <typename Body>
struct Frame {
  FrameHeader header;
  Body body;

  explicit Frame(FrameType type, const Body& the_body = {}) : body(the_body) {
    header.type = type;
    header.length = sizeof(Body);
  }
  // Whether what was received is a frame of that type.
  bool is(FrameType type) const {
    return header.valid() && header.type == type && header.length == sizeof(Body);
  }
};
static_assert(sizeof(Frame<Hello>) == sizeof(FrameHeader) + sizeof(Hello));  // no padding
static_assert(sizeof(Frame<Start>) == sizeof(FrameHeader) + sizeof(Start));

}  // namespace quire
