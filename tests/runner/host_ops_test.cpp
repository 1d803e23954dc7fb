// A device that has no kernel for an op runs it on the host, and computes the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backends/cpu/reference/reference_backend.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "ops/host_copies.h"
#include "ops/ops.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

// Has graphs, and kernels for what multiplies with packed weights, and no others. Its memory is where no
// address of it leads: who takes a tensor of the device for one of the host crashes.
class FarBackend final : public Backend {
 public:
  std::string_view name() const override { return "far"; }
  DeviceKind device() const override { return DeviceKind::kCuda; }
  bool asynchronous() const override { return true; }
  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>&) override {
    ADD_FAILURE() << "a graph with an op that runs on the host";
    return nullptr;
  }

  std::size_t total_memory() const override { return near_.total_memory(); }
  Buffer allocate(std::size_t bytes, MemoryKind kind) override {
    const Buffer buffer = near_.allocate(bytes, kind);
    if (kind == MemoryKind::kHost || bytes == 0) return buffer;
    void* far = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(buffer.data()) + kFar);
    return {std::shared_ptr<void>(far, [buffer](void*) {}), bytes, DeviceKind::kCuda};
  }
  void copy(const Tensor& dst, const Tensor& src) override {
    ASSERT_TRUE(dst.contiguous() && src.contiguous() && dst.bytes() == src.bytes());
    std::memcpy(place(dst), place(src), src.bytes());
  }

  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) override {
    return near_.make_linear(parts, dtype);
  }
  void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& bias) override {
    near_.linear(near(out), near(x), weights, near(bias));
  }
  void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids, std::int64_t first_row,
                 float scale) override {
    near_.embedding(near(out), weights, near(ids), first_row, scale);
  }
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts, const ExpertShape& shape,
                                              DType dtype) override {
    return near_.make_experts(experts, shape, dtype);
  }
  void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights, const ExpertRouting& routing,
               const Tensor& workspace) override {
    near_.experts(near(out), near(x), weights, {near(routing.experts), near(routing.weights)}, workspace);
  }

 private:
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;

  static void* place(const Tensor& tensor) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.data());
    return reinterpret_cast<void*>(tensor.device() == DeviceKind::kCpu ? address : address - kFar);
  }
  static Tensor near(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const Tensor& t = tensor;
    if (t.num_dims() == 1) return Tensor(place(t), t.dtype(), {t.dim(0)});
    return Tensor(place(t), t.dtype(), {t.dim(0), t.dim(1)}).with_strides({t.stride(0), 1});
  }

  ReferenceBackend near_;
};

constexpr int kBlockSize = 8;
constexpr int kBlocksEach = 4;

// Of a table: a block in each lane.
void append_row(std::vector<BlockId>& blocks, int row, int num_lanes) {
  for (int lane = 0; lane < num_lanes; ++lane) blocks.push_back(row * num_lanes + lane);
}

// Sequence s has a prompt of 9 + s tokens; the first is sampled greedily, the others change their logits and
// draw.
SequencePlan make_prompt(int s, int num_lanes) {
  SequencePlan span;
  span.sequence = static_cast<SequenceId>(s);
  span.seat = s;
  span.num_tokens = span.num_prompt = 9 + s;
  for (int i = 0; i < span.num_tokens; ++i) span.tokens.push_back(7 * s + 3 * i + 1);
  for (int b = 0; b < kBlocksEach; ++b) append_row(span.new_blocks, s * kBlocksEach + b, num_lanes);
  span.state_to = s;
  span.output = s == 0 ? OutputKind::kAll : OutputKind::kLogprobs;
  span.sample = true;
  span.start = SamplingState();
  span.start->num_logprobs = span.start->num_prompt_logprobs = 2;
  if (s == 0) return span;
  span.start->temperature = 0.8F;
  span.start->seed = 17;
  span.start->top_k = 40 * (s - 1);
  span.start->presence_penalty = 0.5F;
  span.start->repetition_penalty = 1.2F;
  span.start->biases = {{5, 2.0F}};
  span.start->bad_words = {{6}, {7, 8}};
  span.history = span.tokens;
  return span;
}

// Prompts, then decode steps of all but the first; in one of them the second's first block moves within the
// cache, and the third's by way of host memory.
std::vector<SequenceResult> run(Backend& backend, const std::string& name) {
  SingleRank comm(backend);
  EngineConfig asked = testing::golden_config(name);
  asked.block_size = kBlockSize;
  asked.max_model_len = 64;
  asked.kv_cache_memory = 1 << 20;
  asked.swap_space = 0.001;
  const auto model = ModelConfig::from_file(testing::golden_directory(name) / "config.json");
  const RuntimeConfig config = resolve_config(asked, model, backend, comm);
  Checkpoint checkpoint(testing::golden_directory(name));
  ModelRunner runner(backend, comm, config, model, checkpoint);
  runner.capture_graphs();
  std::vector<SequenceResult> results;
  const auto step = [&](const StepPlan& plan) {
    runner.submit(plan);
    for (SequenceResult& result : runner.collect().sequences) results.push_back(std::move(result));
  };
  constexpr int kSequences = 3;
  const int num_lanes = config.cache.layout.num_lanes();
  const auto copy_row = [&](std::vector<BlockCopy>& copies, int from, int to) {
    for (int lane = 0; lane < num_lanes; ++lane)
      copies.push_back({from * num_lanes + lane, to * num_lanes + lane});
  };
  StepPlan prompts;
  for (int s = 0; s < kSequences; ++s) {
    prompts.sequences.push_back(make_prompt(s, num_lanes));
    prompts.num_tokens += prompts.sequences.back().num_tokens;
  }
  step(prompts);
  for (int round = 0; round < 4; ++round) {
    StepPlan decode;
    decode.num_tokens = kSequences - 1;
    for (int s = 1; s < kSequences; ++s) {
      SequencePlan& span = decode.sequences.emplace_back();
      span.sequence = static_cast<SequenceId>(s);
      span.seat = s;
      span.first_position = 9 + s + round;
      span.num_tokens = 1;
      span.first_new_row = kBlocksEach;
      span.state_from = span.state_to = s;
      span.output = OutputKind::kLast;
      span.sample = true;
      if (round != 2) continue;
      span.first_new_row = 0;
      for (const int row : {12 + s, s * kBlocksEach + 1, s * kBlocksEach + 2})
        append_row(span.new_blocks, row, num_lanes);
    }
    if (round == 1) copy_row(decode.saves, 2 * kBlocksEach, 0);
    if (round == 2) copy_row(decode.block_copies, kBlocksEach, 13);
    if (round == 2) copy_row(decode.restores, 0, 14);
    step(decode);
  }
  return results;
}

void expect_same(const PositionLogprobs& a, const PositionLogprobs& b) {
  EXPECT_EQ(a.token.token_id, b.token.token_id);
  EXPECT_EQ(a.token.logprob, b.token.logprob);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (std::size_t i = 0; i < a.top.size(); ++i) EXPECT_EQ(a.top[i].token_id, b.top[i].token_id);
}

TEST(CopyPiecesTest, WhatHasStridesAreRowsOrFixedStatesOrPartsOfACache) {
  ReferenceBackend backend;
  std::vector<float> from(24), to(24, -1);
  std::iota(from.begin(), from.end(), 0.0F);
  copy_pieces(backend, Tensor(to.data(), DType::kF32, {4, 2}),
              Tensor(from.data(), DType::kF32, {4, 6}).columns(1, 2));
  EXPECT_EQ((std::vector<float>{to.begin(), to.begin() + 9}),
            (std::vector<float>{1, 2, 7, 8, 13, 14, 19, 20, -1}));
  // Two blocks of one head [2, 2]; behind each lies something else.
  copy_pieces(backend, Tensor(to.data(), DType::kF32, {2, 1, 2, 2}),
              Tensor(from.data(), DType::kF32, {2, 1, 2, 2}).with_strides({8, 4, 2, 1}));
  EXPECT_EQ((std::vector<float>{to.begin(), to.begin() + 9}),
            (std::vector<float>{0, 1, 2, 3, 8, 9, 10, 11, -1}));
  // Two slots of [1, 3], likewise.
  copy_pieces(backend, Tensor(to.data(), DType::kF32, {2, 1, 3}),
              Tensor(from.data(), DType::kF32, {2, 1, 3}).with_strides({5, 3, 1}));
  EXPECT_EQ((std::vector<float>{to.begin(), to.begin() + 7}), (std::vector<float>{0, 1, 2, 5, 6, 7, 10}));
  const Tensor deep = Tensor(from.data(), DType::kF32, {2, 3, 4}).columns(0, 2);
  EXPECT_THROW(copy_pieces(backend, Tensor(to.data(), DType::kF32, {2, 3, 2}), deep), InternalError);
  const Tensor apart = Tensor(from.data(), DType::kF32, {4}).with_strides({2});
  EXPECT_THROW(copy_pieces(backend, Tensor(to.data(), DType::kF32, {4}), apart), InternalError);
}

class HostOpsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HostOpsTest, AModelComputesTheSameBits) {
  if (!std::filesystem::exists(testing::golden_directory(GetParam())))
    GTEST_SKIP() << GetParam() << " is not there";
  ReferenceBackend reference;
  FarBackend far;
  ::testing::internal::CaptureStderr();
  const std::vector<SequenceResult> results = run(far, GetParam());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(far.runs_on_host());
  // Every op is named once.
  for (const std::string op : {"attention", "gather_rows", "adjust_logits", "log_probs", "copy_blocks"}) {
    const std::size_t place = log.find("for " + op + ",");
    EXPECT_NE(place, log.npos) << op;
    EXPECT_EQ(log.find("for " + op + ",", place + 1), log.npos) << op;
  }
  const std::vector<SequenceResult> expected = run(reference, GetParam());
  EXPECT_FALSE(reference.runs_on_host());
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_GE(results[i].token, 0);
    EXPECT_EQ(results[i].token, expected[i].token);
    EXPECT_EQ(results[i].logits, expected[i].logits);
    ASSERT_TRUE(results[i].logprobs && expected[i].logprobs);
    expect_same(*results[i].logprobs, *expected[i].logprobs);
    ASSERT_EQ(results[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
    for (std::size_t p = 0; p < results[i].prompt_logprobs.size(); ++p)
      expect_same(results[i].prompt_logprobs[p], expected[i].prompt_logprobs[p]);
  }
}

// Between them they call every op.
INSTANTIATE_TEST_SUITE_P(Models, HostOpsTest,
                         ::testing::Values("qwen3-moe", "gemma2", "gpt2", "bloom-heads", "mistral-window",
                                           "lfm2-moe"),
                         [](const auto& model) { return testing::test_name({model.param}); });

}  // namespace
}  // namespace quire
