#include "inspect/recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/grammar/structured_sources.h"
#include "engine/submit.h"
#include "expect_error.h"
#include "inspect/small_shape.h"
#include "temp_dir.h"

namespace quire {
namespace {

using testing::toy_config;

constexpr int kNumRequests = 24;

// A cache that does not hold all of them, with room for what is preempted.
EngineConfig small_cache(bool with_tokens, const std::filesystem::path& path) {
  EngineConfig config = toy_config();
  config.max_num_batched_tokens = 48;
  config.max_model_len = 128;
  config.kv_cache_memory = std::size_t{1} << 21;
  config.swap_space = 1.0 / 256;
  config.record = path;
  config.record_tokens = with_tokens;
  return config;
}

// Requests of every kind that sampling knows, some of which leave.
SchedulerStats record(const EngineConfig& config, ModelFiles model, EngineHooks hooks = {}) {
  std::mt19937 random(7);
  Engine engine(config, std::move(model), std::move(hooks));
  std::vector<std::future<CompletionOutput>> outputs;
  std::vector<RequestId> ids(kNumRequests);
  const auto structures = testing::sources();
  for (int i = 0; i < kNumRequests; ++i) {
    EngineRequest request = testing::request_of({});
    for (int n = 10 + static_cast<int>(random() % 40); n > 0; --n)
      request.prompt.push_back(static_cast<TokenId>(i % 3 == 0 ? n : random() % 300));
    request.params.temperature = static_cast<float>(i % 4) * 0.4F;
    request.params.seed = random();
    request.params.max_tokens = 20 + static_cast<int>(random() % 40);
    request.params.n = i % 4 != 0 && i % 5 == 1 ? 3 : 1;
    if (i % 6 == 2) request.params.presence_penalty = 0.7F;
    if (i % 6 == 3) request.params.logprobs = 2;
    if (QUIRE_HAS_BEAMS && i % 12 == 0) request.params.beam_width = 2;
    if (QUIRE_HAS_GRAMMAR && i % 6 == 4 && engine.has_tokenizer())
      request.params.structured_outputs =
          std::make_shared<const StructuredOutputs>(structures[i / 6 % structures.size()].outputs);
    outputs.push_back(testing::submit_output(engine, std::move(request), &ids[i]));
  }
  outputs.front().wait();
  for (int i = 7; i < kNumRequests; i += 8) engine.abort(ids[i]);
  for (auto& output : outputs) output.get();
  return engine.stats().scheduler;
}

TEST(RecomputationTest, EveryTokenOfAMixtureIsComputedAgain) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  const SchedulerStats stats = record(config, open_model(config.model));
  EXPECT_GT(stats.num_preemptions, 0U);
  config.record.clear();
  const Recomputation result = recompute(Recording(path), config, open_model(config.model));
  ASSERT_FALSE(result.plans) << result.plans->what;
  ASSERT_FALSE(result.difference) << "step " << result.difference->step << ", sequence "
                                  << result.difference->sequence;
  EXPECT_TRUE(result.whole);
  EXPECT_GT(result.num_compared, 500U);
  if (QUIRE_HAS_GRAMMAR) {
    EXPECT_GT(result.num_masked, 20U);
  }
}

// Copies what a recording tells, and knows which steps in flight have masks.
class CopiedEvents final : public SchedulerObserver {
 public:
  explicit CopiedEvents(EventWriter& out) : out_(out) {}

  bool masks_two_steps() const { return masked_ == std::deque{true, true}; }

  void added(const SequenceRequest& request) override { out_.added(request); }
  void aborted(SequenceId id) override { out_.aborted(id); }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failures) override {
    out_.planned(plan, failures);
    if (plan != nullptr) masked_.push_back(plan->constrained());
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override {
    out_.applied(result, updates);
    masked_.pop_front();
  }
  void foreseen(SequenceId id, std::span<const SequenceUpdate> updates) override {
    out_.foreseen(id, updates);
  }
  void forked(SequenceId first, std::span<const BeamFork> forks) override { out_.forked(first, forks); }

 private:
  EventWriter& out_;
  std::deque<bool> masked_;
};

// Where a process was killed, its recording ends before what was in flight has a result; where a step failed,
// that was lost.
TEST(RecomputationTest, StepsWithoutAResultNeedNoMasks) {
  if (!QUIRE_HAS_GRAMMAR) GTEST_SKIP() << "no structured outputs in this build";
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  record(config, open_model(config.model), {.pipelined = true});
  config.record.clear();
  const Recording recording(path);
  for (const bool lost : {false, true}) {
    EventWriter events(recording.info().format(), 1);
    events.begin();
    CopiedEvents copied(events);
    RecordingReader reader(recording);
    while (!copied.masks_two_steps() && reader.next(copied)) {
    }
    ASSERT_TRUE(copied.masks_two_steps());
    if (lost) events.lost_steps({});
    std::string bytes;
    for (const auto& part : {write_header(recording.info()), frame_chunk(events.chunk())})
      bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    const Recomputation result =
        recompute(Recording(std::move(bytes), "a part"), config, open_model(config.model));
    EXPECT_TRUE(result.passed());
    EXPECT_FALSE(result.whole);
    EXPECT_GE(result.num_steps, 2U);
  }
}

TEST(RecomputationTest, OtherWeightsAreSeenAtTheFirstTokenTheyChange) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  const auto model = [](bool tied) {
    return random_model(test::small_shape(
        "Qwen3ForCausalLM", tied ? R"({"tie_word_embeddings": true})" : R"({"tie_word_embeddings": false})"));
  };
  record(config, model(true));
  config.record.clear();
  EXPECT_TRUE(recompute(Recording(path), config, model(true)).passed());
  const Recomputation other = recompute(Recording(path), config, model(false));
  ASSERT_TRUE(other.difference);
  EXPECT_FALSE(other.plans);
  EXPECT_LE(other.difference->step, 3U);
  EXPECT_TRUE(other.whole);
  EXPECT_NE(other.difference->recorded, other.difference->computed);
}

TEST(RecomputationTest, TokensThatTheModelDoesNotHaveAreRefused) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  record(config, random_model(test::small_shape()));
  config.record.clear();
  const Shape smaller = test::small_shape(
      "Qwen3ForCausalLM", R"({"tie_word_embeddings": true, "vocab_size": 256, "eos_token_id": 255})");
  expect_error([&] { recompute(Recording(path), config, random_model(smaller)); },
               {"token id", "from 0 to 255"});
}

// What --max-logprobs was is not recorded.
TEST(RecomputationTest, AsManyLogprobsAreReportedAsWereAskedFor) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(true, path);
  config.max_num_seqs = 2;
  const int usual = std::exchange(config.max_logprobs, 300);
  {
    Engine engine(config, random_model(test::small_shape()));
    EngineRequest request = testing::request_of({1, 2, 3});
    request.params.logprobs = 300;
    testing::submit(engine, std::move(request)).get();
  }
  config.record.clear();
  config.max_logprobs = usual;
  const Recomputation result = recompute(Recording(path), config, random_model(test::small_shape()));
  EXPECT_TRUE(result.passed());
  EXPECT_EQ(result.num_compared, 24U);
}

TEST(RecomputationTest, SaysWhyARecordingCannotBeComputedAgain) {
  const TempDir directory;
  const auto path = directory.path() / "recording";
  EngineConfig config = small_cache(false, path);
  record(config, open_model(config.model));
  config.record.clear();
  expect_error([&] { recompute(Recording(path), config, open_model(config.model)); }, {"--record-tokens"});

  config = small_cache(true, path);
  record(config, open_model(config.model));
  config.record.clear();
  config.kv_cache_memory /= 2;
  expect_error([&] { recompute(Recording(path), config, open_model(config.model)); }, {"--kv-cache-memory"});
  config.kv_cache_memory *= 2;
  config.swap_space = 0;
  expect_error([&] { recompute(Recording(path), config, open_model(config.model)); }, {"--swap-space"});
}

}  // namespace
}  // namespace quire
