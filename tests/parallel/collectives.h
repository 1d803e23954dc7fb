#pragma once

// What every communicator promises, checked by the ranks themselves: each rank calls the same check, whatever
// connects them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "ops/communicator.h"

namespace quire::testing {

// n values that every rank can compute for every rank. Magnitudes lie so far apart that the order of a sum
// shows in its bits.
template <typename T>
std::vector<T> rank_values(int rank, std::uint32_t seed, std::int64_t n) {
  std::mt19937 random(seed * 1009U + static_cast<std::uint32_t>(rank));
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float mantissa = 1.0F + static_cast<float>(bits >> 9) * 0x1p-23F;
    const float sign = (bits & 1U) != 0 ? -1.0F : 1.0F;
    value = from_float<T>(sign * std::ldexp(mantissa, static_cast<int>((bits >> 1) & 7U) - 4));
  }
  return values;
}

// The sum over the ranks in the given order, rounded at the end.
template <typename T>
std::vector<T> sum_of_ranks(const std::vector<int>& order, std::uint32_t seed, std::int64_t n) {
  std::vector<float> sums(static_cast<std::size_t>(n), -0.0F);  // -0 + x is x
  for (const int rank : order) {
    const std::vector<T> values = rank_values<T>(rank, seed, n);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += to_float(values[i]);
  }
  std::vector<T> rounded(sums.size());
  std::transform(sums.begin(), sums.end(), rounded.begin(), from_float<T>);
  return rounded;
}

inline std::vector<int> rank_order(int size) {
  std::vector<int> order;
  for (int rank = 0; rank < size; ++rank) order.push_back(rank);
  return order;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return DType::kF16;
  return DType::kF32;
}

template <typename T>
void check_sum(Communicator& comm, std::int64_t rows, std::int64_t n, std::uint32_t seed) {
  std::vector<T> values = rank_values<T>(comm.rank(), seed, rows * n);
  comm.all_reduce(Tensor(values.data(), dtype_of<T>(), {rows, n}));
  EXPECT_TRUE(same_bits(values, sum_of_ranks<T>(rank_order(comm.size()), seed, rows * n)))
      << "rank " << comm.rank() << " of " << comm.size() << ", " << to_string(dtype_of<T>()) << " [" << rows
      << ", " << n << "]";
}

// Rows of `in` and `out` lie further apart than they are long; what lies between stays as it is.
template <typename T>
void check_gather(Communicator& comm, std::int64_t rows, std::int64_t n, std::int64_t padding,
                  std::uint32_t seed) {
  const std::int64_t in_stride = n + padding;
  const std::int64_t out_stride = comm.size() * n + padding;
  std::vector<T> in = rank_values<T>(comm.rank(), seed, rows * in_stride);
  const std::vector<T> before = rank_values<T>(comm.size() + comm.rank(), seed, rows * out_stride);
  std::vector<T> out = before;
  std::vector<T> expected = before;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::vector<T> theirs = rank_values<T>(rank, seed, rows * in_stride);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(theirs.begin() + row * in_stride, n, expected.begin() + row * out_stride + rank * n);
    }
  }
  comm.all_gather(Tensor(out.data(), dtype_of<T>(), {rows, out_stride}).columns(0, comm.size() * n),
                  Tensor(in.data(), dtype_of<T>(), {rows, in_stride}).columns(0, n));
  EXPECT_TRUE(same_bits(out, expected)) << "rank " << comm.rank() << " of " << comm.size() << ", " << rows
                                        << " rows of " << n << " + " << padding;
  EXPECT_TRUE(same_bits(in, rank_values<T>(comm.rank(), seed, rows * in_stride)));
}

// Every row is in one rank's share, in order, and only the last ranks have fewer than the others.
inline void check_share(Communicator& comm, std::int64_t rows, std::int64_t n, std::uint32_t seed) {
  const std::int64_t size = comm.size();
  const std::int64_t full = (rows + size - 1) / size;
  const auto [begin, count] = comm.share_of(rows);
  EXPECT_EQ(begin, std::min(comm.rank() * full, rows));
  EXPECT_EQ(count, std::min(full, rows - begin));
  std::vector<float> in = rank_values<float>(comm.rank(), seed, rows * n);
  std::vector<float> out(static_cast<std::size_t>(rows * n * size));
  const Tensor share = comm.gather_share(Tensor(out.data(), DType::kF32, {rows, n * size}),
                                         Tensor(in.data(), DType::kF32, {rows, n}));
  ASSERT_EQ(share.dim(0), count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> theirs = rank_values<float>(rank, seed, rows * n);
    for (std::int64_t row = 0; row < count; ++row) {
      const float* values = share.data_as<float>() + row * share.stride(0) + rank * n;
      EXPECT_TRUE(std::equal(values, values + n, theirs.begin() + (begin + row) * n))
          << "rank " << comm.rank() << " of " << size << ", row " << begin + row << " of " << rows;
    }
  }
}

// Every element type, sizes that divide evenly and that don't, and none at all.
inline void check_sums(Communicator& comm) {
  for (const std::int64_t rows : {1, 3, 17}) {
    for (const std::int64_t n : {1, 5, 64, 333, 1027}) {
      const auto seed = static_cast<std::uint32_t>(rows * 2003 + n);
      check_sum<float>(comm, rows, n, seed);
      check_sum<BFloat16>(comm, rows, n, seed);
      check_sum<Float16>(comm, rows, n, seed);
    }
  }
  check_sum<float>(comm, 0, 64, 1);
}

inline void check_gathers(Communicator& comm) {
  for (const std::int64_t rows : {0, 1, 7}) {
    for (const std::int64_t n : {1, 33, 512}) {
      for (const std::int64_t padding : {0, 3}) {
        const auto seed = static_cast<std::uint32_t>(rows * 701 + n + padding);
        check_gather<float>(comm, rows, n, padding, seed);
        check_gather<BFloat16>(comm, rows, n, padding, seed);
      }
    }
  }
  for (const std::int64_t rows : {0, 1, 5, 8, 33})
    check_share(comm, rows, 21, static_cast<std::uint32_t>(rows));
}

// Operations in an order of chance, the same on every rank, of sizes of chance. before_each() runs ahead of
// every operation: it may delay this rank.
template <typename F>
void check_rounds(Communicator& comm, int rounds, const F& before_each) {
  std::mt19937 random(17);
  for (int round = 0; round < rounds; ++round) {
    const auto seed = static_cast<std::uint32_t>(round);
    const auto rows = static_cast<std::int64_t>(random() % 4);
    const auto n = static_cast<std::int64_t>(1 + random() % 200);
    const auto operation = random() % 4;
    before_each();
    if (operation == 0) check_sum<float>(comm, rows, n, seed);
    if (operation == 1) check_sum<BFloat16>(comm, rows, n, seed);
    if (operation == 2) check_gather<BFloat16>(comm, rows, n, round % 3, seed);
    if (operation == 3) check_share(comm, rows, n, seed);
  }
}

}  // namespace quire::testing
