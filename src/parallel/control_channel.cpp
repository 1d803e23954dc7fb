#include "parallel/control_channel.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/thread_name.h"

namespace quire {
namespace {

constexpr int kBeats = 5;                                  // within the watchdog's time
constexpr std::size_t kReadBytes = std::size_t{64} << 10;  // at once
constexpr int kReadsPerTurn = 16;                          // of one peer, before the others' turn
constexpr std::chrono::milliseconds kNoticeRetry{10};
constexpr char kEnded[] = "its process has ended";

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

Descriptor make_event() {
  Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) fail("no event can be made: {}", system_error_text(errno));
  return event;
}

}  // namespace

std::string Loss::text() const {
  const std::string when = last_step == 0 ? "before its first step" : format_text("in step {}", last_step);
  return format_text("rank {} of {} is lost {}: {}", rank, size, when, why);
}

ControlChannel::ControlChannel(int rank, std::vector<Descriptor> connections,
                               std::chrono::milliseconds watchdog)
    : rank_(rank),
      watchdog_(watchdog),
      peers_(make_peers(std::move(connections))),
      wake_(make_event()),
      buffer_(kReadBytes),
      silence_(size(), watchdog, ControlClock::now()),
      thread_([this] { watch(); }) {}

ControlChannel::~ControlChannel() {
  const std::uint64_t one = 1;
  QUIRE_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

std::vector<std::unique_ptr<ControlChannel::Peer>> ControlChannel::make_peers(
    std::vector<Descriptor> connections) {
  std::vector<std::unique_ptr<Peer>> peers(connections.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (!connections[i]) continue;
    peers[i] = std::make_unique<Peer>();
    peers[i]->rank = static_cast<int>(i);
    peers[i]->socket = std::move(connections[i]);
  }
  return peers;
}

ControlChannel::Peer& ControlChannel::peer(int rank) const {
  QUIRE_CHECK(rank >= 0 && rank < size() && peers_[static_cast<std::size_t>(rank)] != nullptr,
              "rank {} has no connection to rank {}", rank_, rank);
  return *peers_[static_cast<std::size_t>(rank)];
}

FrameHeader ControlChannel::header(FrameType type, std::size_t length) const {
  FrameHeader header;
  header.type = type;
  header.length = length;
  header.step = step_;
  return header;
}

// Error where nobody takes anything any more.
bool ControlChannel::takes_messages(const Peer& to) const {
  const std::lock_guard lock(mutex_);
  if (loss_) throw Error(loss_->text());
  if (to.ended && rank_ == 0) fail("rank {} of {} has ended and takes no more orders", to.rank, size());
  return !to.ended;
}

void ControlChannel::send(int to, std::uint16_t kind, std::span<const std::byte> body) {
  QUIRE_CHECK(body.size() <= kMaxBody, "{} bytes", body.size());
  Peer& receiver = peer(to);
  if (!takes_messages(receiver)) return;
  {
    const std::lock_guard lock(receiver.sending);
    QUIRE_CHECK(!receiver.said_end);
    FrameHeader head = header(FrameType::kMessage, body.size());
    head.kind = kind;
    const bool written =
        write_all(receiver.socket.get(), {receiver.unsent, std::as_bytes(std::span(&head, 1)), body});
    receiver.unsent.clear();
    if (written) return;
    ::shutdown(receiver.socket.get(), SHUT_RDWR);
  }
  // The watchdog finds out what has become of the peer.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return loss_ || receiver.closed; });
  lock.unlock();
  takes_messages(receiver);
}

void ControlChannel::broadcast(std::uint16_t kind, std::span<const std::byte> body) {
  QUIRE_CHECK(rank_ == 0);
  for (int rank = 1; rank < size(); ++rank) send(rank, kind, body);
}

std::optional<ControlMessage> ControlChannel::pop(Peer& from) {
  if (from.messages.empty()) {
    if (loss_) throw Error(loss_->text());
    return std::nullopt;
  }
  ControlMessage message = std::move(from.messages.front());
  from.messages.pop_front();
  return message;
}

std::optional<ControlMessage> ControlChannel::receive(int from, double patience) {
  Peer& sender = peer(from);
  std::unique_lock lock(mutex_);
  if (!wait_patiently(changed_, lock, patience,
                      [&] { return !sender.messages.empty() || loss_ || sender.ended; }))
    fail("rank {} of {} is lost: no answer for {:g} s", from, size(), patience);
  return pop(sender);
}

std::optional<ControlMessage> ControlChannel::try_receive(int from) {
  Peer& sender = peer(from);
  const std::lock_guard lock(mutex_);
  return pop(sender);
}

std::optional<Loss> ControlChannel::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

void ControlChannel::check() const {
  if (!lost_) return;
  const std::lock_guard lock(mutex_);
  throw Error(loss_->text());
}

void ControlChannel::on_loss(std::function<void(const Loss&)> callback) {
  std::unique_lock lock(mutex_);
  if (!loss_) {
    on_loss_ = std::move(callback);
    return;
  }
  const Loss loss = *loss_;
  lock.unlock();
  callback(loss);
}

bool ControlChannel::end() {
  if (lost_) return false;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    const std::lock_guard lock(peer->sending);
    const FrameHeader head = header(FrameType::kEnd, 0);
    write_all(peer->socket.get(), {peer->unsent, std::as_bytes(std::span(&head, 1)), {}});
    peer->said_end = true;
    // Half of the connection stays, for what the peer has not sent yet: were it closed with that unread, the
    // peer might never see the end.
    ::shutdown(peer->socket.get(), SHUT_WR);
  }
  std::unique_lock lock(mutex_);
  const auto all_closed = [&] {
    return std::all_of(peers_.begin(), peers_.end(), [](const auto& p) { return p == nullptr || p->closed; });
  };
  return changed_.wait_for(lock, watchdog_, [&] { return loss_ || all_closed(); }) && !loss_;
}

void ControlChannel::watch() {
  name_thread("quire-watchdog");
  std::vector<Peer*> ready;
  ControlClock::time_point next_beat = ControlClock::now();
  while (wait_for_input(next_beat, ready)) {
    const ControlClock::time_point now = ControlClock::now();
    silence_.begin_turn(now);
    for (Peer* peer : ready) read(*peer, now);
    for (const auto& peer : peers_) {
      if (peer == nullptr || peer->closed || peer->ended || now < silence_.deadline(peer->rank)) continue;
      close(*peer, format_text("it has not been heard of for {:g} s", seconds(watchdog_)));
    }
    send_notices();
    if (now < next_beat) continue;
    next_beat = now + watchdog_ / kBeats;
    for (const auto& peer : peers_) {
      if (peer != nullptr) send_without_waiting(*peer, FrameType::kBeat, {});
    }
  }
}

// Which peers there is something to read of, when it is time for that, a beat or a judgement. False: to stop.
bool ControlChannel::wait_for_input(ControlClock::time_point next_beat, std::vector<Peer*>& ready) {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  std::vector<Peer*> polled;
  ControlClock::time_point until = next_beat;
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->closed) continue;
    entries.push_back({peer->socket.get(), POLLIN, 0});
    polled.push_back(peer.get());
    if (!peer->ended) until = std::min(until, silence_.deadline(peer->rank));
    if (peer->notice_due) until = std::min(until, ControlClock::now() + kNoticeRetry);
  }
  ready.clear();
  const int count = ::poll(entries.data(), entries.size(), poll_timeout(until));
  QUIRE_CHECK(count >= 0 || errno == EINTR, "poll: {}", system_error_text(errno));
  if (count <= 0) return true;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (entries[i + 1].revents != 0) ready.push_back(polled[i]);
  }
  return entries[0].revents == 0;
}

void ControlChannel::read(Peer& from, ControlClock::time_point now) {
  const auto on_frame = [&](const FrameHeader& header, std::vector<std::byte> body) {
    take(from, header, std::move(body));
  };
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const ssize_t n = ::recv(from.socket.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      const bool ended = n == 0 || errno == ECONNRESET || errno == EPIPE;
      return close(from, ended ? kEnded : "its connection failed: " + system_error_text(errno));
    }
    silence_.heard(from.rank, now);
    if (!from.reader.take(std::span(buffer_).first(static_cast<std::size_t>(n)), on_frame))
      return close(from, "it sent what is no message");
    if (static_cast<std::size_t>(n) < buffer_.size()) return;
  }
}

void ControlChannel::take(Peer& from, const FrameHeader& header, std::vector<std::byte> body) {
  {
    const std::lock_guard lock(mutex_);
    from.last_step = header.step;
    if (header.type == FrameType::kMessage) from.messages.push_back({header.kind, std::move(body)});
    if (header.type == FrameType::kEnd) from.ended = true;
  }
  if (header.type == FrameType::kLost && rank_ != 0) return take_notice(body);
  if (header.type != FrameType::kBeat) changed_.notify_all();
}

void ControlChannel::take_notice(std::span<const std::byte> body) {
  LostNotice notice;
  if (body.size() < sizeof(notice)) return;
  std::memcpy(&notice, body.data(), sizeof(notice));
  const auto why = body.subspan(sizeof(notice));
  Loss loss{static_cast<int>(notice.rank), size(), notice.last_step, {}};
  loss.why.assign(reinterpret_cast<const char*>(why.data()), why.size());
  std::unique_lock lock(mutex_);
  const bool first = record(std::move(loss));
  lock.unlock();
  changed_.notify_all();
  if (first) call_back();
}

// Nothing more is read of that peer, which is lost unless it has ended in order.
void ControlChannel::close(Peer& from, const std::string& why) {
  std::unique_lock lock(mutex_);
  from.closed = true;
  const bool ended = from.ended;
  const bool first = !ended && record({from.rank, size(), from.last_step, why});
  lock.unlock();
  if (first && rank_ == 0) {
    // The lost one is told, too: it may only have been stopped, and go on later.
    for (const auto& peer : peers_) {
      if (peer != nullptr) peer->notice_due = true;
    }
    send_notices();
  }
  // A follower that ends before rank 0 waits for this. Where end() is about to say it, it is left to that.
  const bool answered = ended && rank_ == 0 && send_without_waiting(from, FrameType::kEnd, {});
  // Who waits to send to it gives up. A follower that is yet to end still says so to rank 0.
  if (!ended || answered) ::shutdown(from.socket.get(), SHUT_RDWR);
  changed_.notify_all();
  if (first) call_back();
}

bool ControlChannel::record(Loss loss) {
  if (loss_) return false;
  loss_ = std::move(loss);
  lost_ = true;
  return true;
}

void ControlChannel::call_back() {
  std::unique_lock lock(mutex_);
  const auto callback = std::exchange(on_loss_, nullptr);
  const Loss loss = *loss_;
  lock.unlock();
  if (callback) callback(loss);
}

void ControlChannel::send_notices() {
  std::vector<std::byte> body;
  for (const auto& peer : peers_) {
    if (peer == nullptr || !peer->notice_due) continue;
    if (body.empty()) {
      const LostNotice notice{static_cast<std::uint64_t>(loss_->rank), loss_->last_step};
      const auto bytes = std::as_bytes(std::span(&notice, 1));
      body.assign(bytes.begin(), bytes.end());
      const auto why = std::as_bytes(std::span(loss_->why));
      body.insert(body.end(), why.begin(), why.end());
    }
    peer->notice_due = !send_without_waiting(*peer, FrameType::kLost, body) && !peer->closed;
  }
}

// Writes what goes at once; the rest goes ahead of whatever is sent next. False where a message is under way
// (a sign of life, too), or such a rest.
bool ControlChannel::send_without_waiting(Peer& to, FrameType type, std::span<const std::byte> body) {
  const std::unique_lock lock(to.sending, std::try_to_lock);
  if (!lock) return false;
  const bool free = to.unsent.empty() && !to.said_end;
  if (free) {
    const FrameHeader head = header(type, body.size());
    const auto bytes = std::as_bytes(std::span(&head, 1));
    to.unsent.assign(bytes.begin(), bytes.end());
    to.unsent.insert(to.unsent.end(), body.begin(), body.end());
  }
  const auto written = static_cast<std::ptrdiff_t>(write_some(to.socket.get(), to.unsent));
  to.unsent.erase(to.unsent.begin(), to.unsent.begin() + written);
  return free;
}

}  // namespace quire
