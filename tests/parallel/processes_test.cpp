// Run by mpirun; the test parallel:UnderMpirun does.
#include "parallel/processes.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "expect_error.h"
#include "parallel/collectives.h"
#include "parallel/control_listener.h"

namespace quire {
namespace {

class ProcessesTest : public ::testing::Test {
 protected:
  // MPI ends once, after all tests.
  static void TearDownTestSuite() {
    if (started_processes() != nullptr) started_processes()->finish();
  }
  void SetUp() override {
    if (started_processes() == nullptr) GTEST_SKIP() << "needs mpirun -np 2 or more";
  }
  static void alive() {}
};

TEST_F(ProcessesTest, KnowEachOther) {
  const Processes& processes = *started_processes();
  EXPECT_EQ(std::to_string(processes.size()), std::getenv("OMPI_COMM_WORLD_SIZE"));
  EXPECT_EQ(std::to_string(processes.rank()), std::getenv("OMPI_COMM_WORLD_RANK"));
}

TEST_F(ProcessesTest, HearWhatOneSays) {
  Processes& processes = *started_processes();
  for (int root = 0; root < processes.size(); ++root) {
    for (const std::size_t length : {0, 1, 100'000}) {
      const std::string mine(length + processes.rank(), static_cast<char>('a' + processes.rank()));
      EXPECT_EQ(processes.broadcast(mine, root), std::string(length + root, static_cast<char>('a' + root)));
    }
  }
}

TEST_F(ProcessesTest, ComputeTogether) {
  const auto comm = started_processes()->connect(alive);
  ASSERT_EQ(comm->rank(), started_processes()->rank());
  ASSERT_EQ(comm->size(), started_processes()->size());
  testing::check_sums(*comm);
  testing::check_gathers(*comm);
}

// Tensors above the 4 MiB that go at once.
TEST_F(ProcessesTest, ComputeOnLargeTensors) {
  const auto comm = started_processes()->connect(alive);
  testing::check_sum<float>(*comm, 3, 700'001, 1);
  testing::check_sum<BFloat16>(*comm, 5, 1'000'003, 2);
  testing::check_gather<BFloat16>(*comm, 7, 600'001, 3, 3);
}

TEST_F(ProcessesTest, WaitForWhoComesLate) {
  const auto comm = started_processes()->connect(alive);
  int n = 0;
  testing::check_rounds(*comm, 40, [&] {
    if (n++ % comm->size() == comm->rank()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  });
}

TEST_F(ProcessesTest, KnowThatTheyAreOnOneHost) {
  EXPECT_EQ(started_processes()->num_on_host(), started_processes()->size());
  EXPECT_EQ(started_processes()->place_on_host(), started_processes()->rank());
}

TEST_F(ProcessesTest, FindEachOtherOverTheControlChannel) {
  Processes& processes = *started_processes();
  std::unique_ptr<ControlChannel> channel;
  if (processes.rank() == 0) {
    ControlListener listener;
    processes.broadcast(listener.invitation(), 0);
    channel = listener.accept(processes.size());
    channel->broadcast(7, {});
    for (int rank = 1; rank < channel->size(); ++rank) {
      const auto answer = channel->receive(rank);
      ASSERT_TRUE(answer.has_value());
      EXPECT_EQ(answer->kind, 7 + rank);
    }
  } else {
    channel = join_control(processes.broadcast("", 0), processes.rank());
    const auto order = channel->receive(0);
    ASSERT_TRUE(order.has_value());
    channel->send(0, static_cast<std::uint16_t>(order->kind + processes.rank()), {});
    EXPECT_EQ(channel->receive(0), std::nullopt);
  }
  EXPECT_EQ(channel->size(), processes.size());
  EXPECT_TRUE(channel->end());
}

// As if rank 0 were lost: it comes only after the others gave up, so that MPI can still end in order.
TEST_F(ProcessesTest, GiveUpWaitingForWhoIsLost) {
  Processes& processes = *started_processes();
  static float value = 1;  // MPI uses it until then
  const Tensor tensor(&value, DType::kF32, {1});
  const bool waits = processes.rank() != 0;
  static const auto comm = processes.connect([waits] {
    if (waits) fail("rank 0 is lost");
  });
  if (waits) {
    expect_error([&] { comm->all_reduce(tensor); }, {"rank 0 is lost"});
    EXPECT_THROW(comm->all_reduce(tensor), InternalError);  // not used again
  }
  for (int rank = 1; rank < processes.size(); ++rank) processes.broadcast("gave up", rank);
  if (!waits) comm->all_reduce(tensor);
}

// What a launcher's environment says, of a process that none started.
class StartedProcessesTest : public ::testing::Test {
 protected:
  static constexpr std::array kVariables{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                         "SLURM_STEP_NUM_TASKS"};
  void SetUp() override {
    for (const char* name : kVariables) {
      if (std::getenv(name) != nullptr) GTEST_SKIP() << "started by mpirun";
    }
  }
  void TearDown() override {
    for (const char* name : kVariables) ::unsetenv(name);
  }
};

TEST_F(StartedProcessesTest, AreNoneWhereAProcessWasStartedAlone) {
  EXPECT_EQ(started_processes(), nullptr);
  ::setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  ::setenv("PMIX_RANK", "0", 1);
  EXPECT_EQ(started_processes(), nullptr);
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  EXPECT_EQ(started_processes(), nullptr);
}

TEST_F(StartedProcessesTest, AreAnErrorWhereMpiCannotFindThem) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    ::setenv(name, "3", 1);
    expect_error([] { started_processes(); }, {"mpirun started"});
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace quire
