// Paged decode attention against the CPU reference, and bitwise against itself.
#include <algorithm>

#include "cuda/attention_fixtures.h"

namespace quire::cuda {
namespace {

using testing::attention_tolerance;
using testing::DeviceAttention;
using testing::DeviceTensor;
using testing::PagedBatch;
using testing::PagedShape;
using testing::row_error;
using testing::ScoreOptions;

// Device memory that starts as zeros, as a workspace does.
class Workspace {
 public:
  Workspace(const AttentionShape& shape, int num_sms)
      : zeros_(decode_workspace_bytes(shape, num_sms)),
        memory_(Tensor(zeros_.data(), DType::kU8, {std::ssize(zeros_)})) {}
  const Tensor& tensor() const { return memory_.tensor(); }

 private:
  std::vector<std::byte> zeros_;
  DeviceTensor memory_;
};

class DecodeAttentionTest : public testing::AttentionTest {
 protected:
  void decode(DeviceAttention& attention, const AttentionBatch& batch, const Workspace& workspace) {
    attention.call().workspace = workspace.tensor();
    plan_decode(context_, batch, attention.shape(), workspace.tensor());
    decode_attention(context_, attention.call(), batch, attention.shape());
  }
  void decode(DeviceAttention& attention) {
    decode(attention, attention.batch(), Workspace(attention.shape(), context_.num_sms));
  }

  void expect_reference(const DeviceAttention& attention, const std::string& what) const {
    const std::vector<float> actual = attention.result(), expected = attention.expected();
    for (int row = 0; row < attention.batch().num_tokens; ++row) {
      ASSERT_LT(row_error(actual, expected, row, attention.width()), attention_tolerance(dtype()))
          << what << ", row " << row;
    }
  }

  // `count` sequences of up to `longest` tokens.
  std::vector<PagedBatch::Span> ragged(int count, int longest) {
    std::uniform_int_distribution<int> context(0, longest - 1);
    std::vector<PagedBatch::Span> spans;
    for (int i = 0; i < count; ++i) spans.push_back({context(random_), 1});
    return spans;
  }

  std::mt19937 random_{11};
};

TEST_P(DecodeAttentionTest, EqualsTheReferenceForEveryHeadSizeGroupAndBlockSize) {
  for (const PagedShape& shape :
       {PagedShape{2, 1, 64, 16}, PagedShape{6, 1, 64, 8}, PagedShape{3, 3, 80, 32}, PagedShape{14, 2, 80, 8},
        PagedShape{8, 2, 96, 16}, PagedShape{16, 1, 96, 64}, PagedShape{16, 8, 128, 16},
        PagedShape{5, 1, 128, 128}, PagedShape{12, 1, 128, 8}, PagedShape{8, 1, 256, 64},
        PagedShape{11, 1, 256, 256}, PagedShape{29, 1, 64, 32}, PagedShape{64, 1, 128, 16}}) {
    const int block = shape.block_size;
    DeviceAttention attention(
        shape, {{0, 1}, {block - 2, 1}, {block - 1, 1}, {block, 1}, {15, 1}, {700, 1}, {3000, 1}}, dtype(),
        random_, stored());
    decode(attention);
    expect_reference(attention, "heads " + std::to_string(shape.heads) + " of " + std::to_string(shape.dim) +
                                    ", block size " + std::to_string(block));
  }
}

TEST_P(DecodeAttentionTest, EqualsTheReferenceForEveryBatchSize) {
  for (const PagedShape& shape :
       {PagedShape{8, 4, 128, 16}, PagedShape{34, 2, 64, 8}, PagedShape{2, 2, 256, 32}}) {
    for (const int count : {1, 3, 17, 255}) {
      for (const int longest : {40, 400}) {
        DeviceAttention attention(shape, ragged(count, longest), dtype(), random_, stored());
        decode(attention);
        expect_reference(attention,
                         "heads of " + std::to_string(shape.dim) + ", batch of " + std::to_string(count));
      }
    }
  }
}

TEST_P(DecodeAttentionTest, EqualsTheReferenceWithinAWindow) {
  for (const PagedShape& shape :
       {PagedShape{8, 4, 128, 16}, PagedShape{6, 2, 64, 8}, PagedShape{12, 1, 80, 8},
        PagedShape{2, 2, 256, 64}, PagedShape{16, 2, 96, 256}}) {
    for (const int window : {1, 8, 9, 33, 250, 5000}) {
      std::vector<PagedBatch::Span> spans = ragged(6, 600);
      for (const int length : {1, window % 500, window % 500 + 8}) spans.push_back({length, 1});
      DeviceAttention attention(shape, spans, dtype(), random_, stored({.window = window}));
      decode(attention);
      expect_reference(attention, "heads of " + std::to_string(shape.dim) + ", blocks of " +
                                      std::to_string(shape.block_size) + ", a window of " +
                                      std::to_string(window));
    }
  }
}

TEST_P(DecodeAttentionTest, EqualsTheReferenceWithCapsAndSinks) {
  for (const PagedShape& shape :
       {PagedShape{6, 2, 64, 8}, PagedShape{14, 2, 80, 16}, PagedShape{12, 1, 80, 8},
        PagedShape{8, 2, 96, 16}, PagedShape{16, 8, 128, 16}, PagedShape{40, 2, 128, 64},
        PagedShape{8, 4, 256, 16}, PagedShape{11, 1, 256, 64}}) {
    for (const ScoreOptions& options :
         {ScoreOptions{.cap = 50}, ScoreOptions{.cap = 5}, ScoreOptions{.sinks = true},
          ScoreOptions{.cap = 2, .sinks = true}, ScoreOptions{.window = 33, .cap = 5},
          ScoreOptions{.window = 128, .sinks = true}}) {
      std::vector<PagedBatch::Span> spans = ragged(9, 600);
      for (const int length : {0, 15, 3000}) spans.push_back({length, 1});
      DeviceAttention attention(shape, spans, dtype(), random_, stored(options));
      decode(attention);
      expect_reference(attention, std::to_string(shape.heads) + " heads of " + std::to_string(shape.dim) +
                                      ", " + options.describe());
    }
  }
}

// Its pieces are merged from several shares: the sink counts once.
TEST_P(DecodeAttentionTest, DividesOneLongSequenceWithACapAndSinks) {
  for (const PagedShape& shape :
       {PagedShape{8, 2, 128, 16}, PagedShape{34, 2, 64, 8}, PagedShape{8, 4, 256, 16}}) {
    for (const ScoreOptions& options :
         {ScoreOptions{.sinks = true}, ScoreOptions{.cap = 50}, ScoreOptions{.cap = 2, .sinks = true},
          ScoreOptions{.window = 4096, .cap = 2, .sinks = true}}) {
      DeviceAttention attention(shape, {{9000, 1}}, dtype(), random_, stored(options));
      decode(attention);
      expect_reference(attention, "heads of " + std::to_string(shape.dim) + ", " + options.describe());
    }
  }
}

TEST_P(DecodeAttentionTest, PlansOfTwoGroupsDoNotDisturbEachOther) {
  DeviceAttention all({8, 2, 128, 16}, {{5000, 1}, {90, 1}, {700, 1}}, dtype(), random_, stored());
  DeviceAttention windowed({8, 2, 128, 16}, {{5000, 1}, {90, 1}, {700, 1}}, dtype(), random_,
                           stored({.window = 64}));
  const Workspace first(all.shape(), context_.num_sms), second(windowed.shape(), context_.num_sms);
  all.call().workspace = first.tensor();
  windowed.call().workspace = second.tensor();
  plan_decode(context_, all.batch(), all.shape(), first.tensor());
  plan_decode(context_, windowed.batch(), windowed.shape(), second.tensor());
  for (int layer = 0; layer < 3; ++layer) {
    for (DeviceAttention* attention : {&all, &windowed}) {
      attention->poison();
      decode_attention(context_, attention->call(), attention->batch(), attention->shape());
    }
  }
  expect_reference(all, "without a window");
  expect_reference(windowed, "within a window");
}

TEST_P(DecodeAttentionTest, DividesWhatLiesWithinTheWindowOfOneLongSequence) {
  DeviceAttention attention({8, 2, 128, 16}, {{9000, 1}}, dtype(), random_, stored({.window = 4096}));
  decode(attention);
  expect_reference(attention, "one sequence");
}

TEST_P(DecodeAttentionTest, IsBitwiseTheSameForEveryLayerOfAPlan) {
  DeviceAttention attention({16, 8, 128, 16}, ragged(40, 3000), dtype(), random_, stored());
  const Workspace workspace(attention.shape(), context_.num_sms);
  decode(attention, attention.batch(), workspace);
  const std::vector<float> first = attention.result();
  for (int layer = 0; layer < 20; ++layer) {
    attention.poison();
    decode_attention(context_, attention.call(), attention.batch(), attention.shape());
    ASSERT_EQ(attention.result(), first) << "layer " << layer;
  }
}

TEST_P(DecodeAttentionTest, ReadsQueriesAmongOtherColumns) {
  DeviceAttention attention({4, 2, 64, 16}, ragged(9, 200), dtype(), random_, stored());
  decode(attention);
  const std::vector<float> expected = attention.result();
  const std::int64_t width = attention.width(), tokens = attention.batch().num_tokens;
  const quire::testing::Matrix wide(dtype(), tokens, 2 * width, random_);
  const DeviceTensor qkv(wide.tensor());
  const Tensor q = qkv.tensor().columns(0, width);
  const std::size_t size = size_of(dtype());
  check(cudaMemcpy2D(q.data(), static_cast<std::size_t>(2 * width) * size, attention.call().q.data(),
                     static_cast<std::size_t>(width) * size, static_cast<std::size_t>(width) * size,
                     static_cast<std::size_t>(tokens), cudaMemcpyDeviceToDevice),
        "queries");
  attention.call().q = q;
  attention.poison();
  decode(attention);
  EXPECT_EQ(attention.result(), expected);
}

TEST_P(DecodeAttentionTest, LeavesRowsOfEmptySequencesAndOfPromptsAlone) {
  DeviceAttention attention({4, 2, 64, 16}, {{50, 1}, {20, 1}, {3, 5}, {77, 1}, {8, 1}}, dtype(), random_,
                            stored());
  std::vector<std::int32_t> lengths = {51, 0, 8, 78, 0};
  const DeviceTensor device_lengths(quire::testing::ints(lengths));
  AttentionBatch batch = attention.batch();
  batch.seq_lens = device_lengths.tensor();
  decode(attention, batch, Workspace(attention.shape(), context_.num_sms));
  const std::vector<float> actual = attention.result(), expected = attention.expected();
  for (int row = 0; row < batch.num_tokens; ++row) {
    const double error = row_error(actual, expected, row, attention.width());
    if (row == 0 || row == 7) {
      EXPECT_LT(error, attention_tolerance(dtype())) << "row " << row;
    } else {
      EXPECT_TRUE(std::isnan(error)) << "row " << row << " was written";
    }
  }
}

TEST_P(DecodeAttentionTest, FollowsLengthsThatChangeUnderACapturedGraph) {
  DeviceAttention attention({8, 2, 128, 16}, ragged(30, 2000), dtype(), random_, stored());
  const Workspace workspace(attention.shape(), context_.num_sms);
  std::vector<std::int32_t> zeros(30);
  const DeviceTensor lengths(quire::testing::ints(zeros));
  AttentionBatch batch = attention.batch();
  batch.seq_lens = lengths.tensor();

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamCreate(&context_.stream), "stream");
  check(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeGlobal), "capture");
  decode(attention, batch, workspace);
  check(cudaStreamEndCapture(context_.stream, &graph), "capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "graph");

  check(cudaGraphLaunch(executable, context_.stream), "graph");  // nothing takes part
  check(cudaStreamSynchronize(context_.stream), "graph");
  for (const float value : attention.result()) ASSERT_TRUE(std::isnan(value));
  check(cudaMemcpy(lengths.tensor().data(), attention.batch().seq_lens.data(), lengths.tensor().bytes(),
                   cudaMemcpyDeviceToDevice),
        "lengths");
  check(cudaGraphLaunch(executable, context_.stream), "graph");
  expect_reference(attention, "from a graph");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(context_.stream);
}

INSTANTIATE_TEST_SUITE_P(Caches, DecodeAttentionTest,
                         ::testing::Combine(::testing::Values(DType::kF16, DType::kBF16), testing::kCaches),
                         testing::AttentionTest::name);

TEST(DecodeWorkspaceTest, IsAFewMegabytes) {
  const AttentionShape shape{.num_heads = 32,
                             .num_kv_heads = 8,
                             .head_dim = 128,
                             .block_size = 16,
                             .max_num_seqs = 256,
                             .max_num_tokens = 256,
                             .max_seq_len = 40960};
  EXPECT_LT(decode_workspace_bytes(shape, 132), 3U << 20);
}

}  // namespace
}  // namespace quire::cuda
