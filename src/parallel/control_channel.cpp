#include "parallel/control_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "parallel/control_socket.h"

namespace quire {
namespace {

constexpr int kBeats = 5;                                  // within the watchdog's time
constexpr std::size_t kReadBytes = std::size_t{64} << 10;  // at once, before the other peers' turn

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

struct ControlChannel::Loop {
  asio::io_context io{1};
  asio::steady_timer timer{io};
};

struct ControlChannel::Peer {
  int rank;
  tcp::socket socket;                 // the watchdog's; its descriptor is everybody's
  std::vector<std::byte> begun = {};  // the watchdog's: pieces of a message
  // Under mutex_.
  std::vector<std::byte> unsent = {};
  bool writing = false;  // the watchdog waits to send what did not go at once
  bool said_end = false;
  std::deque<ControlMessage> messages = {};
  std::uint64_t last_step = 0;
  bool ended = false;   // has said so
  bool closed = false;  // nothing more comes

  void shut_down(int how) { ::shutdown(socket.native_handle(), how); }
};

std::string Loss::text() const {
  const std::string when = last_step == 0 ? "before its first step" : format_text("in step {}", last_step);
  return format_text("rank {} of {} is lost {}: {}", rank, size, when, why);
}

ControlChannel::ControlChannel(int rank, std::vector<Descriptor> connections,
                               std::chrono::milliseconds watchdog)
    : rank_(rank),
      watchdog_(watchdog),
      loop_(std::make_unique<Loop>()),
      peers_(connections.size()),
      silence_(size(), watchdog, Silence::Clock::now()) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!connections[i]) continue;
    peers_[i].reset(new Peer{static_cast<int>(i), tcp::socket(loop_->io)});
    peers_[i]->socket.assign(tcp::v6(), connections[i].release());
    read(*peers_[i]);
  }
  watch();
  thread_ = std::thread([this] {
    name_thread("quire-watchdog");
    loop_->io.run();
  });
}

ControlChannel::~ControlChannel() {
  loop_->io.stop();
  thread_.join();
}

ControlChannel::Peer& ControlChannel::peer(int rank) const {
  QUIRE_CHECK(rank >= 0 && rank < size() && peers_[rank] != nullptr, "rank {} has no connection to rank {}",
              rank_, rank);
  return *peers_[rank];
}

// Error where nobody takes anything any more.
bool ControlChannel::takes_messages(const Peer& to) const {
  if (loss_) throw Error(loss_->text());
  if (to.ended && rank_ == 0) fail("rank {} of {} has ended and takes no more orders", to.rank, size());
  return !to.ended;
}

void ControlChannel::send(int to, std::uint16_t kind, std::span<const std::byte> body) {
  Peer& receiver = peer(to);
  std::unique_lock lock(mutex_);
  if (!takes_messages(receiver)) return;
  QUIRE_CHECK(!receiver.said_end);
  for (; body.size() > FrameHeader::kMaxBody; body = body.subspan(FrameHeader::kMaxBody))
    write(receiver, {.type = FrameType::kPiece, .step = step_}, body.first(FrameHeader::kMaxBody));
  write(receiver, {.type = FrameType::kMessage, .kind = kind, .step = step_}, body);
  wait_until_sent(receiver, lock);
  if (receiver.writing) takes_messages(receiver);
}

void ControlChannel::give_up(const std::string& why) {
  std::unique_lock lock(mutex_);
  write(peer(0), {.type = FrameType::kLost, .step = step_}, std::as_bytes(std::span(why)));
  wait_until_sent(peer(0), lock);
}

void ControlChannel::wait_until_sent(const Peer& to, std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !to.writing || loss_ || to.closed; });
}

void ControlChannel::broadcast(std::uint16_t kind, std::span<const std::byte> body) {
  QUIRE_CHECK(rank_ == 0);
  for (int rank = 1; rank < size(); ++rank) send(rank, kind, body);
}

std::optional<ControlMessage> ControlChannel::receive(int from, double patience) {
  Peer& sender = peer(from);
  std::unique_lock lock(mutex_);
  if (!wait_patiently(changed_, lock, patience,
                      [&] { return !sender.messages.empty() || loss_ || sender.ended; }))
    fail("rank {} of {} is lost: no answer for {:g} s", from, size(), patience);
  if (sender.messages.empty()) {
    if (loss_) throw Error(loss_->text());
    return std::nullopt;
  }
  ControlMessage message = std::move(sender.messages.front());
  sender.messages.pop_front();
  return message;
}

std::optional<Loss> ControlChannel::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

void ControlChannel::check() const {
  if (lost_) throw Error(loss()->text());
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
  std::unique_lock lock(mutex_);
  if (loss_) return false;
  for (const auto& peer : peers_)
    if (peer != nullptr) say_end(*peer);
  const auto all_closed = [&] {
    return std::ranges::all_of(peers_, [](const auto& p) { return p == nullptr || p->closed; });
  };
  return changed_.wait_for(lock, watchdog_, [&] { return loss_ || all_closed(); }) && !loss_;
}

void ControlChannel::write(Peer& to, FrameHeader header, std::span<const std::byte> body) {
  if (to.said_end) return;
  header.length = body.size();
  append(to.unsent, std::as_bytes(std::span(&header, 1)));
  append(to.unsent, body);
  if (!to.writing) flush(to);
}

// What does not go at once is left to the watchdog's thread.
void ControlChannel::flush(Peer& to) {
  const ssize_t n =
      ::send(to.socket.native_handle(), to.unsent.data(), to.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  const bool failed = n < 0 && errno != EAGAIN && errno != EINTR;
  to.unsent.erase(to.unsent.begin(), to.unsent.begin() + std::max<ssize_t>(n, 0));
  to.writing = !to.unsent.empty();
  if (failed) return to.shut_down(SHUT_RDWR);  // read() finds out what has become of the peer
  if (!to.writing) return;
  const auto go_on = [this, &to](const ErrorCode&) {
    const std::lock_guard lock(mutex_);
    flush(to);
    if (to.writing) return;
    if (to.said_end) to.shut_down(SHUT_WR);
    changed_.notify_all();
  };
  asio::post(loop_->io, [&to, go_on] { to.socket.async_wait(tcp::socket::wait_write, go_on); });
}

void ControlChannel::say_end(Peer& to) {
  write(to, {.type = FrameType::kEnd, .step = step_}, {});
  to.said_end = true;
  // Half of the connection stays, for what the peer has not sent yet: were it closed with that unread, the
  // peer might never see the end.
  if (!to.writing) to.shut_down(SHUT_WR);
}

// Judges who is silent, sends beats, and is called again when it is time for either.
void ControlChannel::watch() {
  const Silence::Clock::time_point now = Silence::Clock::now();
  const bool beats = now >= next_beat_;
  if (beats) next_beat_ = now + watchdog_ / kBeats;
  Silence::Clock::time_point next = next_beat_;
  silence_.begin_turn(now);
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    if (!peer->closed && !peer->ended) {
      const auto deadline = silence_.deadline(peer->rank);
      if (now >= deadline)
        close(*peer, format_text("it has not been heard of for {:g} s",
                                 std::chrono::duration<double>(watchdog_).count()));
      next = std::min(next, std::max(now, deadline));
    }
    const std::lock_guard lock(mutex_);
    // What is under way is a sign of life, too.
    if (beats && !peer->writing) write(*peer, {.type = FrameType::kBeat, .step = step_}, {});
  }
  loop_->timer.expires_at(next);
  loop_->timer.async_wait([this](const ErrorCode&) { watch(); });
}

void ControlChannel::read(Peer& from) {
  const auto heard = [this, &from](const ErrorCode& error, std::size_t) {
    silence_.heard(from.rank, Silence::Clock::now());
    return error ? 0 : kReadBytes;
  };
  const auto read_frames = [this, &from, heard]() -> asio::awaitable<void> {
    ErrorCode error;
    auto done = asio::redirect_error(asio::use_awaitable, error);
    while (true) {
      FrameHeader header;
      co_await asio::async_read(from.socket, asio::buffer(&header, sizeof(header)), heard, done);
      if (!error && !header.valid()) co_return close(from, "it sent what is no message");
      std::vector<std::byte> body(error ? 0 : header.length);
      if (!error) co_await asio::async_read(from.socket, asio::buffer(body), heard, done);
      if (error) break;
      take(from, header, std::move(body));
    }
    const bool ended = error == asio::error::eof || error == asio::error::connection_reset ||
                       error == asio::error::broken_pipe;
    close(from, ended ? "its process has ended" : "its connection failed: " + error_text(error));
  };
  asio::co_spawn(loop_->io, read_frames, [this, &from](const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const std::exception& e) {  // no memory for a message
      close(from, e.what());
    }
  });
}

void ControlChannel::take(Peer& from, const FrameHeader& header, std::vector<std::byte> body) {
  if (header.type == FrameType::kLost) {
    const int lost = rank_ == 0 ? from.rank : header.kind;
    return lose(std::unique_lock(mutex_),
                {lost, size(), header.step, {reinterpret_cast<const char*>(body.data()), body.size()}});
  }
  if (header.type == FrameType::kPiece || !from.begun.empty()) {
    append(from.begun, body);
    if (header.type == FrameType::kMessage) body = std::exchange(from.begun, {});
  }
  const std::lock_guard lock(mutex_);
  from.last_step = header.step;
  if (header.type == FrameType::kMessage) from.messages.push_back({header.kind, std::move(body)});
  if (header.type == FrameType::kEnd) from.ended = true;
  if (header.type != FrameType::kBeat) changed_.notify_all();
}

// Nothing more is read of that peer, which is lost unless it has ended in order.
void ControlChannel::close(Peer& from, const std::string& why) {
  std::unique_lock lock(mutex_);
  from.closed = true;
  if (from.ended) {
    if (rank_ == 0) say_end(from);  // a follower that ends before rank 0 waits for this
    return changed_.notify_all();
  }
  lose(std::move(lock), {from.rank, size(), from.last_step, why});
  from.shut_down(SHUT_RDWR);
}

// The first loss is everybody's. The lost one is told, too: it may only have been stopped, and go on later.
void ControlChannel::lose(std::unique_lock<std::mutex> lock, const Loss& loss) {
  if (loss_) return;
  loss_ = loss;
  lost_ = true;
  const FrameHeader notice{
      .type = FrameType::kLost, .kind = static_cast<std::uint16_t>(loss.rank), .step = loss.last_step};
  for (const auto& peer : peers_)
    if (peer != nullptr && rank_ == 0) write(*peer, notice, std::as_bytes(std::span(loss.why)));
  const auto callback = std::exchange(on_loss_, nullptr);
  lock.unlock();
  changed_.notify_all();
  if (callback) callback(loss);
}

}  // namespace quire
