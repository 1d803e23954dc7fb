#pragma once

#include <atomic>
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
#include "parallel/control_frame.h"
#include "parallel/patience.h"

namespace quire {

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

  int rank() const { return rank_; }
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
