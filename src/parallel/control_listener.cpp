#include "parallel/control_listener.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/use_future.hpp>
#include <cerrno>
#include <deque>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "parallel/control_socket.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kHelloTimeout = 5s;       // for a connection to prove itself
constexpr auto kConnectTimeout = 2s;     // for one address
constexpr auto kWelcomeTimeout = 5s;     // for rank 0's proof, once connected
constexpr auto kRetryPause = 100ms;      // before the addresses are tried again
constexpr std::size_t kMaxGuests = 256;  // connections that have not proved themselves
constexpr char kMark[] = "quire-control-2";
constexpr double kMinWatchdog = 0.5;
constexpr double kMaxWatchdog = 3600;

ErrorCode last_error() { return {errno, boost::system::system_category()}; }

ControlSecret random_secret() {
  ControlSecret secret{};
  std::array<unsigned char, secret.size() / 2> bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0)
    fail("there are no random numbers: {}", error_text(last_error()));
  for (std::size_t i = 0; i < secret.size(); ++i)
    secret[i] = "0123456789abcdef"[(bytes[i / 2] >> (i % 2 * 4)) & 15];
  return secret;
}

// Takes as long whatever differs: the time tells nothing about the secret.
bool same_secret(const ControlSecret& a, const ControlSecret& b) {
  int difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

bool read_secret(std::istream& in, ControlSecret& secret) {
  std::string text;
  if (!(in >> text) || text.size() != secret.size()) return false;
  std::copy(text.begin(), text.end(), secret.begin());
  return true;
}

std::chrono::milliseconds checked_watchdog(double seconds) {
  if (!(seconds >= kMinWatchdog && seconds <= kMaxWatchdog))
    fail("watchdog is {:g} s; it must be from {:g} to {:g}", seconds, kMinWatchdog, kMaxWatchdog);
  return std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// The addresses of this machine's interfaces that are up. Those that mean this machine alone come last; those
// that need an interface's name beside them (fe80::) are left out, for that name is another elsewhere.
std::vector<std::string> own_addresses(bool with_ipv6) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("this machine's addresses cannot be read: {}", error_text(last_error()));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<std::string> groups[4];  // IPv4, IPv6, then those of the loopback
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const bool ipv6 = entry->ifa_addr->sa_family == AF_INET6;
    if (ipv6 ? !with_ipv6 : entry->ifa_addr->sa_family != AF_INET) continue;
    char text[NI_MAXHOST] = "";  // fe80::1%eth0, where it needs the name
    getnameinfo(entry->ifa_addr, ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), text, sizeof(text),
                nullptr, 0, NI_NUMERICHOST);
    if (std::string_view(text).find('%') != std::string_view::npos) continue;
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    groups[(loopback ? 2 : 0) + (ipv6 ? 1 : 0)].emplace_back(text);
  }
  std::vector<std::string> addresses;
  for (const auto& group : groups) addresses.insert(addresses.end(), group.begin(), group.end());
  return addresses;
}

// Programs that this process starts do not get a socket.
template <typename Socket>
void keep_to_this_process(Socket& socket) {
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
}

void prepare(tcp::socket& socket) {
  keep_to_this_process(socket);
  ErrorCode ignored;                                // of a connection that has already gone
  socket.set_option(tcp::no_delay(true), ignored);  // orders are small and each is waited for
}

// On a free port of that address; on all of IPv4 and IPv6 where it is IPv6's for any.
ErrorCode listen_at(tcp::acceptor& acceptor, const asio::ip::address& address) try {
  const tcp::endpoint endpoint(address, 0);
  acceptor.open(endpoint.protocol());
  keep_to_this_process(acceptor);
  if (address.is_v6()) acceptor.set_option(asio::ip::v6_only(false));
  acceptor.bind(endpoint);
  acceptor.listen();
  return {};
} catch (const boost::system::system_error& error) {
  acceptor.close();
  return error.code();
}

// The error of an operation, which is given up at the deadline.
template <typename T>
asio::awaitable<void> in_time(asio::awaitable<T> operation, ErrorCode& error, Clock::time_point deadline) {
  using namespace asio::experimental::awaitable_operators;
  asio::steady_timer timer(co_await asio::this_coro::executor, deadline);
  const auto first = co_await (std::move(operation) || timer.async_wait(asio::use_awaitable));
  if (first.index() != 0) error = asio::error::timed_out;
}

template <typename Body>
asio::awaitable<ErrorCode> read(tcp::socket& socket, Frame<Body>& frame, Clock::time_point deadline) {
  ErrorCode error;
  auto done = asio::redirect_error(asio::use_awaitable, error);
  co_await in_time(asio::async_read(socket, asio::buffer(&frame, sizeof(frame)), done), error, deadline);
  co_return error;
}

template <typename Body>
ErrorCode write(tcp::socket& socket, const Frame<Body>& frame) {
  ErrorCode error;
  asio::write(socket, asio::buffer(&frame, sizeof(frame)), error);
  return error;
}

// The room before the engine's door: connections prove there that they may come in.
class Reception {
 public:
  Reception(Descriptor listener, const ControlInvitation& invitation, int size)
      : acceptor_(io_, tcp::v6(), listener.release()),
        invitation_(invitation),
        joined_(static_cast<std::size_t>(size)) {}

  // Whether all have joined by the deadline.
  bool wait(Clock::time_point deadline) {
    asio::co_spawn(io_, welcome_guests(), rethrow);
    if (!complete()) io_.run_until(deadline);
    return complete();
  }

  // "ranks 1, 3 of 4 have"
  std::string absent_ranks() const {
    std::vector<std::size_t> absent;
    for (std::size_t rank = 1; rank < joined_.size(); ++rank)
      if (!joined_[rank]) absent.push_back(rank);
    const bool one = absent.size() == 1;
    return format_text("rank{} {} of {} {}", one ? "" : "s", join_text(absent, ", "), joined_.size(),
                       one ? "has" : "have");
  }

  // Tells all that they are complete. Where one is gone by now, the channel finds it out.
  std::vector<Descriptor> start(std::chrono::milliseconds watchdog) {
    const Frame start(FrameType::kStart, Start{static_cast<std::uint32_t>(joined_.size()),
                                               static_cast<std::uint32_t>(watchdog.count())});
    std::vector<Descriptor> connections(joined_.size());
    for (std::size_t rank = 1; rank < joined_.size(); ++rank) {
      write(*joined_[rank], start);
      connections[rank] = Descriptor(joined_[rank]->release());
    }
    return connections;
  }

 private:
  using Guest = std::shared_ptr<tcp::socket>;

  bool complete() const { return std::count(joined_.begin(), joined_.end(), nullptr) == 1; }

  asio::awaitable<void> welcome_guests() {
    namespace errc = boost::system::errc;
    while (true) {
      const auto guest = std::make_shared<tcp::socket>(io_);
      ErrorCode error;
      co_await acceptor_.async_accept(*guest, asio::redirect_error(asio::use_awaitable, error));
      // Network errors of a connection that has already gone come out of accept, too.
      if (error == errc::too_many_files_open || error == errc::too_many_files_open_in_system ||
          error == errc::no_buffer_space || error == errc::not_enough_memory)
        fail("this process cannot accept its peers: {}", error_text(error));
      if (error) continue;
      prepare(*guest);
      if (guests_.size() == kMaxGuests) {
        guests_.front()->close();
        guests_.pop_front();
      }
      guests_.push_back(guest);
      asio::co_spawn(io_, greet(guest), rethrow);
    }
  }

  asio::awaitable<void> greet(Guest guest) {
    Frame<Hello> hello(FrameType::kBeat);
    const ErrorCode error = co_await read(*guest, hello, Clock::now() + kHelloTimeout);
    std::erase(guests_, guest);
    if (error || !hello.is(FrameType::kHello)) co_return;
    if (!same_secret(hello.body.secret, invitation_.follower_secret)) co_return;
    if (hello.body.rank == 0 || hello.body.rank >= joined_.size()) co_return;
    if (write(*guest, Frame(FrameType::kWelcome, Hello{invitation_.leader_secret, 0}))) co_return;
    Guest& place = joined_[hello.body.rank];
    if (place) place->close();
    place = guest;
    if (complete()) io_.stop();
    // A follower says nothing between its hello and the start: it has gone, and may come again.
    ErrorCode ignored;
    co_await guest->async_wait(tcp::socket::wait_read, asio::redirect_error(asio::use_awaitable, ignored));
    if (place == guest) place.reset();
  }

  asio::io_context io_;
  tcp::acceptor acceptor_;
  const ControlInvitation& invitation_;
  std::deque<Guest> guests_;   // who have not proved themselves, the oldest first
  std::vector<Guest> joined_;  // by rank; rank 0 itself has none
};

const ErrorCode kImpostor = make_error_code(boost::system::errc::protocol_error);

// What a follower finds wrong with rank 0.
std::string problem_text(const ErrorCode& error) {
  if (error == asio::error::eof) return "it closed the connection";
  if (error == asio::error::timed_out) return "it does not answer";
  return error == kImpostor ? "it is not rank 0 of this engine" : error_text(error);
}

bool may_pass(const ErrorCode& error) {
  return error == asio::error::eof || error == asio::error::timed_out ||
         error == asio::error::connection_reset || error == asio::error::broken_pipe;
}

// One attempt of a follower at one address of rank 0; without an error each has proved itself to the other.
asio::awaitable<ErrorCode> visit(tcp::socket& socket, const ControlInvitation& invitation,
                                 const std::string& host, int rank, Clock::time_point deadline) {
  ErrorCode error;
  const tcp::endpoint leader(asio::ip::make_address(host, error), invitation.port);
  if (error) co_return error;
  auto connected = socket.async_connect(leader, asio::redirect_error(asio::use_awaitable, error));
  co_await in_time(std::move(connected), error, std::min(deadline, Clock::now() + kConnectTimeout));
  if (error) co_return error;
  prepare(socket);
  error = write(
      socket, Frame(FrameType::kHello, Hello{invitation.follower_secret, static_cast<std::uint64_t>(rank)}));
  if (error) co_return error;
  Frame<Hello> welcome(FrameType::kBeat);
  error = co_await read(socket, welcome, std::min(deadline, Clock::now() + kWelcomeTimeout));
  if (error) co_return error;
  const bool proved =
      welcome.is(FrameType::kWelcome) && same_secret(welcome.body.secret, invitation.leader_secret);
  co_return proved ? ErrorCode() : kImpostor;
}

// Tries the addresses in turn, again and again as long as that may help.
asio::awaitable<tcp::socket> reach_leader(const ControlInvitation& invitation, int rank,
                                          Clock::time_point deadline) {
  while (true) {
    std::vector<std::string> problems;
    bool hopeless = true;  // another attempt would end the same
    for (const std::string& host : invitation.hosts) {
      tcp::socket socket(co_await asio::this_coro::executor);
      const ErrorCode error = co_await visit(socket, invitation, host, rank, deadline);
      if (!error) co_return socket;
      hopeless = hopeless && !may_pass(error);
      const bool ipv6 = host.find(':') != std::string::npos;
      problems.push_back(
          format_text("at {}:{}: {}", ipv6 ? "[" + host + "]" : host, invitation.port, problem_text(error)));
    }
    if (hopeless || Clock::now() + kRetryPause >= deadline)
      fail("rank {} cannot reach rank 0 {}", rank, join_text(problems, "; "));
    std::this_thread::sleep_for(kRetryPause);
  }
}

asio::awaitable<std::unique_ptr<ControlChannel>> join(const ControlInvitation& invitation, int rank,
                                                      Clock::time_point deadline) {
  tcp::socket socket = co_await reach_leader(invitation, rank, deadline);
  Frame<Start> start(FrameType::kBeat);
  if (const ErrorCode error = co_await read(socket, start, deadline))
    fail("rank {} has reached rank 0, which waits for the other ranks: {}", rank, problem_text(error));
  QUIRE_CHECK(start.is(FrameType::kStart) && static_cast<std::uint32_t>(rank) < start.body.size);
  std::vector<Descriptor> connections(start.body.size);
  connections[0] = Descriptor(socket.release());
  co_return std::make_unique<ControlChannel>(rank, std::move(connections),
                                             std::chrono::milliseconds(start.body.watchdog_ms));
}

}  // namespace

std::string ControlInvitation::text() const {
  const auto word = [](const ControlSecret& secret) {
    return std::string_view(secret.data(), secret.size());
  };
  return format_text("{} {} {} {} {}", kMark, word(follower_secret), word(leader_secret), port,
                     join_text(hosts, " "));
}

ControlInvitation ControlInvitation::parse(const std::string& text) {
  std::istringstream words(text);
  std::string mark;
  ControlInvitation invitation;
  words >> mark;
  if (mark != kMark || !read_secret(words, invitation.follower_secret) ||
      !read_secret(words, invitation.leader_secret) || !(words >> invitation.port)) {
    fail("what rank 0 sent is no invitation; all processes must be of one program");
  }
  for (std::string host; words >> host;) invitation.hosts.push_back(host);
  return invitation;
}

ControlListener::ControlListener(bool on_one_host) {
  using asio::ip::address, asio::ip::address_v4, asio::ip::address_v6;
  const auto addresses = on_one_host ? std::array<address, 2>{address_v4::loopback(), address_v6::loopback()}
                                     : std::array<address, 2>{address_v6::any(), address_v4::any()};
  asio::io_context io;
  tcp::acceptor acceptor(io);
  ErrorCode error = listen_at(acceptor, addresses[0]);
  if (error) error = listen_at(acceptor, addresses[1]);
  if (error) fail("this process cannot listen for its peers: {}", error_text(error));
  const tcp::endpoint own = acceptor.local_endpoint();
  const bool is_v6 = own.address().is_v6();
  invitation_ = {random_secret(), random_secret(), own.port(),
                 on_one_host ? std::vector{own.address().to_string()} : own_addresses(is_v6)};
  if (invitation_.hosts.empty()) fail("no network interface of this machine is up");
  socket_ = Descriptor(acceptor.release());
}

std::unique_ptr<ControlChannel> ControlListener::accept(int size, double watchdog,
                                                        std::chrono::milliseconds timeout) {
  QUIRE_CHECK(size >= 1 && socket_);
  const std::chrono::milliseconds checked = checked_watchdog(watchdog);
  Reception reception(std::move(socket_), invitation_, size);
  if (!reception.wait(Clock::now() + timeout)) {
    fail("{} not joined rank 0 within {:g} s", reception.absent_ranks(),
         std::chrono::duration<double>(timeout).count());
  }
  return std::make_unique<ControlChannel>(0, reception.start(checked), checked);
}

std::unique_ptr<ControlChannel> join_control(const std::string& invitation, int rank,
                                             std::chrono::milliseconds timeout) {
  const ControlInvitation checked = ControlInvitation::parse(invitation);
  asio::io_context io;
  auto channel = asio::co_spawn(io, join(checked, rank, Clock::now() + timeout), asio::use_future);
  io.run();
  return channel.get();
}

}  // namespace quire
