// Attention in a fixed order against the CPU reference, and bitwise against itself in other batches and
// chunks.
#include <algorithm>
#include <functional>

#include "backends/cuda/kernels/prefill_attention.h"
#include "cuda/attention_fixtures.h"

namespace quire::cuda {
namespace {

using testing::attention_tolerance;
using testing::AttentionTest;
using testing::DeviceAttention;
using testing::PagedBatch;
using testing::PagedShape;
using testing::row_error;
using testing::ScoreOptions;

// A kernel in a fixed order.
using Attend = std::function<void(const AttentionCall&, const AttentionBatch&)>;

class FixedOrderAttentionTest : public AttentionTest {
 protected:
  // Attends to all at once, then in chunks of one sequence.
  static void expect_same_bits(DeviceAttention& attention, const std::vector<PagedBatch::Span>& spans,
                               const Attend& attend, const std::string& name);

  std::mt19937 random_{7};
};

constexpr PagedShape kShapes[] = {{2, 1, 8, 8},    {6, 1, 64, 16},   {3, 3, 80, 32},   {16, 8, 128, 16},
                                  {2, 1, 256, 64}, {71, 1, 64, 256}, {6, 2, 96, 8},    {8, 2, 128, 128},
                                  {4, 4, 512, 16}, {2, 1, 512, 8},   {16, 2, 512, 64}, {3, 1, 272, 16},
                                  {4, 2, 100, 16}, {2, 1, 6, 8}};

TEST_P(FixedOrderAttentionTest, EqualsTheReference) {
  for (const PagedShape& shape : kShapes) {
    const int block = shape.block_size;
    DeviceAttention attention(
        shape, {{0, 1}, {block - 1, 1}, {block, 3}, {block + 1, 17}, {0, 65}, {300, 33}, {2000, 1}}, dtype(),
        random_, stored());
    fixed_order_attention(context_, attention.call(), attention.batch(), attention.shape());
    const std::vector<float> actual = attention.result(), expected = attention.expected();
    for (int row = 0; row < attention.batch().num_tokens; ++row) {
      ASSERT_LT(row_error(actual, expected, row, attention.width()), attention_tolerance(dtype()))
          << "head dim " << shape.dim << ", block size " << block << ", row " << row;
    }
  }
}

TEST_P(FixedOrderAttentionTest, EqualsTheReferenceWithinAWindowAndWithOtherScores) {
  for (const PagedShape& shape : kShapes) {
    for (const ScoreOptions& options :
         {ScoreOptions{.window = 1}, ScoreOptions{.window = 33, .alibi = true}, ScoreOptions{.window = 128},
          ScoreOptions{.alibi = true}, ScoreOptions{.cap = 50}, ScoreOptions{.cap = 5},
          ScoreOptions{.sinks = true}, ScoreOptions{.window = 33, .alibi = true, .cap = 2, .sinks = true}}) {
      DeviceAttention attention(shape, {{0, 1}, {31, 2}, {32, 34}, {127, 3}, {700, 40}, {1000, 1}}, dtype(),
                                random_, stored(options));
      fixed_order_attention(context_, attention.call(), attention.batch(), attention.shape());
      const std::vector<float> actual = attention.result(), expected = attention.expected();
      for (int row = 0; row < attention.batch().num_tokens; ++row) {
        ASSERT_LT(row_error(actual, expected, row, attention.width()), attention_tolerance(dtype()))
            << shape.heads << " heads of " << shape.dim << ", block size " << shape.block_size << ", "
            << options.describe() << ", row " << row;
      }
    }
  }
}

void FixedOrderAttentionTest::expect_same_bits(DeviceAttention& attention,
                                               const std::vector<PagedBatch::Span>& spans,
                                               const Attend& attend, const std::string& name) {
  attend(attention.call(), attention.batch());
  const std::vector<float> together = attention.result(), expected = attention.expected();
  for (int row = 0; row < attention.batch().num_tokens; ++row) {
    ASSERT_LT(row_error(together, expected, row, attention.width()), attention_tolerance(dtype()))
        << name << ", row " << row;
  }
  for (const int chunk : {1, 7, 100}) {
    attention.poison();
    std::int32_t first = 0;  // row of the sequence
    for (int s = 0; s < attention.batch().num_sequences; ++s) {
      const auto [before, tokens] = spans[static_cast<std::size_t>(s)];
      for (int done = 0; done < tokens; done += chunk) {
        const int count = std::min(chunk, tokens - done);
        std::vector<std::int32_t> starts = {0, count}, length = {before + done + count};
        const testing::DeviceTensor device_starts(quire::testing::ints(starts)),
            device_length(quire::testing::ints(length));
        AttentionBatch part = attention.batch();
        part.num_sequences = 1;
        part.num_tokens = part.max_query_len = count;
        part.query_starts = device_starts.tensor();
        part.seq_lens = device_length.tensor();
        part.table_rows = part.table_rows.rows(s, 1);
        AttentionCall call = attention.call();
        call.out = call.out.rows(first + done, count);
        call.q = call.q.rows(first + done, count);
        attend(call, part);
      }
      first += tokens;
    }
    ASSERT_EQ(attention.result(), together) << name << ", chunks of " << chunk;
  }
}

TEST_P(FixedOrderAttentionTest, IsBitwiseTheSameInAnyBatchAndChunking) {
  const std::vector<PagedBatch::Span> spans = {{0, 40}, {70, 33}, {511, 1}, {255, 4}};
  for (const PagedShape& shape : kShapes) {
    DeviceAttention attention(shape, spans, dtype(), random_,
                              stored({.window = 50, .alibi = true, .cap = 3, .sinks = true}));
    const Attend attend = [&](const AttentionCall& call, const AttentionBatch& batch) {
      fixed_order_attention(context_, call, batch, attention.shape());
    };
    expect_same_bits(attention, spans, attend, "head dim " + std::to_string(shape.dim));
  }
}

TEST_P(FixedOrderAttentionTest, PrefillOfAllRowsIsBitwiseTheSameInAnyBatchAndChunking) {
  std::vector<PagedBatch::Span> spans = {{0, 40}, {70, 133}, {511, 1}, {1255, 4}, {700, 300}};
  for (int i = 0; i < 150; ++i) spans.push_back({i * 7 % 150, 1});  // so that blocks of threads take several
  for (const PagedShape& shape : kShapes) {
    if (!has_fast_attention(dtype(), shape.dim)) continue;
    for (const ScoreOptions& options :
         {ScoreOptions{}, ScoreOptions{.cap = 3}, ScoreOptions{.window = 50, .cap = 30, .sinks = true}}) {
      DeviceAttention attention(shape, spans, dtype(), random_, stored(options));
      const std::size_t bytes = prefill_workspace_bytes(attention.shape(), context_.num_sms);
      std::vector<std::uint8_t> zeros(bytes);
      const testing::DeviceTensor workspace(
          Tensor(zeros.data(), DType::kU8, {static_cast<std::int64_t>(bytes)}));
      attention.call().workspace = workspace.tensor();
      constexpr auto kAll = PrefillOf::kAllInFixedOrder;
      for (const bool own : {true, false}) {
        const Attend attend = [&](const AttentionCall& call, const AttentionBatch& batch) {
          plan_prefill(context_, batch, attention.shape(), workspace.tensor(), kAll);
          if (own) {
            prefill_attention(context_, call, batch, attention.shape(), kAll);
          } else {
            prefill_attention_mma(context_, prefill_params(call, batch, attention.shape(), kAll), batch,
                                  attention.shape(), dtype());
          }
        };
        expect_same_bits(attention, spans, attend,
                         (own ? "own kernel, head dim " : "mma kernel, head dim ") +
                             std::to_string(shape.dim) + ", " + options.describe());
      }
    }
  }
}

TEST_P(FixedOrderAttentionTest, LeavesRowsOfEmptySequencesAndBeyondTheLastAlone) {
  DeviceAttention attention({4, 2, 64, 16}, {{0, 5}, {20, 1}, {0, 3}}, dtype(), random_, stored());
  std::vector<std::int32_t> lengths = {5, 0, 3};
  const testing::DeviceTensor device_lengths(quire::testing::ints(lengths));
  AttentionBatch batch = attention.batch();
  batch.seq_lens = device_lengths.tensor();
  batch.num_sequences = 2;
  fixed_order_attention(context_, attention.call(), batch, attention.shape());
  const std::vector<float> actual = attention.result(), expected = attention.expected();
  for (int row = 0; row < batch.num_tokens; ++row) {
    const double error = row_error(actual, expected, row, attention.width());
    if (row < 5) {
      EXPECT_LT(error, attention_tolerance(dtype()));
    } else {
      EXPECT_TRUE(std::isnan(error)) << "row " << row << " was written";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, FixedOrderAttentionTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                                            testing::kCaches),
                         AttentionTest::name);

}  // namespace
}  // namespace quire::cuda
