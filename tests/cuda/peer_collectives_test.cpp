// Collectives over peer memory, among ranks on the GPUs there are: several share one, each with a stream, and
// few blocks each so that all are on it at once.
#include "backends/cuda/kernels/peer_collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/elementwise.h"
#include "cuda/device_memory.h"
#include "layers/norm.h"
#include "parallel/collectives.h"

namespace quire::cuda {
namespace {

using quire::testing::dtype_of;
using quire::testing::rank_order;
using quire::testing::rank_values;
using quire::testing::same_bits;
using quire::testing::sum_of_ranks;

constexpr std::size_t kSlotBytes = 1 << 18;

// A rank's device, stream and memory.
class Rank {
 public:
  explicit Rank(int device) : device_(device) {
    use();
    context_ = make_context(device);
    check(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), "a stream");
  }
  ~Rank() {
    use();
    cudaStreamSynchronize(context_.stream);
    for (void* memory : memory_) cudaFree(memory);
    cudaStreamDestroy(context_.stream);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void use() const { check(cudaSetDevice(device_), "a device"); }
  int device() const { return device_; }
  const LaunchContext& context() const { return context_; }

  std::byte* allocate(std::size_t bytes) {
    use();
    void* data = nullptr;
    check(cudaMalloc(&data, std::max<std::size_t>(bytes, 16)), "memory");
    memory_.push_back(data);
    return static_cast<std::byte*>(data);
  }
  template <typename T>
  Tensor upload(const std::vector<T>& values, std::vector<std::int64_t> shape) {
    std::byte* data = allocate(values.size() * sizeof(T));
    // In the kernels' stream: another one's copy may still be under way when it returns.
    check(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                          context_.stream),
          "upload");
    check(cudaStreamSynchronize(context_.stream), "upload");
    return Tensor(data, dtype_of<T>(), {shape[0], shape[1]}, DeviceKind::kCuda);
  }
  template <typename T>
  std::vector<T> download(const Tensor& tensor) const {
    use();
    check(cudaStreamSynchronize(context_.stream), "kernels under test");
    std::vector<T> values(static_cast<std::size_t>(tensor.numel()));
    check(cudaMemcpy(values.data(), tensor.data(), tensor.bytes(), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  int device_;
  LaunchContext context_;
  std::vector<void*> memory_;
};

NormParams norm_of(NormKind kind, const Tensor& vector) {
  if (kind == NormKind::kNone) return {};
  return {vector, kind == NormKind::kLayer ? vector : Tensor(), 1e-6F};
}

class PeerCollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!testing::has_gpu()) GTEST_SKIP() << "no GPU here";
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "devices");
    check(cudaHostAlloc(reinterpret_cast<void**>(&signs_), sizeof(PeerSigns) * kMaxPeers,
                        cudaHostAllocPortable | cudaHostAllocMapped),
          "signs");
    Peers peers{.rank = 0, .size = size(), .max_blocks = 2, .slot_bytes = kSlotBytes};
    for (int r = 0; r < size(); ++r) {
      signs_[r] = {};
      ranks_.push_back(std::make_unique<Rank>(r % devices));
      peers.inboxes[r] = ranks_.back()->allocate(inbox_bytes(size(), kSlotBytes));
      clear_inbox(ranks_.back()->context(), peers.inboxes[r], inbox_bytes(size(), kSlotBytes));
      check(cudaStreamSynchronize(ranks_.back()->context().stream), "clearing");
      for (int d = 0; d < devices; ++d) {
        if (d != ranks_.back()->device() && cudaDeviceEnablePeerAccess(d, 0) != cudaSuccess)
          static_cast<void>(cudaGetLastError());
      }
    }
    for (int r = 0; r < size(); ++r) {
      peers.rank = r;
      peers.max_blocks = 1 + r % 2;  // ranks need not have equal ones
      peers.signs = &signs_[r];
      peers.turn = reinterpret_cast<std::uint32_t*>(ranks_[static_cast<std::size_t>(r)]->allocate(8));
      check(cudaMemset(peers.turn, 0, 8), "turn");
      check(cudaDeviceSynchronize(), "turn");
      peers_.push_back(peers);
    }
  }
  void TearDown() override {
    ranks_.clear();
    if (signs_ != nullptr) cudaFreeHost(signs_);
  }

  int size() const { return GetParam(); }
  Rank& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  const Peers& peers(int r) const { return peers_[static_cast<std::size_t>(r)]; }
  // Calls f(rank) for each, its device current.
  template <typename F>
  void on_all(const F& f) {
    for (int r = 0; r < size(); ++r) {
      rank(r).use();
      f(r);
    }
  }

  void gather(const std::vector<Tensor>& outs, const std::vector<Tensor>& ins) {
    on_all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      peer_gather(rank(r).context(), peers(r), outs[i], ins[i]);
    });
  }

  // Memory is taken before any kernel waits: the driver may have it wait for them.
  template <typename T>
  void expect_sums(std::uint32_t seed, std::int64_t n) {
    std::vector<Tensor> tensors;
    on_all([&](int r) { tensors.push_back(rank(r).upload(rank_values<T>(r, seed, n), {1, n})); });
    on_all(
        [&](int r) { peer_all_reduce(rank(r).context(), peers(r), tensors[static_cast<std::size_t>(r)]); });
    const auto expected = sum_of_ranks<T>(rank_order(size()), seed, n);
    on_all([&](int r) {
      EXPECT_TRUE(same_bits(rank(r).download<T>(tensors[static_cast<std::size_t>(r)]), expected))
          << "rank " << r << ", " << n << " of " << to_string(dtype_of<T>());
    });
  }

  // Against the reference backend, which adds the sum, rounded, to the residual. Returns the number of trips.
  template <typename T>
  int expect_added_and_normed(std::uint32_t seed, std::int64_t rows, std::int64_t columns, NormKind kind) {
    const std::int64_t n = rows * columns;
    int trips = 0;
    const auto residual = rank_values<float>(99, seed, n), weight = rank_values<float>(98, seed, columns);
    std::vector<Tensor> xs, outs, residuals, vectors;
    on_all([&](int r) {
      xs.push_back(rank(r).upload(rank_values<T>(r, seed, n), {rows, columns}));
      outs.push_back(rank(r).upload(std::vector<T>(static_cast<std::size_t>(n)), {rows, columns}));
      residuals.push_back(rank(r).upload(residual, {rows, columns}));
      void* const values = rank(r).upload(weight, {1, columns}).data();
      vectors.push_back(Tensor(values, DType::kF32, {columns}, DeviceKind::kCuda));
    });
    on_all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      const NormParams params = norm_of(kind, vectors[i]);
      EXPECT_TRUE(peer_all_reduce_add_norm_supports(outs[i], residuals[i], xs[i], params));
      trips = peer_norm_trips(peers(r), xs[i]);
      peer_all_reduce_add_norm(rank(r).context(), peers(r), outs[i], residuals[i], xs[i], 0.5F, params);
    });
    auto sum = sum_of_ranks<T>(rank_order(size()), seed, n);
    auto expected_residual = residual;
    auto scale = weight;
    std::vector<T> expected(static_cast<std::size_t>(n));
    const Tensor vector(scale.data(), DType::kF32, {columns});
    ReferenceBackend().add_norm(Tensor(expected.data(), dtype_of<T>(), {rows, columns}),
                                Tensor(expected_residual.data(), DType::kF32, {rows, columns}),
                                Tensor(sum.data(), dtype_of<T>(), {rows, columns}), 0.5F,
                                norm_of(kind, vector));
    const auto first = rank(0).download<T>(outs[0]);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const float want = to_float(expected[i]);
      const float limit = (sizeof(T) == 4 ? 3e-5F : 1e-2F) * (std::abs(want) + 1);
      if (!(std::abs(to_float(first[i]) - want) <= limit)) {
        ADD_FAILURE() << "element " << i << " is " << to_float(first[i]) << ", not " << want;
        break;
      }
    }
    on_all([&](int r) {
      const auto index = static_cast<std::size_t>(r);
      EXPECT_TRUE(same_bits(rank(r).download<T>(outs[index]), first)) << r;
      auto wanted = expected_residual;
      for (std::int64_t row = 0; trips == 2 && row < rows; ++row) {  // others' rows stay as they were
        if (row % size() != r)
          std::copy_n(residual.begin() + row * columns, columns, wanted.begin() + row * columns);
      }
      EXPECT_TRUE(same_bits(rank(r).download<float>(residuals[index]), wanted)) << r;
    });
    return trips;
  }

  template <typename T>
  void expect_gathered(std::uint32_t seed, std::int64_t rows, std::int64_t columns) {
    const std::int64_t padding = seed % 3 * 8;  // between two rows
    const std::int64_t in_stride = columns + padding, out_stride = columns * size() + padding;
    std::vector<Tensor> ins, outs, all;
    on_all([&](int r) {
      ins.push_back(
          rank(r).upload(rank_values<T>(r, seed, rows * in_stride), {rows, in_stride}).columns(0, columns));
      all.push_back(
          rank(r).upload(std::vector<T>(static_cast<std::size_t>(rows * out_stride)), {rows, out_stride}));
      outs.push_back(all.back().columns(0, columns * size()));
    });
    gather(outs, ins);
    std::vector<T> expected(static_cast<std::size_t>(rows * out_stride));
    for (int r = 0; r < size(); ++r) {
      const auto values = rank_values<T>(r, seed, rows * in_stride);
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(values.begin() + row * in_stride, columns,
                    expected.begin() + row * out_stride + r * columns);
    }
    on_all([&](int r) {
      EXPECT_TRUE(same_bits(rank(r).download<T>(all[static_cast<std::size_t>(r)]), expected)) << r;
    });
  }

  // Rank r gets rows from r * share on; the last ranks may have fewer.
  template <typename T>
  void expect_shares_gathered(std::uint32_t seed, std::int64_t rows, std::int64_t columns) {
    const std::int64_t share = (rows + size() - 1) / size();
    std::vector<Tensor> ins, outs;
    on_all([&](int r) {
      ins.push_back(rank(r).upload(rank_values<T>(r, seed, rows * columns), {rows, columns}));
      outs.push_back(rank(r).upload(std::vector<T>(static_cast<std::size_t>(share * columns * size())),
                                    {share, columns * size()}));
    });
    on_all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      peer_gather(rank(r).context(), peers(r), outs[i], ins[i]);
    });
    on_all([&](int r) {
      auto result = rank(r).download<T>(outs[static_cast<std::size_t>(r)]);
      std::vector<T> expected;
      for (std::int64_t row = r * share; row < std::min((r + 1) * share, rows); ++row) {
        for (int from = 0; from < size(); ++from) {
          const auto values = rank_values<T>(from, seed, rows * columns);
          expected.insert(expected.end(), values.begin() + row * columns,
                          values.begin() + (row + 1) * columns);
        }
      }
      result.resize(expected.size());
      EXPECT_TRUE(same_bits(result, expected)) << r << ", " << rows << " rows";
    });
  }

  // `op`(rank) on all ranks but the last.
  void expect_to_end_when_told(const std::function<void(int)>& op) {
    const int missing = size() - 1;
    for (int r = 0; r < missing; ++r) {
      rank(r).use();
      op(r);
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto waited_for = [&](int r) {
      return *const_cast<volatile std::uint64_t*>(&signs_[r].waiting) & 0xFF;
    };
    while (waited_for(0) == 0 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
      std::this_thread::yield();
    EXPECT_EQ(waited_for(0), static_cast<std::uint64_t>(missing + 1));
    for (int r = 0; r < missing; ++r) *const_cast<volatile std::uint32_t*>(&signs_[r].abandoned) = 1;
    for (int r = 0; r < missing; ++r) {
      rank(r).use();
      check(cudaStreamSynchronize(rank(r).context().stream), "an abandoned collective");
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Peers> peers_;
  PeerSigns* signs_ = nullptr;
};

// One after the other, so that slots are used again by what is larger and smaller; some take several
// launches.
TEST_P(PeerCollectivesTest, SumsAreTheRanksInOrder) {
  std::uint32_t seed = 0;
  for (const std::int64_t n : {1, 8, 7, 4096, 100'003, 3, 33'000, 64, 65'536, 12'345}) {
    expect_sums<float>(++seed, n);
    expect_sums<BFloat16>(++seed, n);
    expect_sums<Float16>(++seed, n);
  }
}

TEST_P(PeerCollectivesTest, SumsAreAddedAndNormedOnTheWay) {
  std::uint32_t seed = 0;
  const std::int64_t one_trip_bytes = size() > 2 ? 512 * 1024 : 6 * 1024 * 1024;
  for (const auto& [rows, columns] : {std::pair{1, 4096},
                                      {3, 64},
                                      {40, 1024},
                                      {9, 8200},
                                      {2, 5120},
                                      {1, 16384},
                                      {300, 1024},
                                      {385, 2048},  // in float32 a row more than whole launches
                                      {65, 9216},
                                      {1601, 2048},
                                      {129, 5120}}) {
    expect_added_and_normed<BFloat16>(++seed, rows, columns, NormKind::kNone);
    int trips = expect_added_and_normed<BFloat16>(++seed, rows, columns, NormKind::kRms);
    EXPECT_EQ(trips, rows * columns * 2 > one_trip_bytes ? 2 : 1);
    expect_added_and_normed<Float16>(++seed, rows, columns, NormKind::kLayer);
    if (columns > 8192) continue;
    trips = expect_added_and_normed<float>(++seed, rows, columns, NormKind::kLayer);
    EXPECT_EQ(trips, rows * columns * 4 > one_trip_bytes ? 2 : 1);
    expect_added_and_normed<float>(++seed, rows, columns, NormKind::kRms);
    expect_added_and_normed<float>(++seed, rows, columns, NormKind::kNone);
  }
}

TEST_P(PeerCollectivesTest, PartsComeToLieSideBySide) {
  std::uint32_t seed = 0;
  for (const auto& [rows, columns] :
       {std::pair{1, 4000}, {5, 3}, {170, 512}, {2, 257}, {1, 1}, {7, 64}, {3, 33}}) {
    expect_gathered<float>(++seed, rows, columns);
    if (columns % 2 == 0) expect_gathered<BFloat16>(++seed, rows, columns);
  }
}

// Among others, since a rank that gets nothing in one of them would run ahead.
TEST_P(PeerCollectivesTest, SharesOfRowsComeToLieSideBySide) {
  std::uint32_t seed = 0;
  for (const auto& [rows, columns] : {std::pair{8, 4000}, {5, 3}, {1, 64}, {57, 512}, {9, 257}, {67, 4096}}) {
    expect_shares_gathered<float>(++seed, rows, columns);
    expect_sums<float>(++seed, rows);
    if (columns % 2 == 0) expect_shares_gathered<BFloat16>(++seed, rows, columns);
  }
}

// All bits set is the mark of what has not come; as a value, it is a NaN like others.
TEST_P(PeerCollectivesTest, NoValueIsTakenForOneThatHasNotCome) {
  const std::vector<std::uint32_t> bits = {0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFF800000};
  std::vector<float> values(bits.size());
  std::memcpy(values.data(), bits.data(), bits.size() * sizeof(float));
  std::vector<Tensor> ins, outs;
  on_all([&](int r) {
    ins.push_back(rank(r).upload(values, {1, std::ssize(values)}));
    outs.push_back(rank(r).upload(std::vector<float>(values.size() * static_cast<std::size_t>(size())),
                                  {1, std::ssize(values) * size()}));
  });
  gather(outs, ins);
  on_all([&](int r) {
    const auto all = rank(r).download<float>(outs[static_cast<std::size_t>(r)]);
    for (std::size_t i = 0; i < all.size(); i += values.size()) {
      EXPECT_TRUE(std::isnan(all[i]));
      EXPECT_TRUE(std::isnan(all[i + 1]));
      EXPECT_TRUE(all[i + 2] == 0 && std::signbit(all[i + 2]));
      EXPECT_TRUE(std::isinf(all[i + 3]));
    }
  });
}

TEST_P(PeerCollectivesTest, NoValueOfASumIsTakenForOneThatHasNotCome) {
  for (const std::int64_t rows : {1, 300}) {
    constexpr std::int64_t kColumns = 1024;
    std::vector<Tensor> xs, outs, residuals, weights;
    on_all([&](int r) {
      std::vector<float> values(static_cast<std::size_t>(rows * kColumns), 1.0F);
      if (r == size() - 1) std::memset(&values[5], 0xFF, sizeof(float));
      xs.push_back(rank(r).upload(values, {rows, kColumns}));
      outs.push_back(rank(r).upload(std::vector<float>(values.size()), {rows, kColumns}));
      residuals.push_back(rank(r).upload(std::vector<float>(values.size()), {rows, kColumns}));
      void* const weight = rank(r).upload(std::vector<float>(kColumns, 1.0F), {1, kColumns}).data();
      weights.push_back(Tensor(weight, DType::kF32, {kColumns}, DeviceKind::kCuda));
    });
    on_all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      peer_all_reduce_add_norm(rank(r).context(), peers(r), outs[i], residuals[i], xs[i], 1,
                               {weights[i], {}, 1e-6F});
      peer_all_reduce(rank(r).context(), peers(r), xs[i]);
    });
    on_all([&](int r) {
      const auto sums = rank(r).download<float>(xs[static_cast<std::size_t>(r)]);
      EXPECT_TRUE(std::isnan(sums[5]));
      EXPECT_EQ(sums[4], static_cast<float>(size()));
      const auto normed = rank(r).download<float>(outs[static_cast<std::size_t>(r)]);
      for (std::size_t i = 0; i < normed.size(); ++i) {
        if (std::isnan(normed[i]) == (i < kColumns)) continue;  // of the first row, all
        ADD_FAILURE() << "element " << i << " is " << normed[i];
        break;
      }
    });
  }
}

TEST_P(PeerCollectivesTest, TokensComeToLieSideBySide) {
  std::vector<Tensor> ins, outs;
  std::vector<std::int32_t> expected;
  for (int r = 0; r < size(); ++r) expected.insert(expected.end(), {r, -2, 151'935 - r});
  on_all([&](int r) {
    const auto values = rank(r).allocate(3 * sizeof(std::int32_t));
    check(cudaMemcpy(values, &expected[3 * static_cast<std::size_t>(r)], 3 * sizeof(std::int32_t),
                     cudaMemcpyHostToDevice),
          "upload");
    ins.push_back(Tensor(values, DType::kI32, {1, 3}, DeviceKind::kCuda));
    outs.push_back(Tensor(rank(r).allocate(expected.size() * sizeof(std::int32_t)), DType::kI32,
                          {1, 3 * size()}, DeviceKind::kCuda));
  });
  gather(outs, ins);
  on_all([&](int r) {
    EXPECT_EQ(rank(r).download<std::int32_t>(outs[static_cast<std::size_t>(r)]), expected) << r;
  });
}

// A graph passes the same arguments each time; others come between.
TEST_P(PeerCollectivesTest, RecordedGraphsMayBeRepeated) {
  const std::int64_t n = 3000;
  std::vector<Tensor> tensors;
  std::vector<cudaGraphExec_t> graphs;
  on_all([&](int r) {
    tensors.push_back(rank(r).upload(std::vector<float>(n, 1.0F), {1, n}));
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(rank(r).context().stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < 3; ++i) peer_all_reduce(rank(r).context(), peers(r), tensors.back());
    check(cudaStreamEndCapture(rank(r).context().stream, &graph), "capture");
    check(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0), "a graph");
    cudaGraphDestroy(graph);
  });
  double expected = 1;
  for (int round = 0; round < 3; ++round) {
    on_all([&](int r) {
      check(cudaGraphLaunch(graphs[static_cast<std::size_t>(r)], rank(r).context().stream), "a graph");
    });
    expect_sums<BFloat16>(static_cast<std::uint32_t>(round), 500);
    expected *= std::pow(size(), 3);
  }
  on_all([&](int r) {
    const auto values = rank(r).download<float>(tensors[static_cast<std::size_t>(r)]);
    EXPECT_EQ(std::count(values.begin(), values.end(), static_cast<float>(expected)), n);
    cudaGraphExecDestroy(graphs[static_cast<std::size_t>(r)]);
  });
}

TEST_P(PeerCollectivesTest, WhoWaitsForLongSaysForWhomAndEndsWhenTold) {
  std::vector<Tensor> tensors;
  on_all([&](int r) { tensors.push_back(rank(r).upload(rank_values<float>(r, 1, 64), {1, 64})); });
  expect_to_end_when_told(
      [&](int r) { peer_all_reduce(rank(r).context(), peers(r), tensors[static_cast<std::size_t>(r)]); });
}

TEST_P(PeerCollectivesTest, WhoWaitsForRowsEndsWhenTold) {
  const std::int64_t rows = 400, columns = 1024;
  std::vector<Tensor> xs, outs, residuals, weights;
  const std::vector<float> values(static_cast<std::size_t>(rows * columns));
  on_all([&](int r) {
    xs.push_back(rank(r).upload(values, {rows, columns}));
    outs.push_back(rank(r).upload(values, {rows, columns}));
    residuals.push_back(rank(r).upload(values, {rows, columns}));
    weights.push_back(
        Tensor(rank(r).upload(values, {rows, columns}).data(), DType::kF32, {columns}, DeviceKind::kCuda));
  });
  expect_to_end_when_told([&](int r) {
    const auto i = static_cast<std::size_t>(r);
    peer_all_reduce_add_norm(rank(r).context(), peers(r), outs[i], residuals[i], xs[i], 1,
                             {weights[i], {}, 1e-6F});
  });
}

TEST_P(PeerCollectivesTest, WhoWaitsForASharesRowsEndsWhenTold) {
  std::vector<Tensor> ins, outs;
  on_all([&](int r) {
    ins.push_back(rank(r).upload(rank_values<float>(r, 1, 16 * 100), {16, 100}));
    outs.push_back(
        rank(r).upload(std::vector<float>(static_cast<std::size_t>(16 * 100 * size())), {16, 100 * size()}));
  });
  expect_to_end_when_told([&](int r) {
    const auto i = static_cast<std::size_t>(r);
    peer_gather(rank(r).context(), peers(r), outs[i].rows(0, (16 + size() - 1) / size()), ins[i]);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerCollectivesTest, ::testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace quire::cuda
