#include "parallel/control_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cmath>
#include <future>
#include <thread>

#include "expect_error.h"
#include "parallel/control_helpers.h"
#include "parallel/control_socket.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using testing::bytes_of;
using testing::kPatient;
using testing::receive_text;

asio::io_context& io() {
  static asio::io_context context;
  return context;
}

// A connection to a listener that has said nothing yet.
tcp::socket knock(const ControlListener& listener) {
  const auto invitation = ControlInvitation::parse(listener.invitation());
  tcp::socket socket(io());
  socket.connect({asio::ip::make_address(invitation.hosts.back()), invitation.port});
  socket.set_option(tcp::no_delay(true));
  return socket;
}

void say(tcp::socket& socket, std::span<const std::byte> bytes) {
  EXPECT_EQ(asio::write(socket, asio::buffer(bytes.data(), bytes.size())), bytes.size());
}

template <typename T>
std::span<const std::byte> raw(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Joins rank 0 as that rank by hand, so that it can go on to break the rules. It says no more than `frames`.
tcp::socket join_by_hand(ControlListener& listener, std::uint64_t rank) {
  const auto invitation = ControlInvitation::parse(listener.invitation());
  tcp::socket socket = knock(listener);
  say(socket, raw(Frame(FrameType::kHello, Hello{invitation.follower_secret, rank})));
  return socket;
}

// What ends a connection that nothing more is to come from, within 30 s.
std::string end_of(tcp::socket& socket) {
  const timeval limit{30, 0};
  setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  char byte = 0;
  const ssize_t n = ::recv(socket.native_handle(), &byte, 1, 0);
  if (n == 0) return "it closed the connection";
  return n > 0 ? "it answers" : error_text({errno, boost::system::system_category()});
}

TEST(ControlListenerTest, OfOneHostListensOnLoopbackAlone) {
  const auto everywhere = ControlInvitation::parse(ControlListener().invitation());
  ControlListener listener(true);
  const auto invitation = ControlInvitation::parse(listener.invitation());
  EXPECT_EQ(invitation.hosts, std::vector<std::string>{"127.0.0.1"});
  for (const std::string& host : everywhere.hosts) {
    const auto address = asio::ip::make_address(host);
    tcp::socket socket(io());
    boost::system::error_code error;
    socket.connect({address, invitation.port}, error);
    EXPECT_EQ(!error, host == "127.0.0.1") << host;
  }
  const tcp::socket socket = join_by_hand(listener, 1);
  EXPECT_NE(listener.accept(2, kPatient, 60s), nullptr);
}

TEST(ControlListenerTest, APeerThatBreaksTheRulesIsLost) {
  FrameHeader huge;
  huge.type = FrameType::kMessage;
  huge.length = FrameHeader::kMaxBody + 1;
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const auto& nonsense : {raw(huge), bytes_of(request)}) {
    ControlListener listener;
    tcp::socket socket = join_by_hand(listener, 1);
    const auto channel = listener.accept(2, kPatient, 60s);
    say(socket, nonsense);
    expect_error([&] { channel->receive(1); }, {"rank 1 of 2 is lost", "it sent what is no message"});
  }
}

TEST(ControlListenerTest, MessagesMayBeCutAnywhere) {
  std::vector<std::byte> bytes;
  for (std::uint8_t i = 0; i < 5; ++i) {
    FrameHeader header;
    header.type = FrameType::kMessage;
    header.kind = i;
    header.length = 7 * i;
    const auto head = raw(header);
    bytes.insert(bytes.end(), head.begin(), head.end());
    bytes.insert(bytes.end(), header.length, std::byte{i});
  }
  ControlListener listener;
  tcp::socket socket = join_by_hand(listener, 1);
  const auto channel = listener.accept(2, kPatient, 60s);
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      say(socket, std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    for (std::uint8_t i = 0; i < 5; ++i) {
      const auto message = channel->receive(1);
      ASSERT_TRUE(message.has_value());
      EXPECT_EQ(message->kind, i);
      EXPECT_EQ(message->body, std::vector<std::byte>(7U * i, std::byte{i}));
    }
  }
  socket.close();
  expect_error([&] { channel->receive(1); }, {"its process has ended"});  // no more came
}

TEST(ControlListenerTest, StrangersAreDroppedAndDisturbNobody) {
  ControlListener listener;
  std::string wrong = listener.invitation();
  char& digit = wrong[wrong.find(' ') + 1];  // the first of the secret
  digit = digit == '0' ? '1' : '0';
  Frame huge(FrameType::kHello, Hello{{}, 1});
  huge.header.length = ~std::uint64_t{0};
  const std::string garbage(1'000, '\xff');

  tcp::socket silent = knock(listener);
  tcp::socket noisy = knock(listener);
  say(noisy, bytes_of(garbage));
  tcp::socket greedy = knock(listener);
  say(greedy, raw(huge));
  tcp::socket outside = join_by_hand(listener, 9);  // a rank that is none
  tcp::socket leader = join_by_hand(listener, 0);
  knock(listener);  // and leaves
  auto impostor =
      std::async(std::launch::async, [&] { expect_error([&] { join_control(wrong, 1, 1s); }, {"rank 1"}); });
  auto follower = std::async(std::launch::async, [text = listener.invitation()] {
    std::this_thread::sleep_for(7s);  // the silent one's time is over
    return join_control(text, 1, 60s);
  });
  auto accepting = std::async(std::launch::async, [&] { return listener.accept(2, kPatient, 60s); });
  for (tcp::socket* stranger : {&noisy, &greedy, &outside, &leader, &silent}) {
    const std::string problem = end_of(*stranger);
    EXPECT_TRUE(problem == "it closed the connection" || problem == "connection reset by peer") << problem;
    EXPECT_EQ(accepting.wait_for(0s), std::future_status::timeout);  // before the follower comes
  }
  impostor.get();
  const auto channel = accepting.get();
  const auto other = follower.get();
  other->send(0, 1, bytes_of("hello"));
  EXPECT_EQ(receive_text(*channel, 1), "hello");
}

TEST(ControlListenerTest, AFollowerThatComesASecondTimeReplacesTheFirst) {
  ControlListener listener;
  { const tcp::socket gone = join_by_hand(listener, 1); }
  auto follower =
      std::async(std::launch::async, [text = listener.invitation()] { return join_control(text, 1, 60s); });
  auto second = std::async(std::launch::async, [text = listener.invitation()] {
    std::this_thread::sleep_for(500ms);
    return join_control(text, 2, 60s);
  });
  const auto channel = listener.accept(3, kPatient, 60s);
  const auto other = follower.get();
  const auto third = second.get();
  other->send(0, 1, bytes_of("again"));
  EXPECT_EQ(receive_text(*channel, 1), "again");
}

TEST(ControlListenerTest, NamesTheRanksThatDoNotCome) {
  ControlListener listener;
  auto follower = std::async(std::launch::async, [text = listener.invitation()] {
    expect_error([&] { join_control(text, 2, 60s); }, {"rank 2", "waits for the other ranks"});
  });
  expect_error([&] { listener.accept(4, kPatient, 3s); },
               {"ranks 1, 3 of 4 have not joined rank 0 within 3 s"});
  { const ControlListener gone = std::move(listener); }
  follower.get();
}

TEST(ControlListenerTest, RefusesAWatchdogThatIsNoTime) {
  ControlListener listener;
  for (const double seconds : {0.0, 0.49, 3601.0, std::nan("")}) {
    expect_error([&] { listener.accept(1, seconds); }, {"watchdog", "from 0.5 to 3600"});
  }
}

TEST(JoinControlTest, ARefusedConnectionNamesRankAndAddress) {
  std::string invitation;
  {
    const ControlListener listener;
    invitation = listener.invitation();
  }
  const auto port = ControlInvitation::parse(invitation).port;
  expect_error([&] { join_control(invitation, 2, 60s); },
               {"rank 2 cannot reach rank 0 at ", format_text("127.0.0.1:{}: connection refused", port)});
}

TEST(JoinControlTest, TellsWhoDoesNotAnswer) {
  const tcp::acceptor mute(io(), {tcp::v4(), 0});
  const std::uint16_t port = mute.local_endpoint().port();
  const ControlInvitation invitation{{}, {}, port, {"127.0.0.1"}};
  expect_error([&] { join_control(invitation.text(), 3, 500ms); },
               {"rank 3 cannot reach rank 0", format_text("127.0.0.1:{}: it does not answer", port)});
}

TEST(JoinControlTest, TakesNoOrdersFromWhoDoesNotKnowTheInvitation) {
  ControlListener listener;
  auto invitation = ControlInvitation::parse(listener.invitation());
  invitation.leader_secret[63] ^= 1;
  auto follower = std::async(std::launch::async, [&] {
    expect_error([&] { join_control(invitation.text(), 1, 60s); }, {"it is not rank 0 of this engine"});
  });
  expect_error([&] { listener.accept(3, kPatient, 2s); }, {"have not joined"});
  follower.get();
}

TEST(JoinControlTest, RefusesWhatIsNoInvitation) {
  const std::string good = ControlInvitation{{}, {}, 1, {"127.0.0.1"}}.text();
  EXPECT_EQ(ControlInvitation::parse(good).text(), good);
  for (const std::string& text :
       {std::string(), "x" + good, good.substr(0, 60), good.substr(0, good.find(" 1 ") + 1)}) {
    expect_error([&] { join_control(text, 1); }, {"no invitation"});
  }
}

}  // namespace
}  // namespace quire
