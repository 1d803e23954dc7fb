#include "parallel/control_listener.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <thread>

#include "expect_error.h"
#include "parallel/control_helpers.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::bytes_of;
using testing::kPatient;
using testing::receive_text;

// A connection to a listener that has said nothing yet.
Descriptor knock(const ControlListener& listener) {
  const auto invitation = ControlInvitation::parse(listener.invitation());
  auto attempt = connect_to(invitation.hosts.back(), invitation.port, steady_clock::now() + 30s);
  EXPECT_TRUE(static_cast<bool>(attempt.socket)) << system_error_text(attempt.error);
  return std::move(attempt.socket);
}

// Joins rank 0 as that rank by hand, so that it can go on to break the rules. It says no more than `frames`.
Descriptor join_by_hand(ControlListener& listener, std::uint64_t rank) {
  const auto invitation = ControlInvitation::parse(listener.invitation());
  Descriptor socket = knock(listener);
  const Frame hello(FrameType::kHello, Hello{invitation.follower_secret, rank});
  EXPECT_EQ(write_some(socket.get(), hello.bytes()), sizeof(hello));
  return socket;
}

TEST(ControlListenerTest, APeerThatBreaksTheRulesIsLost) {
  FrameHeader huge;
  huge.type = FrameType::kMessage;
  huge.length = FrameReader::kMaxBody + 1;
  const auto header = std::as_bytes(std::span(&huge, 1));
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const auto& nonsense : {header, bytes_of(request)}) {
    ControlListener listener;
    const Descriptor socket = join_by_hand(listener, 1);
    const auto channel = listener.accept(2, kPatient, 60s);
    EXPECT_EQ(write_some(socket.get(), nonsense), nonsense.size());
    expect_error([&] { channel->receive(1); }, {"rank 1 of 2 is lost", "it sent what is no message"});
  }
}

TEST(ControlListenerTest, StrangersAreDroppedAndDisturbNobody) {
  ControlListener listener;
  std::string wrong = listener.invitation();
  char& digit = wrong[wrong.find(' ') + 1];  // the first of the secret
  digit = digit == '0' ? '1' : '0';
  Frame huge(FrameType::kHello, Hello{{}, 1});
  huge.header.length = ~std::uint64_t{0};
  const std::string garbage(1'000, '\xff');

  const Descriptor silent = knock(listener);
  const Descriptor noisy = knock(listener);
  EXPECT_EQ(write_some(noisy.get(), bytes_of(garbage)), garbage.size());
  const Descriptor greedy = knock(listener);
  EXPECT_EQ(write_some(greedy.get(), huge.bytes()), sizeof(huge));
  const Descriptor outside = join_by_hand(listener, 9);  // a rank that is none
  const Descriptor leader = join_by_hand(listener, 0);
  knock(listener);  // and leaves
  auto impostor =
      std::async(std::launch::async, [&] { expect_error([&] { join_control(wrong, 1, 1s); }, {"rank 1"}); });
  auto follower = std::async(std::launch::async, [text = listener.invitation()] {
    std::this_thread::sleep_for(7s);  // the silent one's time is over
    return join_control(text, 1, 60s);
  });
  auto accepting = std::async(std::launch::async, [&] { return listener.accept(2, kPatient, 60s); });
  std::byte byte{};
  for (const Descriptor* stranger : {&noisy, &greedy, &outside, &leader, &silent}) {
    const std::string problem = read_exactly(stranger->get(), {&byte, 1}, steady_clock::now() + 30s);
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
  { const Descriptor gone = join_by_hand(listener, 1); }
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
  const ListeningSocket mute = listen_on_all_interfaces();
  const ControlInvitation invitation{{}, {}, mute.port, {"127.0.0.1"}};
  expect_error([&] { join_control(invitation.text(), 3, 500ms); },
               {"rank 3 cannot reach rank 0", format_text("127.0.0.1:{}: it does not answer", mute.port)});
}

TEST(JoinControlTest, TakesNoOrdersFromWhoDoesNotKnowTheInvitation) {
  ControlListener listener;
  auto invitation = ControlInvitation::parse(listener.invitation());
  invitation.leader_secret[31] ^= std::byte{1};
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
