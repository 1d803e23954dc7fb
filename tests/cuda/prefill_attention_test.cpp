// Prefill attention, by both of its kernels, against the CPU reference on ragged batches in which other rows
// must stay as they are.
#include "backends/cuda/kernels/prefill_attention.h"

#include <algorithm>

#include "cuda/attention_fixtures.h"

namespace quire::cuda {
namespace {

using testing::attention_tolerance;
using testing::AttentionTest;
using testing::DeviceAttention;
using testing::DeviceTensor;
using testing::PagedBatch;
using testing::PagedShape;
using testing::row_error;
using testing::ScoreOptions;

using Spans = std::vector<PagedBatch::Span>;

class PrefillAttentionTest : public AttentionTest {
 protected:
  // Two layers by this GPU's own kernel and two by that for every GPU, on one plan.
  void expect_equal(const PagedShape& shape, const Spans& spans, const ScoreOptions& scores = {}) {
    const ScoreOptions options = stored(scores);
    DeviceAttention attention(shape, spans, dtype(), random_, options);
    const std::size_t bytes = prefill_workspace_bytes(attention.shape(), context_.num_sms);
    std::vector<std::uint8_t> zeros(bytes);
    const DeviceTensor workspace(Tensor(zeros.data(), DType::kU8, {static_cast<std::int64_t>(bytes)}));
    attention.call().workspace = workspace.tensor();
    plan_prefill(context_, attention.batch(), attention.shape(), workspace.tensor());
    const std::vector<float> expected = attention.expected();
    const auto check_rows = [&](const std::string& kernel) {
      const std::vector<float> actual = attention.result();
      attention.poison();
      std::int64_t row = 0;
      for (const auto& [before, tokens] : spans) {
        for (int i = 0; i < tokens; ++i, ++row) {
          const auto where = ::testing::Message()
                             << kernel << ", head dim " << shape.dim << ", group "
                             << shape.heads / shape.kv_heads << ", block size " << shape.block_size << ", "
                             << options.describe() << ", token " << i << " of " << tokens << " after "
                             << before;
          if (tokens > 1) {
            ASSERT_LT(row_error(actual, expected, row, attention.width()), attention_tolerance(dtype()))
                << where;
          } else {
            const auto begin = actual.begin() + row * attention.width();
            ASSERT_TRUE(std::all_of(begin, begin + attention.width(), [](float x) { return std::isnan(x); }))
                << where << " was written";
          }
        }
      }
    };
    for (int layer = 0; layer < 2; ++layer) {
      prefill_attention(context_, attention.call(), attention.batch(), attention.shape());
      check_rows("own kernel");
      prefill_attention_mma(context_, prefill_params(attention.call(), attention.batch(), attention.shape()),
                            attention.batch(), attention.shape(), dtype());
      check_rows("mma kernel");
    }
  }

  std::mt19937 random_{11};
};

constexpr PagedShape kShapes[] = {{2, 2, 64, 16},   {71, 1, 64, 256}, {14, 2, 64, 32},  {3, 3, 80, 32},
                                  {8, 2, 80, 16},   {6, 2, 96, 8},    {4, 4, 96, 128},  {16, 8, 128, 16},
                                  {8, 2, 128, 128}, {10, 2, 128, 8},  {32, 2, 128, 64}, {4, 1, 256, 64},
                                  {2, 1, 256, 8},   {2, 2, 256, 256}};

TEST_P(PrefillAttentionTest, EqualsTheReferenceOnRaggedBatches) {
  for (const PagedShape& shape : kShapes) {
    const int block = shape.block_size;
    expect_equal(shape, {{0, 2},
                         {0, 1},
                         {1, 3},
                         {block - 1, 17},
                         {block, 63},
                         {0, 0},
                         {block + 1, 64},
                         {1500, 65},
                         {700, 1},
                         {0, 129},
                         {37, 255},
                         {0, 1}});
  }
}

TEST_P(PrefillAttentionTest, EqualsTheReferenceOnLongChunks) {
  expect_equal({4, 2, 128, 16}, {{0, 1000}, {333, 1000}, {2100, 700}});
  expect_equal({7, 1, 64, 64}, {{0, 1000}, {4097, 300}});
}

// Fewer tiles than multiprocessors, so that several blocks of threads share one's keys; of short sequences
// some find none.
TEST_P(PrefillAttentionTest, EqualsTheReferenceOnFewTokensBehindLongPrefixes) {
  for (const PagedShape& shape :
       {PagedShape{16, 4, 256, 16}, PagedShape{16, 8, 128, 16}, PagedShape{7, 1, 64, 64},
        PagedShape{3, 3, 80, 32}, PagedShape{6, 2, 96, 8}}) {
    expect_equal(shape, {{5000, 9}, {0, 2}, {3000, 1}, {2047, 40}, {4095, 2}});
    expect_equal(shape, {{6143, 130}}, {.sinks = true});
  }
  expect_equal({16, 4, 256, 16}, {{4100, 33}, {0, 300}}, {.window = 2100, .cap = 5});
  expect_equal({8, 2, 128, 16}, {{5000, 70}, {900, 1}}, {.window = 2048, .sinks = true});
}

TEST_P(PrefillAttentionTest, EqualsTheReferenceWithinAWindow) {
  for (const PagedShape& shape :
       {PagedShape{8, 2, 128, 16}, PagedShape{6, 2, 64, 8}, PagedShape{3, 3, 80, 32},
        PagedShape{2, 2, 96, 256}, PagedShape{4, 1, 256, 64}}) {
    for (const int window : {1, 63, 128, 129, 700}) {
      expect_equal(shape, {{0, 2}, {window, 40}, {window + 1, 65}, {500, 150}, {900, 1}, {0, 300}},
                   {.window = window});
    }
  }
}

// Scores reach 15: of a cap of 50 they are far, of 15 some are, and of 5 few.
TEST_P(PrefillAttentionTest, EqualsTheReferenceWithCapsAndSinks) {
  for (const PagedShape& shape :
       {PagedShape{6, 2, 64, 8}, PagedShape{7, 1, 64, 256}, PagedShape{3, 3, 80, 32},
        PagedShape{4, 2, 96, 16}, PagedShape{16, 8, 128, 16}, PagedShape{10, 2, 128, 64},
        PagedShape{4, 2, 256, 16}, PagedShape{4, 1, 256, 64}}) {
    for (const ScoreOptions& options :
         {ScoreOptions{.cap = 50}, ScoreOptions{.cap = 15}, ScoreOptions{.cap = 5},
          ScoreOptions{.sinks = true}, ScoreOptions{.cap = 2, .sinks = true},
          ScoreOptions{.window = 33, .cap = 15}, ScoreOptions{.window = 129, .sinks = true}}) {
      expect_equal(shape, {{0, 2}, {0, 1}, {1, 3}, {37, 65}, {700, 1}, {500, 150}, {0, 300}}, options);
    }
  }
}

TEST_P(PrefillAttentionTest, EqualsTheReferenceOnLongChunksWithACapAndSinks) {
  expect_equal({4, 2, 128, 16}, {{0, 1000}, {2100, 700}}, {.cap = 15});
  expect_equal({4, 2, 256, 16}, {{333, 700}, {2100, 300}}, {.window = 1024, .cap = 2, .sinks = true});
}

// In bfloat16, larger ones than float16 holds, below the 1,048,064 that the kernel takes beside codes.
TEST_P(PrefillAttentionTest, EqualsTheReferenceWithLargeAndSmallQueries) {
  for (const float times : {0.01F, dtype() == DType::kBF16 ? 3e4F : 1e3F}) {
    for (const ScoreOptions& options : {ScoreOptions{.times = times}, ScoreOptions{.cap = 5, .times = times},
                                        ScoreOptions{.sinks = true, .times = times}}) {
      expect_equal({16, 8, 128, 16}, {{0, 2}, {37, 65}, {500, 150}}, options);
    }
  }
}

TEST_P(PrefillAttentionTest, TakesMoreSequencesThanThePlanHasWarps) {
  Spans spans;
  for (int i = 0; i < 200; ++i) spans.push_back({i * 7 % 150, 1 + i % 13});
  expect_equal({4, 2, 128, 16}, spans);
}

INSTANTIATE_TEST_SUITE_P(Caches, PrefillAttentionTest,
                         ::testing::Combine(::testing::Values(DType::kF16, DType::kBF16), testing::kCaches),
                         AttentionTest::name);

}  // namespace
}  // namespace quire::cuda
