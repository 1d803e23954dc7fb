// Steps replayed from graphs compute what the same steps compute op by op.
#include <gtest/gtest.h>

#include <deque>

#include "backends/cpu/reference/reference_backend.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

class Closure : public Graph {
 public:
  explicit Closure(std::function<void()> recorded) : ops(std::move(recorded)) {}
  std::function<void()> ops;
};

// Graphs for a backend that has none: what was recorded runs again, with the tensors it named then.
class ReplayingBackend : public ReferenceBackend {
 public:
  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>& ops) override {
    return std::make_unique<Closure>(ops);
  }
  void replay(const Graph& graph) override {
    ++num_replays;
    dynamic_cast<const Closure&>(graph).ops();
  }

  int num_replays = 0;
};

class DecodeGraphTest : public ::testing::Test {
 protected:
  static constexpr int kBlockSize = 8;
  static constexpr int kBlocksEach = 4;

  std::unique_ptr<ModelRunner> make_runner(bool use_graphs) {
    EngineConfig config = testing::golden_config("qwen3");
    config.block_size = kBlockSize;
    config.max_num_seqs = 32;
    config.enforce_eager = !use_graphs;
    const auto model = ModelConfig::from_file(testing::golden_directory("qwen3") / "config.json");
    configs_.push_back(resolve_config(config, model, backend_, comm_));
    Checkpoint checkpoint(testing::golden_directory("qwen3"));
    auto runner = std::make_unique<ModelRunner>(backend_, comm_, configs_.back(), model, checkpoint);
    runner->capture_graphs();
    return runner;
  }

  // A first step over prompts of 3, 4, 5, … tokens, then decode steps of the sequences in `alive`, by step.
  static std::vector<TokenId> run(ModelRunner& runner, int sequences, const std::vector<int>& alive) {
    std::vector<TokenId> tokens;
    StepPlan prompts;
    for (int s = 0; s < sequences; ++s) {
      SequencePlan span;
      span.sequence = static_cast<SequenceId>(s);
      span.seat = s;
      span.start = SamplingState();
      span.num_tokens = 3 + s;
      for (int i = 0; i < span.num_tokens; ++i) span.tokens.push_back(7 * s + 3 * i + 1);
      for (int b = 0; b < kBlocksEach; ++b) span.new_blocks.push_back(s * kBlocksEach + b);
      span.output = OutputKind::kLast;
      span.sample = true;
      prompts.num_tokens += span.num_tokens;
      prompts.sequences.push_back(span);
    }
    step(runner, prompts, tokens);
    for (std::size_t round = 0; round < alive.size(); ++round) {
      StepPlan decode;
      for (int s = sequences - alive[round]; s < sequences; ++s) {
        SequencePlan span;
        span.sequence = static_cast<SequenceId>(s);
        span.seat = s;
        span.first_position = 3 + s + static_cast<int>(round);
        span.num_tokens = 1;
        span.first_new_row = kBlocksEach;
        span.output = OutputKind::kLast;
        span.sample = true;
        decode.sequences.push_back(span);
        ++decode.num_tokens;
      }
      step(runner, decode, tokens);
    }
    return tokens;
  }

  static void step(ModelRunner& runner, const StepPlan& plan, std::vector<TokenId>& tokens) {
    runner.submit(plan);
    for (const SequenceResult& result : runner.collect().sequences) tokens.push_back(result.token);
  }

  ReplayingBackend backend_;
  SingleRank comm_{backend_};
  std::deque<RuntimeConfig> configs_;
};

TEST_F(DecodeGraphTest, GraphsGiveTheSameTokensAsOpsCalledOneByOne) {
  const std::vector<int> alive = {5, 5, 4, 3, 3, 1, 1};
  const auto plain = run(*make_runner(false), 5, alive);
  EXPECT_EQ(backend_.num_replays, 0);
  const auto replayed = run(*make_runner(true), 5, alive);
  EXPECT_EQ(backend_.num_replays, static_cast<int>(alive.size()));
  EXPECT_EQ(replayed, plain);
}

// There is a graph for 16 sequences and one for 24.
TEST_F(DecodeGraphTest, APaddedGraphGivesTheSameTokens) {
  const std::vector<int> alive = {19, 19, 18, 17, 16, 2};
  const auto replayed = run(*make_runner(true), 19, alive);
  EXPECT_EQ(backend_.num_replays, static_cast<int>(alive.size()));
  EXPECT_EQ(replayed, run(*make_runner(false), 19, alive));
}

// Few sequences have a graph for short ones, too; many have one.
TEST_F(DecodeGraphTest, TheSmallestGraphThatHoldsTheRowsAndTheLengthIsTaken) {
  std::vector<DecodeGraph> graphs;
  for (const StepBounds& bounds : graph_bounds({24, 5000})) graphs.push_back({bounds, nullptr, {}});
  const auto bounds_of = [&](int rows, int longest) {
    StepPlan plan;
    for (int i = 0; i < rows; ++i) {
      SequencePlan& span = plan.sequences.emplace_back();
      span.num_tokens = 1;
      span.first_position = i == rows / 2 ? longest - 1 : 0;
    }
    const DecodeGraph* graph = find_graph(graphs, plan);
    return graph == nullptr ? std::pair(0, 0) : std::pair(graph->bounds.rows, graph->bounds.seq_len);
  };
  EXPECT_EQ(bounds_of(1, 1), std::pair(1, 2048));
  EXPECT_EQ(bounds_of(3, 2048), std::pair(3, 2048));
  EXPECT_EQ(bounds_of(3, 2049), std::pair(3, 5000));
  EXPECT_EQ(bounds_of(16, 2048), std::pair(16, 2048));
  EXPECT_EQ(bounds_of(17, 5), std::pair(24, 5000));
  EXPECT_EQ(bounds_of(25, 5), std::pair(0, 0));
}

}  // namespace
}  // namespace quire
