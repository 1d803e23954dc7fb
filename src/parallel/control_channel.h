#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "parallel/patience.h"

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

inline constexpr double kDefaultWatchdog = 5.0;  // seconds

struct ControlMessage {
  std::uint16_t kind = 0;  // the engine's to choose
  std::vector<std::byte> body;
};

// A process that is gone without having said so, or has given up.
struct Loss {
  int rank = 0;
  int size = 0;
  std::uint64_t last_step = 0;  // the last it told of, a beat ago at most; 0: none
  std::string why;              // "its process has ended"

  std::string text() const;  // "rank 2 of 4 is lost in step 17: its process has ended"
};

// Orders, answers and signs of life among the processes of one engine: rank 0 is connected to every follower,
// a follower to rank 0. A thread of its own, the watchdog, reads all connections and sends beats five times
// in `watchdog` seconds. A peer is lost when its connection ends without an end() before it, or when nothing
// came from it for `watchdog` seconds; rank 0 tells the others. One loss is for good and everybody's: ranks
// compute nothing without each other. (A peer that lives and makes no progress is not lost.)
//
// Made by ControlListener::accept and join_control.
//
// Thread contract: any thread may call any method; the messages of one thread to one peer keep their order,
// and receive takes each message once. end() and the destructor come after all other calls.
class ControlChannel {
 public:
  // connections[rank]: to that peer; none where this process has no connection to it.
  ControlChannel(int rank, std::vector<Descriptor> connections, std::chrono::milliseconds watchdog);
  // Without end() before it, the others count this process as lost.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  int size() const { return static_cast<int>(peers_.size()); }

  // To rank 0, or of rank 0 to one follower. Returns when the system has taken the message. Error with the
  // loss's text where anybody is lost, also when that turns out while it waits for a peer that takes nothing;
  // Error where a follower has ended. What is sent to rank 0 after its end is dropped.
  void send(int to, std::uint16_t kind, std::span<const std::byte> body);
  // Of rank 0 to every follower, in rank order.
  void broadcast(std::uint16_t kind, std::span<const std::byte> body);

  // The next message of that peer, in the order they were sent. None once it has ended and all are read.
  // Error with the loss's text where anybody is lost; what that peer had sent before comes first.
  // Error where none comes for `patience` seconds, not counting those in which this process did not run.
  std::optional<ControlMessage> receive(int from, double patience = kForever);

  // Of a follower, which cannot go on: to rank 0 it is lost from now on, for that reason.
  void give_up(const std::string& why);

  // The step this process is in. All that is sent from then on carries it, beats included.
  void set_progress(std::uint64_t step) { step_ = step; }

  // The first loss.
  std::optional<Loss> loss() const;
  // Error with its text. Cheap: for every millisecond of a wait.
  void check() const;
  // Has it called once, on the watchdog's thread, or at once where somebody is lost already. It must not
  // throw, nor destroy the channel. Set once.
  void on_loss(std::function<void(const Loss&)> callback);

  // Says to all peers that this process ends in order, then waits until they have ended too: for `watchdog`
  // seconds at most, and no longer where one is lost. True where all have. A follower calls it when receive
  // gave none; nothing is sent afterwards.
  bool end();

 private:
  struct Loop;
  struct Peer;

  Peer& peer(int rank) const;

  // Under mutex_.
  bool takes_messages(const Peer& to) const;
  void wait_until_sent(const Peer& to, std::unique_lock<std::mutex>& lock);
  void write(Peer& to, FrameHeader header, std::span<const std::byte> body);
  void flush(Peer& to);
  void say_end(Peer& to);

  // On the watchdog's thread.
  void watch();
  void read(Peer& from);
  void take(Peer& from, const FrameHeader& header, std::vector<std::byte> body);
  void close(Peer& from, const std::string& why);
  void lose(std::unique_lock<std::mutex> lock, const Loss& loss);  // lock: of mutex_

  const int rank_;
  const std::chrono::milliseconds watchdog_;
  const std::unique_ptr<Loop> loop_;          // the watchdog's
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null where there is no connection
  Silence silence_;                           // the watchdog's
  Silence::Clock::time_point next_beat_;      // the watchdog's
  std::atomic<std::uint64_t> step_{0};
  std::atomic<bool> lost_{false};  // loss_ is set

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // messages, losses, ends, what was written
  std::optional<Loss> loss_;
  std::function<void(const Loss&)> on_loss_;

  std::thread thread_;
};

}  // namespace quire
