// The accumulation contract, of the CPU and of a GPU's deterministic mode: a sequence's logits are bitwise
// the same alone, in any batch, in any chunking, with any number of threads, and over cached blocks that
// another sequence computed.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "backends/registry.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

constexpr int kTokensOfBlock = 8;

// What weights and KV cache are made into.
struct Codes {
  std::string weights = "none", cache = "auto";
};
using InvarianceCase =
    std::tuple<std::string, std::string, std::string, Codes>;  // model, dtype, kernels, codes

class RunnerHarness {
 public:
  RunnerHarness(const InvarianceCase& test, int threads)
      : RunnerHarness(std::get<0>(test), configure(test, threads)) {}

  const RuntimeConfig& config() const { return config_; }

  // Runs one step over spans of sequences; every position's logits come back, by sequence.
  std::map<int, std::vector<float>> step(std::vector<SequencePlan> spans) {
    StepPlan plan;
    plan.id = ++last_plan_;
    for (SequencePlan& span : spans) {
      span.output = OutputKind::kAll;
      plan.num_tokens += span.num_tokens;
    }
    plan.sequences = std::move(spans);
    runner_->submit(plan);
    std::map<int, std::vector<float>> logits;
    for (SequenceResult& result : runner_->collect().sequences) {
      logits[static_cast<int>(result.sequence)] = std::move(result.logits);
    }
    return logits;
  }

 private:
  static EngineConfig configure(const InvarianceCase& test, int threads) {
    const auto& [model, dtype, kernels, codes] = test;
    EngineConfig config = testing::golden_config(model, dtype);
    testing::use_kernels(config, kernels);
    config.quantization = codes.weights;
    config.quantize_head = codes.weights != "none";
    config.kv_cache_dtype = codes.cache;
    config.block_size = kTokensOfBlock;
    config.cpu_threads = threads;
    return config;
  }

  RunnerHarness(const std::string& model, const EngineConfig& config)
      : backend_(make_backend({config.device, config.cpu_isa, config.cpu_threads, config.deterministic})),
        comm_(*backend_) {
    const auto model_config = ModelConfig::from_file(testing::golden_directory(model) / "config.json");
    config_ = resolve_config(config, model_config, *backend_, comm_);
    Checkpoint checkpoint(testing::golden_directory(model));
    runner_ = std::make_unique<ModelRunner>(*backend_, comm_, config_, model_config, checkpoint);
  }

  std::unique_ptr<Backend> backend_;
  SingleRank comm_;
  RuntimeConfig config_;
  std::unique_ptr<ModelRunner> runner_;
  std::uint64_t last_plan_ = 0;
};

// A sequence on its way through random chunks.
struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;  // [rows, lanes]
  int computed = 0;
  bool known = false;  // the runner has its block table
  std::vector<float> logits;
};

SequencePlan span_of(Sequence& sequence, int seat, int count) {
  SequencePlan span;
  span.sequence = static_cast<SequenceId>(seat);
  span.seat = seat;
  span.first_position = sequence.computed;
  span.num_tokens = count;
  span.tokens.assign(sequence.tokens.begin() + sequence.computed,
                     sequence.tokens.begin() + sequence.computed + count);
  if (!sequence.known) {
    span.start = SamplingState{};
    span.new_blocks = sequence.blocks;
    sequence.known = true;
  }
  span.state_from = sequence.computed == 0 ? kNoBlock : seat;
  span.state_to = seat;
  sequence.computed += count;
  return span;
}

std::vector<float> logits_alone(RunnerHarness& harness, const std::vector<TokenId>& tokens) {
  Sequence sequence{.tokens = tokens, .blocks = {}, .logits = {}};
  const CacheLayout& layout = harness.config().cache.layout;
  sequence.blocks.resize((tokens.size() / kTokensOfBlock + 1) * layout.windows.size());
  std::iota(sequence.blocks.begin(), sequence.blocks.end(), 0);
  return harness.step({span_of(sequence, 0, static_cast<int>(tokens.size()))})[0];
}

class InvarianceTest : public ::testing::TestWithParam<InvarianceCase> {};

TEST_P(InvarianceTest, LogitsAreBitwiseTheSameInAnyMixture) {
  RunnerHarness harness(GetParam(), 2), single(GetParam(), 1);
  std::mt19937 random(1);
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };

  const std::size_t num_lanes = harness.config().cache.lanes.size();
  for (int round = 0; round < 6; ++round) {
    // Sequences of random lengths; the last one shares the first one's leading blocks, computed by that one.
    std::vector<Sequence> sequences(5);
    std::vector<BlockId> free_blocks(static_cast<std::size_t>(harness.config().num_blocks));
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    std::shuffle(free_blocks.begin(), free_blocks.end(), random);
    for (Sequence& sequence : sequences) {
      sequence.tokens.resize(static_cast<std::size_t>(uniform(1, round < 5 ? 90 : 200)));
      for (TokenId& token : sequence.tokens) token = uniform(0, harness.config().spec.vocab_size - 1);
      for (std::size_t i = 0; i < (sequence.tokens.size() / kTokensOfBlock + 1) * num_lanes; ++i) {
        sequence.blocks.push_back(free_blocks.back());
        free_blocks.pop_back();
      }
    }
    Sequence& donor = sequences.front();
    Sequence& heir = sequences.back();
    // What a sequence keeps as a whole is not shared here.
    const bool shares = harness.config().cache.fixed.empty();
    const int shared = shares ? static_cast<int>(donor.tokens.size()) / kTokensOfBlock : 0;
    std::vector<TokenId> tail = heir.tokens;
    heir.tokens.assign(donor.tokens.begin(), donor.tokens.begin() + shared * kTokensOfBlock);
    heir.tokens.insert(heir.tokens.end(), tail.begin(), tail.end());
    heir.blocks.insert(heir.blocks.begin(), donor.blocks.begin(),
                       donor.blocks.begin() + shared * static_cast<int>(num_lanes));
    heir.computed = shared * kTokensOfBlock;

    bool unfinished = true;
    while (unfinished) {
      unfinished = false;
      std::vector<SequencePlan> spans;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        Sequence& sequence = sequences[s];
        const int left = static_cast<int>(sequence.tokens.size()) - sequence.computed;
        const bool waits = &sequence == &heir && donor.computed < static_cast<int>(donor.tokens.size());
        unfinished = unfinished || left > 0;
        if (left == 0 || waits || uniform(0, 2) == 0) continue;
        const int count = std::min(left, uniform(0, 2) == 0 ? 1 : uniform(1, 40));
        spans.push_back(span_of(sequence, static_cast<int>(s), count));
      }
      if (spans.empty()) continue;
      std::shuffle(spans.begin(), spans.end(), random);
      for (auto& [s, logits] : harness.step(std::move(spans))) {
        auto& all = sequences[static_cast<std::size_t>(s)].logits;
        all.insert(all.end(), logits.begin(), logits.end());
      }
    }
    for (Sequence& sequence : sequences) {
      const std::vector<float> alone = logits_alone(single, sequence.tokens);
      ASSERT_LE(sequence.logits.size(), alone.size());
      // The heir has no logits of the blocks it was given.
      ASSERT_EQ(0, std::memcmp(sequence.logits.data(), &alone[alone.size() - sequence.logits.size()],
                               sequence.logits.size() * sizeof(float)))
          << "round " << round;
    }
  }
}

// One of each family, of which some lie beside the project, or do not; and heads of sizes that are published.
std::vector<std::string> models() {
  std::vector<std::string> names = {"qwen3",
                                    "qwen3-untied",
                                    "qwen3-moe",
                                    "mistral-window",
                                    "gemma2",
                                    "gemma3",
                                    "gpt2",
                                    "bloom-alibi",
                                    "olmo2",
                                    "olmo3",
                                    "phi3",
                                    "phi4-mini",
                                    "smollm3",
                                    "seed-oss",
                                    "hunyuan-dense",
                                    "ernie4_5",
                                    "exaone4",
                                    "ministral3",
                                    "glm4",
                                    "cohere2",
                                    "starcoder2",
                                    "stablelm",
                                    "heads-128",
                                    "gemma2-heads-64",
                                    "gemma2-heads-128",
                                    "qwen3_5",
                                    "qwen3_5-moe",
                                    "qwen3-next",
                                    "lfm2",
                                    "lfm2-moe",
                                    "gpt-oss",
                                    "gemma4",
                                    "gemma4-ple",
                                    "gemma4-moe"};
  std::erase_if(names, [](const std::string& name) {
    return !std::filesystem::exists(testing::golden_directory(name));
  });
  return names;
}

std::string name_of(const InvarianceCase& test) {
  const auto& [model, dtype, kernels, codes] = test;
  std::string name = testing::test_name({model, dtype, kernels});
  if (codes.weights != "none") name += "_" + codes.weights;
  if (codes.cache != "auto") name += "_cache_" + codes.cache;
  return name;
}

const auto kNameOf = [](const auto& test) { return name_of(test.param); };
const auto kKernels = ::testing::ValuesIn(testing::deterministic_kernel_names());
const auto kDTypes = ::testing::Values("float32", "bfloat16");
INSTANTIATE_TEST_SUITE_P(Golden, InvarianceTest,
                         ::testing::Combine(::testing::ValuesIn(models()),
                                            ::testing::Values("float32", "bfloat16", "float16"), kKernels,
                                            ::testing::Values(Codes{})),
                         kNameOf);
// Inputs that are rounded, of both kinds, and weights alone.
INSTANTIATE_TEST_SUITE_P(Quantized, InvarianceTest,
                         ::testing::Combine(::testing::Values("qwen3", "qwen3-moe"), kDTypes, kKernels,
                                            ::testing::Values(Codes{"fp8"}, Codes{"int8"}, Codes{"int4"})),
                         kNameOf);
// Of each way through attention one.
INSTANTIATE_TEST_SUITE_P(
    QuantizedCache, InvarianceTest,
    ::testing::Combine(::testing::Values("qwen3", "mistral-window", "gemma2", "bloom-alibi", "heads-128",
                                         "gemma2-heads-64"),
                       kDTypes, kKernels, ::testing::Values(Codes{"none", "fp8"}, Codes{"none", "fp8_e5m2"})),
    kNameOf);

}  // namespace
}  // namespace quire
