// The layers' shards: a model spread over ranks computes what one rank computes.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <numeric>
#include <thread>

#include "backends/registry.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "parallel/single_rank.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

// What ranks in threads share: each shows its tensor, all look, then all go on.
struct Meeting {
  explicit Meeting(int num_ranks)
      : size(num_ranks), tensors(static_cast<std::size_t>(num_ranks)), barrier(num_ranks) {}
  int size;
  std::vector<Tensor> tensors;
  std::barrier<> barrier;
};

class MeetingRank : public Communicator {
 public:
  MeetingRank(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_.size; }

  void all_reduce(const Tensor& tensor) override {
    show(tensor);
    const auto n = static_cast<std::size_t>(tensor.numel());
    std::vector<float> sum(n, 0.0F);
    for (const Tensor& other : meeting_.tensors) {
      for (std::size_t i = 0; i < n; ++i) sum[i] += other.data_as<float>()[i];
    }
    meeting_.barrier.arrive_and_wait();
    std::memcpy(tensor.data(), sum.data(), n * sizeof(float));
  }

  void all_gather(const Tensor& out, const Tensor& in) override {
    show(in);
    for (int r = 0; r < size(); ++r) {
      for (std::int64_t row = 0; row < in.dim(0); ++row) {
        const Tensor from = meeting_.tensors[static_cast<std::size_t>(r)].rows(row, 1);
        std::memcpy(out.rows(row, 1).columns(r * in.dim(1), in.dim(1)).data(), from.data(), from.bytes());
      }
    }
    meeting_.barrier.arrive_and_wait();
  }

  void broadcast(const Tensor& tensor, int root) override {
    show(tensor);
    if (rank_ != root)
      std::memcpy(tensor.data(), meeting_.tensors[static_cast<std::size_t>(root)].data(), tensor.bytes());
    meeting_.barrier.arrive_and_wait();
  }

 private:
  void show(const Tensor& tensor) {
    meeting_.tensors[static_cast<std::size_t>(rank_)] = tensor;
    meeting_.barrier.arrive_and_wait();
  }

  Meeting& meeting_;
  int rank_;
};

// Logits at every position of a golden prompt, as one rank sees them.
std::vector<float> logits_of(const std::string& model, Backend& backend, Communicator& comm) {
  const auto model_config = ModelConfig::from_file(testing::golden_directory(model) / "config.json");
  const RuntimeConfig config = resolve_config(testing::golden_config(model), model_config, backend, comm);
  Checkpoint checkpoint(testing::golden_directory(model));
  ModelRunner runner(backend, comm, config, model_config, checkpoint);
  SequencePlan span;
  span.start = SamplingState{};
  span.tokens = testing::golden_ids(model, "prompt.1");
  span.num_tokens = static_cast<int>(span.tokens.size());
  span.new_blocks.resize(span.tokens.size() / 16 + 1);
  std::iota(span.new_blocks.begin(), span.new_blocks.end(), 0);
  span.output = OutputKind::kAll;
  StepPlan plan;
  plan.id = 1;
  plan.num_tokens = span.num_tokens;
  plan.sequences = {span};
  runner.submit(plan);
  return runner.collect().sequences.front().logits;
}

class ShardingTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(ShardingTest, RanksTogetherComputeWhatOneComputes) {
  const auto& [model, ranks] = GetParam();
  const auto backend = make_backend({});
  SingleRank single(*backend);
  const std::vector<float> expected = logits_of(model, *backend, single);

  Meeting meeting(ranks);
  std::vector<std::vector<float>> logits(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto own = make_backend({});
      MeetingRank comm(meeting, rank);
      logits[static_cast<std::size_t>(rank)] = logits_of(std::get<0>(GetParam()), *own, comm);
    });
  }
  for (std::thread& thread : threads) thread.join();

  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::abs(logit));
  for (const std::vector<float>& of_rank : logits) {
    ASSERT_EQ(of_rank.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(of_rank[i], expected[i], 2e-5F * largest);
  }
}

// Every golden model over as many ranks as divide its heads. Some have one or two KV heads, so that more
// ranks replicate them.
std::vector<std::tuple<std::string, int>> cases() {
  std::vector<std::tuple<std::string, int>> result;
  for (const std::string& model : testing::golden_models()) {
    const auto config = ModelConfig::from_file(testing::golden_directory(model) / "config.json");
    const ModelSpec spec = find_model_family(config.architecture()).describe(config);
    for (const int ranks : {2, 4}) {
      if (spec.num_heads % ranks == 0) result.emplace_back(model, ranks);
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardingTest, ::testing::ValuesIn(cases()), [](const auto& test) {
  return testing::test_name({std::get<0>(test.param), std::to_string(std::get<1>(test.param))});
});

TEST(ShardingTest, WhatCannotBeDividedIsRefused) {
  const auto backend = make_backend({});
  Meeting meeting(3);
  MeetingRank comm(meeting, 0);
  EXPECT_THROW(logits_of("qwen3", *backend, comm), Error);
}

}  // namespace
}  // namespace quire
