// Two steps in flight, as on a device that computes behind the caller's back: a step is planned before the
// token it continues from is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "backends/registry.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

TEST(PipeliningTest, TwoStepsInFlightGiveTheSameTokens) {
  const auto directory = testing::golden_directory("qwen3");
  const auto backend = make_backend({});
  SingleRank comm(*backend);
  const auto model_config = ModelConfig::from_file(directory / "config.json");
  const RuntimeConfig config = resolve_config(testing::golden_config("qwen3"), model_config, *backend, comm);
  Checkpoint checkpoint(directory);
  ModelRunner runner(*backend, comm, config, model_config, checkpoint);
  SchedulerConfig scheduling;
  scheduling.max_num_seqs = config.max_num_seqs;
  scheduling.max_num_batched_tokens = 50;
  scheduling.max_model_len = config.max_model_len;
  scheduling.layout = config.cache.layout;
  scheduling.num_blocks = 12;  // so few that sequences wait for each other
  Scheduler scheduler(scheduling);
  for (SequenceId id = 0; id < 3; ++id) {
    SequenceRequest request;
    request.id = id;
    request.prompt = testing::golden_ids("qwen3", "prompt." + std::to_string(id));
    request.max_tokens = 24;
    scheduler.add(std::make_shared<SequenceRequest>(std::move(request)));
  }
  std::map<SequenceId, std::vector<TokenId>> tokens;
  int deepest = 0;
  while (scheduler.has_unfinished() || scheduler.num_in_flight() > 0) {
    if (scheduler.num_in_flight() < kMaxStepsInFlight) {
      if (const auto plan = scheduler.schedule()) {
        runner.submit(*plan);
        deepest = std::max(deepest, scheduler.num_in_flight());
        continue;
      }
    }
    for (const SequenceUpdate& update : scheduler.apply(runner.collect())) {
      if (update.token) tokens[update.id].push_back(*update.token);
    }
    scheduler.check();
  }
  EXPECT_EQ(deepest, 2);
  for (SequenceId id = 0; id < 3; ++id) {
    EXPECT_THAT(tokens[id],
                ::testing::ElementsAreArray(testing::golden_ids("qwen3", "greedy." + std::to_string(id))));
  }
}

}  // namespace
}  // namespace quire
