// Attention of few sequences with rotary embedding and the cache's writes in it, against the CPU reference;
// what it writes to the cache, bitwise against rotate_and_store.
#include <algorithm>

#include "backends/cuda/kernels/elementwise.h"
#include "cuda/attention_fixtures.h"

namespace quire::cuda {
namespace {

using testing::attention_tolerance;
using testing::DeviceTensor;
using testing::Matrix;
using testing::PagedBatch;
using testing::PagedShape;
using testing::row_error;
using testing::widen;

struct Wishes {
  int window = 0;
  float cap = 0;
  bool sinks = false;
  bool norms = true;
  bool value_norm = false;
  int rotary = -1;  // dimensions; -1: all
};

// The same step on the host and on the device, each with a cache of its own.
class Step {
 public:
  Step(const PagedShape& shape, const std::vector<int>& contexts, DType dtype, std::mt19937& random,
       const Wishes& wishes)
      : shape_(shape),
        paged_(shape, spans_of(contexts), dtype, random),
        qkv_(dtype, paged_.batch.num_tokens, std::int64_t{shape.heads + 2 * shape.kv_heads} * shape.dim,
             random, 2.0F),
        norm_(DType::kF32, 1, shape.dim, random),
        cos_sin_(DType::kF32, paged_.batch.max_seq_len,
                 wishes.rotary < 0 ? shape.dim : std::max(wishes.rotary, 2), random),
        sinks_(DType::kF32, 1, shape.heads, random, 2.0F),
        out_(dtype, paged_.batch.num_tokens, std::int64_t{shape.heads} * shape.dim, random),
        wishes_(wishes),
        memory_(paged_.memory().tensor()),
        device_qkv_(qkv_.tensor()),
        device_norm_(norm_.vector()),
        device_cos_sin_(cos_sin_.tensor()),
        device_sinks_(sinks_.vector()),
        device_out_(out_.tensor()) {
    if (wishes.window > 0) paged_.drop_blocks_before(wishes.window);
    const AttentionBatch& host = paged_.batch;
    for (const Tensor& part : {host.query_starts, host.seq_lens, host.table_rows, host.block_tables,
                               host.positions, host.slot_mapping})
      parts_.push_back(std::make_unique<DeviceTensor>(part));
    device_out_.poison();
  }

  AttentionBatch batch() const {
    AttentionBatch batch = paged_.batch;
    batch.query_starts = parts_[0]->tensor();
    batch.seq_lens = parts_[1]->tensor();
    batch.table_rows = parts_[2]->tensor();
    batch.block_tables = parts_[3]->tensor();
    batch.positions = parts_[4]->tensor();
    batch.slot_mapping = parts_[5]->tensor();
    return batch;
  }
  AttentionInput input(bool device) const {
    AttentionInput input;
    input.qkv = device ? device_qkv_.tensor() : qkv_.tensor();
    input.norm_eps = 1e-6F;
    input.num_heads = shape_.heads;
    input.num_kv_heads = shape_.kv_heads;
    input.head_dim = shape_.dim;
    const Tensor norm = device ? device_norm_.tensor() : norm_.vector();
    if (wishes_.norms) input.q_norm = input.k_norm = norm;
    if (wishes_.value_norm) input.v_norm = norm;
    if (wishes_.rotary != 0) input.cos_sin = device ? device_cos_sin_.tensor() : cos_sin_.tensor();
    return input;
  }
  AttentionScores scores(bool device) const {
    AttentionScores scores;
    scores.scale = 0.3F / std::sqrt(static_cast<float>(shape_.dim));
    scores.cap = wishes_.cap;
    scores.window = wishes_.window;
    if (wishes_.sinks) scores.sinks = device ? device_sinks_.tensor() : sinks_.vector();
    return scores;
  }
  KvCacheLayer cache() const {
    const void* const host = paged_.memory().tensor().data();
    return {testing::on_device(paged_.cache.keys, host, memory_),
            testing::on_device(paged_.cache.values, host, memory_)};
  }
  const Tensor& out() const { return device_out_.tensor(); }

  std::vector<float> result() {
    device_out_.download(out_.tensor());
    return widen(out_.tensor());
  }
  std::vector<float> expected() {
    ReferenceBackend reference;
    reference.rotate_and_store(input(false), paged_.cache, paged_.batch);
    reference.attention(out_.tensor(), input(false).queries(), paged_.cache, paged_.batch, scores(false));
    return widen(out_.tensor());
  }
  std::vector<std::byte> cache_bytes() const {
    std::vector<std::byte> bytes(memory_.tensor().bytes());
    const Tensor& like = memory_.tensor();
    memory_.download(Tensor(bytes.data(), like.dtype(), {like.dim(0), like.dim(1)}));
    return bytes;
  }
  void set_cache(const std::vector<std::byte>& bytes) {
    check(cudaMemcpy(memory_.tensor().data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cache");
  }
  void end(int sequence) {  // it has no length any more
    check(cudaMemset(parts_[1]->tensor().data_as<int>() + sequence, 0, sizeof(int)), "length");
  }
  std::int64_t width() const { return out_.tensor().dim(1); }

 private:
  static std::vector<PagedBatch::Span> spans_of(const std::vector<int>& contexts) {
    std::vector<PagedBatch::Span> spans;
    for (const int context : contexts) spans.push_back({context, 1});
    return spans;
  }

  PagedShape shape_;
  PagedBatch paged_;
  Matrix qkv_, norm_, cos_sin_, sinks_, out_;
  Wishes wishes_;
  DeviceTensor memory_, device_qkv_, device_norm_, device_cos_sin_, device_sinks_, device_out_;
  std::vector<std::unique_ptr<DeviceTensor>> parts_;
};

class ClusterAttentionTest : public testing::DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !overlaps_kernels()) GTEST_SKIP() << "a GPU without clusters";
  }

  void expect_reference(const PagedShape& shape, const std::vector<int>& contexts,
                        const Wishes& wishes = {}) {
    const std::string what = std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) +
                             " heads of " + std::to_string(shape.dim) + ", blocks of " +
                             std::to_string(shape.block_size) + ", " + std::to_string(contexts.size()) +
                             " sequences, window " + std::to_string(wishes.window);
    Step step(shape, contexts, GetParam(), random_, wishes);
    const std::vector<std::byte> before = step.cache_bytes();
    const bool is_long =
        (wishes.window == 0 || wishes.window > 2048) && *std::ranges::max_element(contexts) >= 2048;
    ASSERT_NE(
        cluster_attention_supports(context_, step.input(true), step.cache(), step.batch(), step.scores(true)),
        is_long)
        << what;
    cluster_attention(context_, step.out(), step.input(true), step.cache(), step.batch(), step.scores(true));
    const std::vector<float> actual = step.result();
    const std::vector<std::byte> after = step.cache_bytes();
    step.set_cache(before);
    rotate_and_store(context_, step.input(true), step.cache(), step.batch());
    ASSERT_EQ(after, step.cache_bytes()) << what;
    ASSERT_NE(after, before) << what;
    const std::vector<float> expected = step.expected();
    for (int row = 0; row < std::ssize(contexts); ++row)
      ASSERT_LT(row_error(actual, expected, row, step.width()), 1.5 * attention_tolerance(GetParam()))
          << what << ", row " << row;
  }

  std::mt19937 random_{17};
};

TEST_P(ClusterAttentionTest, EqualsTheReferenceForEveryHeadSizeGroupAndBlockSize) {
  for (const PagedShape& shape :
       {PagedShape{2, 1, 64, 16}, PagedShape{6, 1, 64, 8}, PagedShape{3, 3, 80, 32}, PagedShape{14, 2, 80, 8},
        PagedShape{8, 2, 96, 16}, PagedShape{16, 1, 96, 64}, PagedShape{16, 8, 128, 16},
        PagedShape{5, 1, 128, 128}, PagedShape{12, 1, 128, 8}, PagedShape{8, 1, 256, 64},
        PagedShape{11, 1, 256, 256}, PagedShape{29, 1, 64, 32}, PagedShape{64, 1, 128, 16}}) {
    const int block = shape.block_size;
    expect_reference(shape, {0, block - 2, block - 1, block, 15, 700, 3000});
  }
}

TEST_P(ClusterAttentionTest, EqualsTheReferenceForEveryLengthAroundTiles) {
  for (const int first : {0, 60, 500, 1010, 2040}) {
    std::vector<int> contexts;
    for (int i = 0; i < 16; ++i) contexts.push_back(first + i);
    expect_reference({4, 2, 128, 16}, contexts);
    expect_reference({4, 2, 64, 32}, contexts);
  }
}

TEST_P(ClusterAttentionTest, EqualsTheReferenceForEveryNumberOfSequencesAndALongOne) {
  for (const int count : {1, 2, 4, 7, 16}) {
    std::vector<int> contexts(static_cast<std::size_t>(count), 333);
    contexts.front() = 9000;
    expect_reference({16, 8, 128, 16}, contexts);
  }
}

TEST_P(ClusterAttentionTest, EqualsTheReferenceWithWindowsCapsSinksAndOtherNorms) {
  for (const PagedShape& shape :
       {PagedShape{8, 4, 128, 16}, PagedShape{12, 1, 80, 8}, PagedShape{2, 2, 256, 64}}) {
    for (const int window : {1, 8, 9, 33, 250, 5000})
      expect_reference(shape, {0, 7, window % 500, window % 500 + 8, 599}, {.window = window});
    expect_reference(shape, {0, 15, 3000}, {.cap = 5, .sinks = true});
    expect_reference(shape, {40, 600}, {.window = 128, .cap = 2, .sinks = true});
    expect_reference(shape, {40, 600}, {.norms = false});
    expect_reference(shape, {40, 600}, {.value_norm = true, .rotary = shape.dim / 2});
    expect_reference(shape, {40, 600}, {.norms = false, .rotary = 0});
  }
}

TEST_P(ClusterAttentionTest, LeavesSequencesWithoutALengthAlone) {
  Step step({8, 2, 128, 16}, {100, 200, 300}, GetParam(), random_, {});
  step.end(1);
  cluster_attention(context_, step.out(), step.input(true), step.cache(), step.batch(), step.scores(true));
  const std::vector<float> actual = step.result(), expected = step.expected();
  const auto width = static_cast<std::ptrdiff_t>(step.width());
  for (auto value = actual.begin() + width; value < actual.begin() + 2 * width; ++value)
    ASSERT_TRUE(std::isnan(*value));
  for (const int row : {0, 2})
    EXPECT_LT(row_error(actual, expected, row, step.width()), 1.5 * attention_tolerance(GetParam()));
}

TEST_P(ClusterAttentionTest, LeavesWhatItDoesNotComputeToOthers) {
  const auto supports = [&](const PagedShape& shape, int count, auto&& change) {
    const Step step(shape, std::vector<int>(static_cast<std::size_t>(count), 20), GetParam(), random_, {});
    AttentionInput input = step.input(true);
    KvCacheLayer cache = step.cache();
    AttentionBatch batch = step.batch();
    AttentionScores scores = step.scores(true);
    change(input, cache, batch, scores);
    return cluster_attention_supports(context_, input, cache, batch, scores);
  };
  const auto nothing = [](auto&...) {};
  EXPECT_TRUE(supports({8, 2, 128, 16}, 3, nothing));
  EXPECT_FALSE(supports({8, 2, 128, 16}, 200, nothing));
  context_.shared_bytes = 48 << 10;  // of a GPU that has less
  EXPECT_FALSE(supports({8, 2, 128, 16}, 3, nothing));
  context_ = make_context(0);
  EXPECT_FALSE(supports({8, 2, 72, 16}, 3, nothing));
  EXPECT_FALSE(supports({8, 2, 128, 16}, 3, [](auto& input, auto&...) { input.norm_after_rotary = true; }));
  EXPECT_FALSE(supports({8, 2, 128, 16}, 3, [](auto& input, auto&...) { input.num_kv_heads = 0; }));
  EXPECT_FALSE(
      supports({8, 2, 128, 16}, 3, [](auto&, auto& cache, auto&...) { cache.code = CacheCode::kE4m3; }));
  EXPECT_FALSE(
      supports({8, 2, 128, 16}, 3, [](auto&, auto&, auto& batch, auto&) { batch.max_query_len = 2; }));
  const auto make_long = [](auto&, auto&, auto& batch, auto&) { batch.max_seq_len = 2049; };
  EXPECT_FALSE(supports({8, 2, 128, 16}, 3, make_long));
  EXPECT_TRUE(supports({8, 2, 128, 16}, 3, [&](auto& input, auto& cache, auto& batch, auto& scores) {
    make_long(input, cache, batch, scores);
    scores.window = 100;
  }));
  EXPECT_FALSE(supports({8, 2, 128, 16}, 3,
                        [](auto& input, auto&, auto&, auto& scores) { scores.alibi_slopes = input.k_norm; }));
}

INSTANTIATE_TEST_SUITE_P(Types, ClusterAttentionTest, ::testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire::cuda
