#include "parallel/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>

#include "base/error.h"
#include "parallel/collectives.h"
#include "parallel/lone_rank.h"
#include "parallel/rank_sum.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using testing::rank_order;
using testing::rank_values;
using testing::same_bits;
using testing::sum_of_ranks;

void add_all(const Tensor& out, std::span<const std::byte* const> parts) {
  add_in_order(out, parts, 0, out.numel());
}

std::vector<const std::byte*> pointers(std::initializer_list<const void*> parts) {
  std::vector<const std::byte*> result;
  for (const void* part : parts) result.push_back(static_cast<const std::byte*>(part));
  return result;
}

// Calls function(communicator) in one thread a rank and returns what each threw: "" for nothing.
using RankFunction = std::function<void(Communicator&)>;
std::vector<std::string> run(ThreadRanks& ranks, int size, const RankFunction& function) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = ranks.connect(rank);
      try {
        function(*comm);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(RankSumTest, AddsInRankOrder) {
  // In any other order, one of the small values is lost in the large one, or none is.
  const std::array<float, 1> large = {1e8F};
  const std::array<float, 1> small = {1.0F};
  const std::array<float, 1> minus = {-1e8F};
  float sum = -1.0F;
  const Tensor out(&sum, DType::kF32, {1});
  add_all(out, pointers({&large, &small, &minus}));
  EXPECT_EQ(sum, 0.0F);
  add_all(out, pointers({&large, &minus, &small}));
  EXPECT_EQ(sum, 1.0F);
}

TEST(RankSumTest, RoundsOnceAtTheEnd) {
  // 257 is halfway between two values of bfloat16, as 2049 is in float16: rounding each addition stays there.
  for (const auto& [dtype, base] : {std::pair{DType::kBF16, 256.0F}, std::pair{DType::kF16, 2048.0F}}) {
    const float one = 1.0F;
    std::uint16_t large_bits = 0;
    std::uint16_t one_bits = 0;
    std::uint16_t sum_bits = 0;
    convert(DType::kF32, &base, dtype, &large_bits, 1);
    convert(DType::kF32, &one, dtype, &one_bits, 1);
    add_all(Tensor(&sum_bits, dtype, {1}), pointers({&large_bits, &one_bits, &one_bits}));
    float sum = 0;
    convert(dtype, &sum_bits, DType::kF32, &sum, 1);
    EXPECT_EQ(sum, base + 2.0F) << to_string(dtype);
  }
}

template <typename T>
void expect_sums(int num_parts, std::int64_t n) {
  SCOPED_TRACE(std::to_string(num_parts) + " parts of " + std::to_string(n));
  std::vector<std::vector<T>> parts;
  std::vector<const std::byte*> data;
  for (int part = 0; part < num_parts; ++part) {
    parts.push_back(rank_values<T>(part, 5, n));
    data.push_back(reinterpret_cast<const std::byte*>(parts.back().data()));
  }
  const std::vector<T> expected = sum_of_ranks<T>(rank_order(num_parts), 5, n);
  std::vector<T> sums(expected.size());
  add_all(Tensor(sums.data(), testing::dtype_of<T>(), {n}), data);
  EXPECT_TRUE(same_bits(sums, expected));

  // In the place of the last part, slice by slice.
  const Tensor last(parts.back().data(), testing::dtype_of<T>(), {n});
  for (std::int64_t begin = 0; begin < n; begin += 700) {
    add_in_order(last, data, begin, std::min<std::int64_t>(700, n - begin));
  }
  EXPECT_TRUE(same_bits(parts.back(), expected));
}

TEST(RankSumTest, AddsAnyNumberOfPartsOfAnySize) {
  for (const int num_parts : {1, 2, 3, 7}) {
    for (const std::int64_t n : {0, 1, 31, 1024, 2500}) {
      expect_sums<float>(num_parts, n);
      expect_sums<BFloat16>(num_parts, n);
      expect_sums<Float16>(num_parts, n);
    }
  }
}

TEST(RankSumTest, ASliceLeavesTheRestAlone) {
  std::vector<float> values(10, 1.0F);
  std::vector<float> sums(10, 9.0F);
  add_in_order(Tensor(sums.data(), DType::kF32, {2, 5}), pointers({values.data(), values.data()}), 3, 4);
  EXPECT_EQ(sums, (std::vector<float>{9, 9, 9, 2, 2, 2, 2, 9, 9, 9}));
}

// The checks of sums would hold for any order if it did not matter to their values.
TEST(CollectivesTest, TheOrderOfRanksShowsInTheSumsThatAreChecked) {
  const std::vector<int> backwards = {2, 1, 0};
  EXPECT_FALSE(
      same_bits(sum_of_ranks<float>(rank_order(3), 1, 1000), sum_of_ranks<float>(backwards, 1, 1000)));
}

class ThreadRanksTest : public ::testing::TestWithParam<int> {
 protected:
  void run_all(const RankFunction& function) {
    const std::vector<std::string> errors = run(ranks_, GetParam(), function);
    EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
  }
  ThreadRanks ranks_{GetParam()};
};

TEST_P(ThreadRanksTest, KnowTheirPlaces) {
  for (int rank = 0; rank < GetParam(); ++rank) {
    const auto comm = ranks_.connect(rank);
    EXPECT_EQ(comm->rank(), rank);
    EXPECT_EQ(comm->size(), GetParam());
  }
}

TEST_P(ThreadRanksTest, AllReduceAddsInRankOrderOnEveryRank) { run_all(testing::check_sums); }

TEST_P(ThreadRanksTest, AllGatherPutsRowsSideBySide) { run_all(testing::check_gathers); }

TEST_P(ThreadRanksTest, OneOperationFollowsAnother) {
  run_all([](Communicator& comm) { testing::check_rounds(comm, 500, [] {}); });
}

TEST_P(ThreadRanksTest, RanksThatComeLateAreWaitedFor) {
  run_all([](Communicator& comm) {
    std::mt19937 random(static_cast<std::uint32_t>(comm.rank()));
    testing::check_rounds(comm, 100, [&] {
      if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadRanksTest, ::testing::Values(1, 2, 3, 4, 7));

TEST(ThreadRanksFailureTest, WakesThoseWhoWaitAndRefusesThoseWhoCome) {
  ThreadRanks ranks(3);
  const auto reduce = [&](Communicator& comm) {
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others sleep by now
      ranks.fail("no memory on rank 2");
      ranks.fail("a later reason");
    }
    float value = 1.0F;
    comm.all_reduce(Tensor(&value, DType::kF32, {1}));
  };
  EXPECT_EQ(run(ranks, 3, reduce), std::vector<std::string>(3, "no memory on rank 2"));
  // Nobody waits now, and the failure still holds.
  EXPECT_EQ(run(ranks, 3, testing::check_gathers), std::vector<std::string>(3, "no memory on rank 2"));
}

TEST(ThreadRanksFailureTest, IsAnErrorAndHoldsForOneRankToo) {
  ThreadRanks ranks(1);
  const auto comm = ranks.connect(0);
  float value = 1.0F;
  const Tensor tensor(&value, DType::kF32, {1});
  ranks.fail("");
  EXPECT_THROW(comm->all_reduce(tensor), Error);
  EXPECT_THROW(comm->all_gather(tensor, tensor), Error);
  ranks.reset();
  comm->all_reduce(tensor);
  EXPECT_EQ(value, 1.0F);
}

TEST(ThreadRanksFailureTest, AResetMakesTheRanksMeetAgain) {
  ThreadRanks ranks(4);
  for (int round = 0; round < 20; ++round) {
    const std::string why = "round " + std::to_string(round);
    const auto wait_for_rank_0 = [&](Communicator& comm) {
      if (comm.rank() == 0) return ranks.fail(why);
      testing::check_sums(comm);
    };
    EXPECT_EQ(run(ranks, 4, wait_for_rank_0), (std::vector<std::string>{"", why, why, why}));
    ranks.reset();
    EXPECT_EQ(run(ranks, 4, testing::check_gathers), std::vector<std::string>(4));
  }
}

// A failure from outside falls between two operations: no rank keeps a sum that another has not got, or
// leaves while others still use its tensor.
TEST(ThreadRanksFailureTest, AnOperationIsDoneByAllRanksOrByNone) {
  constexpr int kRanks = 4;
  ThreadRanks ranks(kRanks);
  for (int round = 0; round < 30; ++round) {
    std::array<std::uint32_t, kRanks> done{};
    std::thread outside([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
      ranks.fail("stop");
    });
    const std::vector<std::string> errors = run(ranks, kRanks, [&](Communicator& comm) {
      std::uint32_t& count = done[static_cast<std::size_t>(comm.rank())];
      for (;; ++count) testing::check_sum<float>(comm, 1, 100, count % 8);
    });
    outside.join();
    EXPECT_EQ(errors, std::vector<std::string>(kRanks, "stop"));
    for (const std::uint32_t count : done) EXPECT_EQ(count, done[0]);
    ranks.reset();
  }
}

// Runs a wrong set of calls: every rank must be told, with nothing written, and the ranks stay usable.
void expect_refused(const RankFunction& function, const std::string& text) {
  ThreadRanks ranks(3);
  for (const std::string& error : run(ranks, 3, function)) EXPECT_THAT(error, HasSubstr(text));
  EXPECT_EQ(run(ranks, 3, testing::check_sums), std::vector<std::string>(3));
}

TEST(ThreadRanksMismatchTest, OtherShapesAreReportedOnEveryRank) {
  expect_refused(
      [](Communicator& comm) {
        std::vector<float> values(6, 1.0F);
        const std::int64_t rows = comm.rank() == 1 ? 3 : 2;
        EXPECT_THROW(comm.all_reduce(Tensor(values.data(), DType::kF32, {rows, 2})), InternalError);
        EXPECT_EQ(values, std::vector<float>(6, 1.0F));
        comm.all_reduce(Tensor(values.data(), DType::kF32, {rows, 2}));
      },
      "rank 0 calls all_reduce of float32 [2, 2] into float32 [2, 2], rank 1 calls all_reduce of "
      "float32 [3, 2]");
}

TEST(ThreadRanksMismatchTest, OtherOperationsAreReportedOnEveryRank) {
  expect_refused(
      [](Communicator& comm) {
        float value = 1.0F;
        const Tensor tensor(&value, DType::kF32, {1});
        if (comm.rank() == 2) return comm.all_gather(tensor, tensor);
        comm.all_reduce(tensor);
      },
      "rank 2 calls all_gather");
}

TEST(ThreadRanksMismatchTest, OtherTypesAreReportedOnEveryRank) {
  expect_refused(
      [](Communicator& comm) {
        float value = 1.0F;
        comm.all_reduce(Tensor(&value, comm.rank() == 1 ? DType::kF16 : DType::kBF16, {1}));
      },
      "rank 1 calls all_reduce of float16");
}

TEST(ThreadRanksMismatchTest, WhatOneRankAloneGetsWrongIsReportedOnEveryRank) {
  expect_refused(
      [](Communicator& comm) {  // not contiguous
        std::vector<float> values(8);
        const Tensor tensor(values.data(), DType::kF32, {2, 4});
        const Tensor dense(values.data(), DType::kF32, {2, 3});
        comm.all_reduce(comm.rank() == 2 ? tensor.columns(0, 3) : dense);
      },
      "all_reduce of float32 [2, 3]");
  expect_refused(
      [](Communicator& comm) {  // no memory
        float value = 1.0F;
        comm.all_reduce(Tensor(comm.rank() == 2 ? nullptr : &value, DType::kF32, {1}));
      },
      "all_reduce of float32 [1]");
}

TEST(ThreadRanksMismatchTest, TensorsThatDoNotFitAreReported) {
  expect_refused(
      [](Communicator& comm) {
        std::vector<float> values(12);
        comm.all_gather(Tensor(values.data(), DType::kF32, {2, 5}),
                        Tensor(values.data(), DType::kF32, {2, 2}));
      },
      "all_gather of float32 [2, 2] into float32 [2, 5]");
  expect_refused(
      [](Communicator& comm) {
        std::int32_t value = 0;
        comm.all_reduce(Tensor(&value, DType::kI32, {1}));
      },
      "all_reduce of int32 [1]");
}

TEST(AbsentRanksTest, KnowTheirPlaceAndComputeNothing) {
  AbsentRanks ranks(2, 4);
  EXPECT_EQ(ranks.rank(), 2);
  EXPECT_EQ(ranks.size(), 4);
  float value = 1.0F;
  const Tensor tensor(&value, DType::kF32, {1, 1});
  EXPECT_THROW(ranks.all_reduce(tensor), InternalError);
  EXPECT_THROW(ranks.all_gather(tensor, tensor), InternalError);
  EXPECT_THROW(AbsentRanks(4, 4), InternalError);
}

}  // namespace
}  // namespace quire
