#include "parallel/control_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "expect_error.h"
#include "parallel/control_helpers.h"
#include "parallel/control_listener.h"

extern char** environ;

namespace quire {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::bytes_of;
using testing::kPatient;
using testing::receive_text;
using testing::text_of;

constexpr char kPeerVariable[] = "QUIRE_TEST_CONTROL_PEER";  // "RANK INVITATION"

// A follower in a process of its own, to be killed or stopped: this program, started anew. In step 17 it
// sends an answer, then does nothing until rank 0 ends.
class PeerProcess {
 public:
  PeerProcess(int rank, const std::string& invitation) {
    std::string variable = std::string(kPeerVariable) + "=" + std::to_string(rank) + " " + invitation;
    std::vector<char*> environment{variable.data()};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (std::strncmp(*entry, "GTEST_", 6) != 0) environment.push_back(*entry);  // shards, reports
    }
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=LossTest.TellsWhoWhenAndWhy";
    std::array<char*, 3> arguments{program.data(), filter.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int error =
        posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(error, 0) << std::strerror(error);
  }
  ~PeerProcess() {
    if (pid_ > 0) kill_and_wait();
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void kill_and_wait() {
    ::kill(pid_, SIGKILL);
    exit_status();
  }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void go_on() const { ::kill(pid_, SIGCONT); }
  // Waits for it to end.
  int exit_status() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_ = -1;
};

// What such a process does instead of the tests.
class PeerEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* variable = std::getenv(kPeerVariable);
    if (variable == nullptr) return;
    char* invitation = nullptr;
    const auto rank = static_cast<int>(std::strtol(variable, &invitation, 10));
    int status = 1;
    try {
      const auto channel = join_control(invitation + 1, rank);
      channel->set_progress(17);
      channel->send(0, 1, bytes_of("here"));
      while (channel->receive(0)) {
      }
      status = channel->end() ? 0 : 2;
    } catch (const Error& e) {
      status = std::string(e.what()).find("not been heard of") == std::string::npos ? 3 : 4;
    }
    std::_Exit(status);
  }
};
const auto* const kPeerEnvironment = ::testing::AddGlobalTestEnvironment(new PeerEnvironment);

// Channels of one engine, all in this process.
std::vector<std::unique_ptr<ControlChannel>> connect_all(int size, double watchdog = kPatient) {
  ControlListener listener;
  std::vector<std::future<std::unique_ptr<ControlChannel>>> followers;
  for (int rank = 1; rank < size; ++rank) {
    followers.push_back(std::async(std::launch::async, [rank, invitation = listener.invitation()] {
      return join_control(invitation, rank, 60s);
    }));
  }
  std::vector<std::unique_ptr<ControlChannel>> channels;
  channels.push_back(listener.accept(size, watchdog, 60s));
  for (auto& follower : followers) channels.push_back(follower.get());
  return channels;
}

TEST(ControlChannelTest, CarriesOrdersAndAnswersInOrder) {
  const auto channels = connect_all(3);
  std::vector<std::string> bodies{"", "x", std::string(3'000'000, 'y'), "z"};
  std::vector<std::thread> followers;
  for (int rank = 1; rank < 3; ++rank) {
    followers.emplace_back([&, rank] {
      ControlChannel& channel = *channels[static_cast<std::size_t>(rank)];
      EXPECT_EQ(channel.size(), 3);
      while (const auto order = channel.receive(0)) {
        channel.send(0, static_cast<std::uint16_t>(order->kind + rank), order->body);
      }
    });
  }
  for (std::size_t i = 0; i < bodies.size(); ++i)
    channels[0]->broadcast(static_cast<std::uint16_t>(100 * i), bytes_of(bodies[i]));
  channels[0]->send(2, 60'000, bytes_of("for one"));
  for (int rank = 1; rank < 3; ++rank) {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      const auto answer = channels[0]->receive(rank);
      ASSERT_TRUE(answer.has_value());
      EXPECT_EQ(answer->kind, 100 * static_cast<int>(i) + rank);
      EXPECT_EQ(text_of(*answer), bodies[i]);
    }
  }
  EXPECT_EQ(channels[0]->receive(2)->kind, 60'002);
  std::thread leader([&] { EXPECT_TRUE(channels[0]->end()); });
  for (std::thread& follower : followers) follower.join();
  EXPECT_TRUE(channels[1]->end());
  EXPECT_TRUE(channels[2]->end());
  leader.join();
  for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(channels[0]->receive(rank), std::nullopt);  // no more came
}

TEST(ControlChannelTest, KeepsMessagesOfSeveralThreadsWhole) {
  const auto channels = connect_all(2, 0.5);  // many beats in between
  std::vector<std::thread> senders;
  for (int i = 0; i < 4; ++i) {
    senders.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n)
        channels[1]->send(0, static_cast<std::uint16_t>(i),
                          bytes_of(std::string(n * 97, static_cast<char>('a' + i))));
    });
  }
  std::array<int, 4> next{};
  for (int n = 0; n < 4 * 200; ++n) {
    const auto message = channels[0]->receive(1);
    ASSERT_TRUE(message.has_value());
    ASSERT_LT(message->kind, 4);
    EXPECT_EQ(text_of(*message),
              std::string(next[message->kind]++ * 97, static_cast<char>('a' + message->kind)));
  }
  for (std::thread& sender : senders) sender.join();
}

TEST(ControlChannelTest, EndsInOrderOnBothSides) {
  const auto channels = connect_all(3);
  for (const auto& channel : channels)
    channel->on_loss([](const Loss& loss) { ADD_FAILURE() << loss.text(); });
  channels[0]->broadcast(1, bytes_of("last order"));
  std::thread leader([&] { EXPECT_TRUE(channels[0]->end()); });
  for (int rank = 1; rank < 3; ++rank) {
    ControlChannel& channel = *channels[static_cast<std::size_t>(rank)];
    EXPECT_EQ(receive_text(channel, 0), "last order");
    EXPECT_EQ(channel.receive(0), std::nullopt);
    channel.check();
    channel.send(0, 2, bytes_of("nobody takes this"));  // no Error: rank 0 may end at any time
  }
  EXPECT_TRUE(channels[1]->end());
  EXPECT_TRUE(channels[2]->end());
  leader.join();
  for (const auto& channel : channels) EXPECT_FALSE(channel->loss().has_value());
}

TEST(ControlChannelTest, AFollowerMayEndFirstAndTakesNoOrdersThen) {
  const auto channels = connect_all(2);
  channels[1]->send(0, 1, bytes_of("I go"));
  EXPECT_TRUE(channels[1]->end());
  EXPECT_EQ(receive_text(*channels[0], 1), "I go");
  EXPECT_EQ(channels[0]->receive(1), std::nullopt);
  expect_error([&] { channels[0]->send(1, 1, {}); }, {"rank 1 of 2 has ended"});
  channels[0]->check();
  EXPECT_TRUE(channels[0]->end());
}

TEST(ControlChannelTest, OneRankHasNobodyToLose) {
  ControlListener listener;
  const auto channel = listener.accept(1);
  channel->broadcast(1, {});
  EXPECT_TRUE(channel->end());
}

TEST(LossTest, TellsWhoWhenAndWhy) {
  EXPECT_EQ((Loss{2, 4, 17, "its process has ended"}).text(),
            "rank 2 of 4 is lost in step 17: its process has ended");
  EXPECT_EQ((Loss{1, 2, 0, "it hides"}).text(), "rank 1 of 2 is lost before its first step: it hides");
}

TEST(LossTest, AKilledPeerIsNoticedAtOnceByAllAndWhatItSaidIsKept) {
  ControlListener listener;
  PeerProcess peer(2, listener.invitation());
  auto joining =
      std::async(std::launch::async, [text = listener.invitation()] { return join_control(text, 1); });
  const auto channel = listener.accept(3, kPatient, 60s);
  const auto other = joining.get();
  std::promise<Loss> called;
  channel->on_loss([&](const Loss& loss) { called.set_value(loss); });
  ASSERT_EQ(receive_text(*channel, 2), "here");
  channel->check();

  const auto begin = steady_clock::now();
  peer.kill_and_wait();
  const std::string text = "rank 2 of 3 is lost in step 17: its process has ended";
  expect_error([&] { channel->receive(2); }, {text});
  expect_error([&] { other->receive(0); }, {text});
  EXPECT_LT(steady_clock::now() - begin, 20s);  // far below the watchdog's time
  for (ControlChannel* each : {channel.get(), other.get()}) {
    expect_error([&] { each->check(); }, {text});
    ASSERT_TRUE(each->loss().has_value());
    EXPECT_EQ(each->loss()->rank, 2);
    EXPECT_EQ(each->loss()->last_step, 17U);
    EXPECT_FALSE(each->end());
  }
  expect_error([&] { channel->send(1, 1, {}); }, {text});  // one loss is everybody's
  expect_error([&] { channel->receive(1); }, {text});
  EXPECT_EQ(called.get_future().get().text(), text);
  int calls = 0;
  other->on_loss([&](const Loss&) { ++calls; });  // too late to wait for it
  EXPECT_EQ(calls, 1);
}

TEST(LossTest, WhoIsAliveButDoesNotAnswerIsNotWaitedForForEver) {
  auto channels = connect_all(3);
  channels[1]->send(0, 5, bytes_of("done"));
  const auto begin = steady_clock::now();
  expect_error([&] { channels[0]->receive(2, 0.3); }, {"rank 2 of 3 is lost: no answer for 0.3 s"});
  EXPECT_GE(steady_clock::now() - begin, 300ms);
  EXPECT_TRUE(channels[0]->receive(1, 0.3).has_value());
}

TEST(LossTest, WhatAPeerSaidBeforeItDiedComesFirst) {
  auto channels = connect_all(2);
  channels[1]->send(0, 5, bytes_of("out of memory"));
  channels[1].reset();
  while (!channels[0]->loss()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(receive_text(*channels[0], 1), "out of memory");
  expect_error([&] { channels[0]->receive(1); }, {"rank 1 of 2 is lost before its first step"});
  expect_error([&] { channels[0]->receive(1); }, {"rank 1 of 2 is lost"});
}

TEST(LossTest, AFollowerThatGivesUpSaysWhyToAll) {
  auto channels = connect_all(3);
  channels[1]->set_progress(6);
  channels[1]->send(0, 5, bytes_of("done"));
  channels[1]->give_up("out of memory");
  channels[1].reset();
  const std::string text = "rank 1 of 3 is lost in step 6: out of memory";
  while (!channels[0]->loss()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(receive_text(*channels[0], 1), "done");
  expect_error([&] { channels[0]->receive(1); }, {text});
  expect_error([&] { channels[2]->receive(0); }, {text});
}

TEST(LossTest, FollowersNoticeTheDeathOfRank0) {
  auto channels = connect_all(3);
  channels[0]->set_progress(4);
  channels[0]->broadcast(1, {});
  EXPECT_TRUE(channels[1]->receive(0).has_value());
  EXPECT_TRUE(channels[2]->receive(0).has_value());
  channels[0].reset();
  for (int rank = 1; rank < 3; ++rank) {
    expect_error([&] { channels[static_cast<std::size_t>(rank)]->receive(0); },
                 {"rank 0 of 3 is lost in step 4: its process has ended"});
  }
}

TEST(LossTest, AStoppedPeerIsNoticedWithinTheWatchdogsTimeAndHearsOfItLater) {
  ControlListener listener;
  PeerProcess peer(1, listener.invitation());
  const auto channel = listener.accept(2, 1.0, 60s);
  ASSERT_EQ(receive_text(*channel, 1), "here");
  peer.stop();
  const auto begin = steady_clock::now();
  expect_error([&] { channel->receive(1); },
               {"rank 1 of 2 is lost in step 17: it has not been heard of for 1 s"});
  EXPECT_GT(steady_clock::now() - begin, 300ms);
  EXPECT_LT(steady_clock::now() - begin, 20s);
  peer.go_on();
  EXPECT_EQ(WEXITSTATUS(peer.exit_status()), 4);
}

// Beats alone keep a peer: nothing else is said for twice the watchdog's time. Each carries the step.
TEST(LossTest, APeerThatIsSilentButLivesIsKept) {
  const auto channels = connect_all(2, 1.5);
  channels[1]->set_progress(9);
  std::this_thread::sleep_for(3s);
  channels[0]->check();
  channels[1]->check();
  channels[1]->send(0, 1, bytes_of("still here"));
  EXPECT_EQ(receive_text(*channels[0], 1), "still here");
}

TEST(ControlChannelTest, AMessageMayBeLongerThanAFrame) {
  const auto channels = connect_all(2);
  std::vector<std::byte> body(2 * FrameHeader::kMaxBody + 5);
  for (std::size_t i = 0; i < body.size(); i += 4093) body[i] = static_cast<std::byte>(i * 31 >> 7);
  auto received = std::async(std::launch::async, [&] { return channels[1]->receive(0); });
  channels[0]->send(1, 7, body);
  const std::optional<ControlMessage> message = received.get();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->kind, 7);
  EXPECT_TRUE(message->body == body);
  channels[0]->send(1, 8, bytes_of("next"));
  EXPECT_EQ(receive_text(*channels[1], 0), "next");
}

TEST(LossTest, BeatsTellThePeersStep) {
  auto channels = connect_all(2, 0.5);
  channels[1]->set_progress(9);
  std::this_thread::sleep_for(1s);  // ten beats
  channels[1].reset();
  expect_error([&] { channels[0]->receive(1); }, {"rank 1 of 2 is lost in step 9"});
}

TEST(LossTest, SendingToAStoppedPeerGivesUp) {
  ControlListener listener;
  PeerProcess peer(1, listener.invitation());
  const auto channel = listener.accept(2, 1.0, 60s);
  ASSERT_EQ(receive_text(*channel, 1), "here");
  peer.stop();
  const std::vector<std::byte> body(FrameHeader::kMaxBody);
  expect_error([&] { channel->send(1, 1, body); }, {"rank 1 of 2 is lost in step 17", "not been heard of"});
}

}  // namespace
}  // namespace quire
