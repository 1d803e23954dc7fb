#include "parallel/control_listener.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

constexpr auto kHelloTimeout = 5s;       // for a connection to prove itself
constexpr auto kConnectTimeout = 2s;     // for one address
constexpr auto kWelcomeTimeout = 5s;     // for rank 0's proof, once connected
constexpr auto kRetryPause = 100ms;      // before the addresses are tried again
constexpr std::size_t kMaxGuests = 256;  // connections that have not proved themselves
constexpr char kMark[] = "quire-control-1";
constexpr double kMinWatchdog = 0.5;
constexpr double kMaxWatchdog = 3600;

ControlSecret random_secret() {
  ControlSecret secret{};
  if (getentropy(secret.data(), secret.size()) != 0)
    fail("there are no random numbers: {}", system_error_text(errno));
  return secret;
}

// Takes as long whatever differs: the time tells nothing about the secret.
bool same_secret(const ControlSecret& a, const ControlSecret& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::string to_hex(const ControlSecret& secret) {
  std::string text;
  for (const std::byte b : secret) text += format_text("{:02x}", std::to_integer<unsigned>(b));
  return text;
}

bool parse_hex(const std::string& text, ControlSecret& secret) {
  if (text.size() != 2 * secret.size()) return false;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    unsigned value = 0;
    const char* begin = text.data() + 2 * i;
    const auto parsed = std::from_chars(begin, begin + 2, value, 16);
    if (parsed.ec != std::errc() || parsed.ptr != begin + 2) return false;
    secret[i] = static_cast<std::byte>(value);
  }
  return true;
}

std::chrono::milliseconds checked_watchdog(double seconds) {
  if (!(seconds >= kMinWatchdog && seconds <= kMaxWatchdog)) {
    fail("watchdog is {:g} s; it must be from {:g} to {:g}", seconds, kMinWatchdog, kMaxWatchdog);
  }
  return std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// All at once: what a fresh connection's buffer surely takes.
bool write_now(const Descriptor& socket, std::span<const std::byte> bytes) {
  return write_some(socket.get(), bytes) == bytes.size();
}

// The room before the engine's door: connections prove there that they may come in.
class Reception {
 public:
  Reception(const Descriptor& listener, const ControlInvitation& invitation, int size)
      : listener_(listener), invitation_(invitation), joined_(static_cast<std::size_t>(size)) {}

  bool complete() const { return std::all_of(joined_.begin() + 1, joined_.end(), is_there); }
  std::vector<Descriptor>& joined() { return joined_; }

  // Waits for connections and what they say, until the deadline at most.
  void turn(ControlClock::time_point deadline);
  std::string absent_ranks() const;  // "ranks 1, 3 of 4 have"

 private:
  struct Guest {
    Descriptor socket;
    ControlClock::time_point deadline;
    Frame<Hello> hello{FrameType::kHello};
    std::size_t bytes = 0;  // of hello, that have come
  };

  static bool is_there(const Descriptor& socket) { return static_cast<bool>(socket); }
  void welcome_guests();
  bool keep(Guest& guest);
  void admit(Guest& guest);

  const Descriptor& listener_;
  const ControlInvitation& invitation_;
  std::deque<Guest> guests_;        // the oldest first
  std::vector<Descriptor> joined_;  // by rank
};

void Reception::turn(ControlClock::time_point deadline) {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
  for (const Descriptor& socket : joined_) entries.push_back({socket.get(), POLLIN, 0});  // -1 is passed over
  if (!guests_.empty()) deadline = std::min(deadline, guests_.front().deadline);
  const int count = ::poll(entries.data(), entries.size(), poll_timeout(deadline));
  QUIRE_CHECK(count >= 0 || errno == EINTR, "poll: {}", system_error_text(errno));
  if (count < 0) return;

  // A follower says nothing between its hello and the start: it has gone, and may come again.
  for (std::size_t i = 0; i < joined_.size(); ++i) {
    if (entries[1 + guests_.size() + i].revents != 0) joined_[i] = Descriptor();
  }
  std::deque<Guest> stay;
  for (Guest& guest : guests_) {
    if (keep(guest)) stay.push_back(std::move(guest));
  }
  guests_ = std::move(stay);
  if (entries[0].revents != 0) welcome_guests();
}

void Reception::welcome_guests() {
  while (Descriptor socket = accept_connection(listener_)) {
    if (guests_.size() == kMaxGuests) guests_.pop_front();
    guests_.push_back({std::move(socket), ControlClock::now() + kHelloTimeout});
  }
}

// Reads what the guest says. False once it is to be forgotten: it has been admitted, or never will be.
bool Reception::keep(Guest& guest) {
  const std::span<std::byte> rest = guest.hello.writable_bytes().subspan(guest.bytes);
  const ssize_t n = ::recv(guest.socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  if (n < 0) return (errno == EAGAIN || errno == EINTR) && ControlClock::now() < guest.deadline;
  if (n == 0) return false;
  guest.bytes += static_cast<std::size_t>(n);
  if (guest.bytes < sizeof(guest.hello)) return ControlClock::now() < guest.deadline;
  admit(guest);
  return false;
}

void Reception::admit(Guest& guest) {
  const Hello& hello = guest.hello.body;
  if (!guest.hello.is(FrameType::kHello) || !same_secret(hello.secret, invitation_.follower_secret)) return;
  if (hello.rank == 0 || hello.rank >= joined_.size()) return;
  if (!write_now(guest.socket, Frame(FrameType::kWelcome, Welcome{invitation_.leader_secret}).bytes()))
    return;
  joined_[hello.rank] = std::move(guest.socket);
}

std::string Reception::absent_ranks() const {
  std::vector<std::size_t> absent;
  for (std::size_t rank = 1; rank < joined_.size(); ++rank) {
    if (!joined_[rank]) absent.push_back(rank);
  }
  const bool one = absent.size() == 1;
  return format_text("rank{} {} of {} {}", one ? "" : "s", join_text(absent, ", "), joined_.size(),
                     one ? "has" : "have");
}

// One attempt of a follower at one address of rank 0.
struct Visit {
  Descriptor socket;      // where rank 0 has proved itself
  std::string problem;    // else what happened
  bool hopeless = false;  // another attempt would end the same
};

Visit visit(const ControlInvitation& invitation, const std::string& host, int rank,
            ControlClock::time_point deadline) {
  ConnectAttempt attempt =
      connect_to(host, invitation.port, std::min(deadline, ControlClock::now() + kConnectTimeout));
  if (!attempt.socket) return {{}, system_error_text(attempt.error), attempt.error != ETIMEDOUT};
  const Hello hello{invitation.follower_secret, static_cast<std::uint64_t>(rank)};
  if (!write_now(attempt.socket, Frame(FrameType::kHello, hello).bytes()))
    return {{}, "it closed the connection", false};
  Frame<Welcome> welcome(FrameType::kBeat);
  const auto until = std::min(deadline, ControlClock::now() + kWelcomeTimeout);
  std::string problem = read_exactly(attempt.socket.get(), welcome.writable_bytes(), until);
  if (!problem.empty()) return {{}, std::move(problem), false};
  if (!welcome.is(FrameType::kWelcome) || !same_secret(welcome.body.secret, invitation.leader_secret))
    return {{}, "it is not rank 0 of this engine", true};
  return {std::move(attempt.socket), {}, false};
}

// Tries the addresses in turn, again and again as long as that may help.
Descriptor reach_leader(const ControlInvitation& invitation, int rank, ControlClock::time_point deadline) {
  while (true) {
    std::string problems;
    bool hopeless = true;
    for (const std::string& host : invitation.hosts) {
      Visit result = visit(invitation, host, rank, deadline);
      if (result.socket) return std::move(result.socket);
      hopeless = hopeless && result.hopeless;
      problems += format_text("{}at {}: {}", problems.empty() ? "" : "; ",
                              endpoint_text(host, invitation.port), result.problem);
    }
    if (hopeless || ControlClock::now() + kRetryPause >= deadline)
      fail("rank {} cannot reach rank 0 {}", rank, problems);
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace

std::string ControlInvitation::text() const {
  std::string text = format_text("{} {} {} {}", kMark, to_hex(follower_secret), to_hex(leader_secret), port);
  for (const std::string& host : hosts) text += " " + host;
  return text;
}

ControlInvitation ControlInvitation::parse(const std::string& text) {
  std::istringstream words(text);
  std::string mark, follower, leader, host;
  ControlInvitation invitation;
  words >> mark >> follower >> leader >> invitation.port;
  if (!words || mark != kMark || !parse_hex(follower, invitation.follower_secret) ||
      !parse_hex(leader, invitation.leader_secret)) {
    fail("what rank 0 sent is no invitation; all processes must be of one program");
  }
  while (words >> host) invitation.hosts.push_back(host);
  return invitation;
}

ControlListener::ControlListener() {
  ListeningSocket listening = listen_on_all_interfaces();
  invitation_ = {random_secret(), random_secret(), listening.port, own_addresses(listening.ipv6)};
  if (invitation_.hosts.empty()) fail("no network interface of this machine is up");
  socket_ = std::move(listening.socket);
}

std::unique_ptr<ControlChannel> ControlListener::accept(int size, double watchdog,
                                                        std::chrono::milliseconds timeout) {
  QUIRE_CHECK(size >= 1 && socket_);
  const std::chrono::milliseconds checked = checked_watchdog(watchdog);
  const ControlClock::time_point deadline = ControlClock::now() + timeout;
  Reception reception(socket_, invitation_, size);
  while (!reception.complete()) {
    if (ControlClock::now() >= deadline) {
      fail("{} not joined rank 0 within {:g} s", reception.absent_ranks(),
           std::chrono::duration<double>(timeout).count());
    }
    reception.turn(deadline);
  }
  socket_ = Descriptor();
  const Start start{static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(checked.count())};
  for (std::size_t rank = 1; rank < reception.joined().size(); ++rank) {
    // Where one is gone by now, the channel finds it out.
    write_now(reception.joined()[rank], Frame(FrameType::kStart, start).bytes());
  }
  return std::make_unique<ControlChannel>(0, std::move(reception.joined()), checked);
}

std::unique_ptr<ControlChannel> join_control(const std::string& invitation, int rank,
                                             std::chrono::milliseconds timeout) {
  const ControlClock::time_point deadline = ControlClock::now() + timeout;
  Descriptor socket = reach_leader(ControlInvitation::parse(invitation), rank, deadline);
  Frame<Start> start(FrameType::kBeat);
  const std::string problem = read_exactly(socket.get(), start.writable_bytes(), deadline);
  if (!problem.empty()) {
    fail("rank {} has reached rank 0, which waits for the other ranks: {}", rank, problem);
  }
  QUIRE_CHECK(start.is(FrameType::kStart) && static_cast<std::uint32_t>(rank) < start.body.size);
  std::vector<Descriptor> connections(start.body.size);
  connections[0] = std::move(socket);
  return std::make_unique<ControlChannel>(rank, std::move(connections),
                                          std::chrono::milliseconds(start.body.watchdog_ms));
}

}  // namespace quire
