// Log-probabilities on the GPU, against their definition in doubles.
#include <gtest/gtest.h>

#include "backends/cuda/kernels/sampling.h"
#include "cuda/device_memory.h"
#include "parity/logprob_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::expect_logprobs;
using testing::DeviceTensor;

class CudaLogProbsTest : public testing::DeviceTest {
 protected:
  // Rows of logits lie `padding` NaNs apart.
  LogprobRows run(const std::vector<std::vector<float>>& logits, std::vector<std::int32_t> tokens,
                  int num_top, std::vector<std::int32_t> rows = {}, std::int64_t padding = 0,
                  std::vector<std::int32_t> named = {}) {
    const auto all = static_cast<std::int64_t>(logits.size());
    const auto vocab = static_cast<std::int64_t>(logits[0].size());
    const std::int64_t n = rows.empty() ? all : static_cast<std::int64_t>(rows.size());
    std::vector<float> flat;
    for (const auto& row : logits) {
      flat.insert(flat.end(), row.begin(), row.end());
      flat.resize(flat.size() + static_cast<std::size_t>(padding), NAN);
    }
    const bool all_rows = rows.empty();
    if (all_rows) rows.resize(1);  // a tensor needs memory
    const DeviceTensor device_logits(Tensor(flat.data(), DType::kF32, {all, vocab + padding}));
    const DeviceTensor device_tokens(Tensor(tokens.data(), DType::kI32, {all}));
    const DeviceTensor device_rows(
        Tensor(rows.data(), DType::kI32, {static_cast<std::int64_t>(rows.size())}));
    const bool names = !named.empty();
    named.resize(static_cast<std::size_t>(n * kMaxNamedLogprobs), -1);
    const DeviceTensor device_named(Tensor(named.data(), DType::kI32, {n, kMaxNamedLogprobs}));
    memory_.assign(LogprobRows::bytes(n, num_top), 0xFF);
    const Tensor host(memory_.data(), DType::kU8, {static_cast<std::int64_t>(memory_.size())});
    const DeviceTensor out(host);
    log_probs(context_, LogprobRows::at(out.tensor().data(), n, num_top, DeviceKind::kCuda),
              device_logits.tensor().columns(0, vocab),
              {.num_rows = static_cast<int>(n),
               .num_top = num_top,
               .rows = all_rows ? Tensor() : device_rows.tensor(),
               .tokens = device_tokens.tensor(),
               .named = names ? device_named.tensor() : Tensor()});
    out.download(host);
    return LogprobRows::at(memory_.data(), n, num_top, DeviceKind::kCpu);
  }

  std::vector<std::uint8_t> memory_;
};

TEST_F(CudaLogProbsTest, AreTheLogSoftmaxOfTheTokenAndTheMostLikely) {
  for (const std::size_t vocab : {1, 5, 130, 2047, 5003, 50257, 151936}) {
    const auto logits = quire::testing::logprob_rows(vocab);
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < logits.size(); ++i)
      tokens.push_back(static_cast<std::int32_t>(i * 37 % vocab));
    for (const int num_top : {0, 1, 5, 20, 512}) {
      if (num_top > static_cast<int>(vocab)) continue;
      for (const std::int64_t padding : {0, 3}) {
        const LogprobRows rows = run(logits, tokens, num_top, {}, padding);
        for (std::size_t i = 0; i < logits.size(); ++i) {
          SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", row " + std::to_string(i) + ", top " +
                       std::to_string(num_top));
          expect_logprobs(rows, static_cast<std::int64_t>(i), logits[i], tokens[i], num_top);
        }
      }
    }
  }
}

TEST_F(CudaLogProbsTest, AreThoseOfNamedTokensInPlaceOfTheMostLikely) {
  const auto logits = quire::testing::logprob_rows(1000);
  std::vector<std::int32_t> named(kMaxNamedLogprobs, -1);  // of the first row; the second one's follow
  const std::vector<std::int32_t> ids = {999, 0, 17};
  named.insert(named.end(), ids.begin(), ids.end());
  const LogprobRows rows = run(logits, {0, 1, 2, 3, 4, 5, 6}, 5, {6, 1}, 0, named);
  expect_logprobs(rows, 0, logits[6], 6, 5);
  const auto expected = quire::testing::log_softmax(logits[1]);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rows.ids.data_as<const std::int32_t>()[7 + i], ids[i]);
    EXPECT_NEAR(rows.logprobs.data_as<const float>()[7 + i], expected[static_cast<std::size_t>(ids[i])],
                1e-4);
  }
}

TEST_F(CudaLogProbsTest, OnlyNamedRowsAreReported) {
  const auto logits = quire::testing::logprob_rows(1000);
  const LogprobRows rows = run(logits, {0, 1, 2, 3, 4, 5, 6}, 3, {6, 1});
  expect_logprobs(rows, 0, logits[6], 6, 3);
  expect_logprobs(rows, 1, logits[1], 1, 3);
}

TEST_F(CudaLogProbsTest, LogitsThatAreNotNumbersGiveNone) {
  std::vector<float> nan(5000, 1.0F);
  nan[20] = NAN;
  const LogprobRows rows = run({nan, std::vector<float>(5000, -INFINITY)}, {-2, -2}, 20);
  for (const int row : {0, 1}) {
    EXPECT_EQ(rows.ids.data_as<const std::int32_t>()[21 * row], -2);
    EXPECT_TRUE(std::isnan(rows.logprobs.data_as<const float>()[21 * row]));
    EXPECT_EQ(rows.ranks.data_as<const std::int32_t>()[row], 0);
    for (int i = 1; i <= 20; ++i) {
      const std::int32_t id = rows.ids.data_as<const std::int32_t>()[21 * row + i];
      EXPECT_TRUE(id >= 0 && id < 5000) << id;
    }
  }
}

}  // namespace
}  // namespace quire::cuda
