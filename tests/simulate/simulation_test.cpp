#include "simulate/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "inspect/small_shape.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 400;
  config.num_blocks = 100;
  return config;
}

Arrival arrival(double seconds, SequenceId id, int prompt, int output) {
  auto request = std::make_shared<SequenceRequest>();
  request->id = id;
  request->prompt.assign(static_cast<std::size_t>(prompt), static_cast<TokenId>(10 * id));
  request->max_tokens = output;
  Arrival arrival;
  arrival.seconds = seconds;
  arrival.request = std::move(request);
  return arrival;
}

SimulationOptions with_steps_of(double seconds) {
  SimulationOptions options;
  options.scheduler = small_config();
  options.seconds = [seconds](const StepPlan&) { return seconds; };
  return options;
}

SimulationResult run(const SimulationOptions& options, const std::vector<Arrival>& arrivals) {
  return simulate(options, replay(arrivals));
}

TEST(SimulationTest, OneSequenceTakesItsStepsTime) {
  const SimulationResult result = run(with_steps_of(0.5), {arrival(2, 1, 10, 4)});
  EXPECT_EQ(result.seconds, 4);  // it came at 2
  EXPECT_EQ(result.num_steps, 4U);
  EXPECT_EQ(result.computed_tokens, 10U + 3U);
  EXPECT_EQ(result.output_tokens, 4U);
  EXPECT_EQ(result.busy_seconds, 2);
  EXPECT_EQ(result.ttft.mean(), 0.5);
  EXPECT_EQ(result.itl.count(), 3U);
  EXPECT_EQ(result.itl.mean(), 0.5);
  EXPECT_EQ(result.e2e.percentile(0.99), 2);
}

TEST(SimulationTest, WhatComesDuringAStepIsInTheNextOne) {
  const SimulationResult result = run(with_steps_of(1), {arrival(0, 1, 10, 3), arrival(0.25, 2, 10, 3)});
  EXPECT_EQ(result.num_steps, 4U);
  EXPECT_EQ(result.ttft.percentile(0), 1);
  EXPECT_EQ(result.ttft.percentile(1), 1.75);
}

TEST(SimulationTest, AStepCostsWhatItsPlanSays) {
  SimulationOptions options = with_steps_of(0);
  options.seconds = [](const StepPlan& plan) { return plan.num_tokens; };
  const SimulationResult result = run(options, {arrival(0, 1, 100, 2)});  // in chunks of 64 and 36
  EXPECT_EQ(result.ttft.mean(), 100);
  EXPECT_EQ(result.itl.mean(), 1);
}

TEST(SimulationTest, WithTwoStepsInFlightAnEndIsLearntOneStepLate) {
  SimulationOptions options = with_steps_of(1);
  std::vector<Arrival> arrivals = {arrival(0, 1, 10, 100)};
  auto request = std::make_shared<SequenceRequest>(*arrivals[0].request);
  request->sampling.stop_ids = {7};
  arrivals[0].request = request;
  arrivals[0].outputs = {{5, 5, 7}};
  EXPECT_EQ(run(options, arrivals).num_steps, 3U);
  options.steps_in_flight = 2;
  const SimulationResult result = run(options, arrivals);
  EXPECT_EQ(result.num_steps, 4U);
  EXPECT_EQ(result.output_tokens, 3U);
  EXPECT_EQ(result.e2e.mean(), 3);
  EXPECT_EQ(result.itl.mean(), 1);
}

TEST(SimulationTest, AbortsEndWhatRuns) {
  Arrival abort;
  abort.seconds = 2.5;
  abort.aborted = 1;
  const SimulationResult result = run(with_steps_of(1), {arrival(0, 1, 10, 50), abort});
  EXPECT_EQ(result.num_aborted, 1U);
  EXPECT_EQ(result.num_done, 0U);
  EXPECT_EQ(result.output_tokens, 2U);  // that of the step in which it comes is dropped
}

TEST(SimulationTest, WhatCanNeverRunIsRefused) {
  const SimulationResult result = run(with_steps_of(1), {arrival(0, 1, 500, 5), arrival(0, 2, 10, 5)});
  EXPECT_EQ(result.num_refused, 1U);
  EXPECT_EQ(result.num_done, 1U);
}

TEST(SimulationTest, SmallCachesPreempt) {
  SimulationOptions options = with_steps_of(1);
  options.scheduler.num_blocks = 8;
  const std::vector<Arrival> arrivals = {arrival(0, 1, 20, 60), arrival(0, 2, 20, 60)};
  const SimulationResult computed = run(options, arrivals);
  EXPECT_GT(computed.scheduler.num_preemptions, 0U);
  EXPECT_EQ(computed.output_tokens, 120U);
  options.scheduler.num_host_blocks = 8;
  const SimulationResult saved = run(options, arrivals);
  EXPECT_GT(saved.scheduler.num_restored_blocks, 0U);
  EXPECT_LT(saved.computed_tokens, computed.computed_tokens);
}

GeneratedLoad load_of(std::size_t count, RequestSize size) {
  return {.sizes = std::vector(count, size), .times = std::vector<double>(count)};
}

TEST(SimulationTest, GeneratedPromptsShareTheirPrefixesAndNothingElse) {
  SimulationOptions options = with_steps_of(1);
  options.max_concurrency = 1;
  GeneratedLoad load = load_of(12, {20, 2});
  load.prefix_len = 32;
  load.num_prefixes = 3;
  const SimulationResult result = simulate(options, generate(load));
  EXPECT_EQ(result.scheduler.prefix_cache_queries, 12U * 52);
  EXPECT_EQ(result.scheduler.prefix_cache_hits, (12U - 3) * 32);
  EXPECT_EQ(result.ttft.percentile(1), 1);  // each comes when there is room
  load.prefix_len = 0;
  EXPECT_EQ(simulate(options, generate(load)).scheduler.prefix_cache_hits, 0U);
}

TEST(SimulationTest, OutputsOfOnePromptShareIt) {
  GeneratedLoad load = load_of(2, {40, 3});
  load.num_outputs = 3;
  const SimulationResult result = simulate(with_steps_of(1), generate(load));
  EXPECT_EQ(result.num_done, 6U);
  EXPECT_LT(result.computed_tokens, 2 * (40 + 3 * 4));
}

TEST(SimulationTest, WhatIsKeptOutsideTheQueueChangesNothing) {
  SimulationOptions options = with_steps_of(1);
  options.scheduler.num_blocks = 12;
  GeneratedLoad load = load_of(60, {20, 30});
  for (std::size_t i = 0; i < load.sizes.size(); ++i) load.sizes[i].output_tokens += static_cast<int>(i % 7);
  const SimulationResult all = simulate(options, generate(load));
  options.max_waiting = 8;
  const SimulationResult few = simulate(options, generate(load));
  EXPECT_GT(all.scheduler.num_preemptions, 0U);
  EXPECT_EQ(few.scheduler.num_preemptions, all.scheduler.num_preemptions);
  EXPECT_EQ(few.seconds, all.seconds);
  EXPECT_EQ(few.ttft.mean(), all.ttft.mean());
  EXPECT_EQ(few.computed_tokens, all.computed_tokens);
}

TEST(TimesTest, TellWhatLiesWhereWithinAThousandth) {
  Times times;
  EXPECT_TRUE(std::isnan(times.mean()) && std::isnan(times.percentile(0.5)));
  for (int i = 1; i <= 100'000; ++i) times.add(1e-5 * i);
  EXPECT_NEAR(times.mean(), 0.5, 1e-4);
  for (const double fraction : {0.01, 0.5, 0.9, 0.99})
    EXPECT_NEAR(times.percentile(fraction), fraction, 1e-3 * fraction + 1e-5);
}

// Each plan, and when it was made.
struct Plans : SchedulerObserver {
  std::vector<std::vector<std::byte>> plans;
  std::vector<double> times;
  std::vector<std::size_t> plans_before;  // what came
  std::uint64_t num_preempted = 0, num_hits = 0;
  std::function<void(SequenceId)> on_added = [](SequenceId) {};

  void added(const SequenceRequest& request) override {
    plans_before.push_back(plans.size());
    on_added(request.id);
  }
  void aborted(SequenceId /*id*/) override { plans_before.push_back(plans.size()); }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
    if (plan == nullptr) return;
    ByteWriter bytes;
    write_plan(bytes, *plan);
    plans.push_back(std::move(bytes.bytes));
    for (const Decision& decision : plan->decisions) {
      num_preempted += decision.kind == Decision::Kind::kPreempted ? 1 : 0;
      num_hits += decision.kind == Decision::Kind::kAdmitted && decision.count > 0 ? 1 : 0;
    }
  }
};

// Requests that come while others run, with prefixes in common, stop tokens, several outputs and aborts, in a
// cache that is too small for them.
void record_engine(const std::string& path) {
  EngineConfig config;
  config.device = "cpu";
  config.cpu_isa = "reference";
  config.cpu_threads = 1;
  config.max_model_len = 200;
  config.max_num_seqs = 6;
  config.max_num_batched_tokens = 48;
  config.kv_cache_memory = std::size_t{20} * 32768;  // 20 blocks
  config.record = path;
  Engine engine(config, random_model(test::small_shape()));
  std::mutex mutex;
  std::condition_variable done;
  int unfinished = 40;
  for (int i = 0; i < 40; ++i) {
    EngineRequest request;
    for (int j = 0; j < 20 + i % 5 * 3; ++j) request.prompt.push_back(j < 16 ? i % 3 : i * j % 300);
    request.params.max_tokens = 60 + i % 7 * 8;
    request.params.n = i % 8 == 5 ? 3 : 1;
    request.params.seed = static_cast<std::uint64_t>(i);
    request.params.temperature = 5;
    for (int id = i % 2 == 0 ? 54 : 59; id < 60; ++id) request.params.stop_token_ids.push_back(id);
    request.on_update = [&](const RequestUpdate& update) {
      const std::lock_guard lock(mutex);
      if (update.finished && --unfinished == 0) done.notify_all();
    };
    const RequestId id = engine.submit(std::move(request));
    if (i % 8 == 7) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (i % 9 == 4) engine.abort(id);
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return unfinished == 0; });
}

TEST(TraceTest, AtTheRecordedTimesTheRecordedPlansAreMade) {
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  record_engine(path);
  const Recording recording{std::filesystem::path(path)};
  Plans recorded;
  RecordingReader reader(recording);
  while (reader.next(recorded))
    if (recorded.times.size() < recorded.plans.size()) recorded.times.push_back(reader.seconds());
  ASSERT_GT(recorded.plans.size(), 100U);
  EXPECT_GT(recorded.num_preempted, 0U);
  EXPECT_GT(recorded.num_hits, 0U);
  std::vector<Arrival> arrivals = recorded_arrivals(recording, 16);
  ASSERT_EQ(arrivals.size(), recorded.plans_before.size());
  // What woke the engine came just before it planned, as did what else had come by then.
  for (std::size_t i = 0; i < arrivals.size(); ++i)
    if (const std::size_t next = recorded.plans_before[i]; next < recorded.times.size())
      arrivals[i].seconds = recorded.times[next];

  Plans simulated;
  SimulationOptions options;
  options.scheduler = recording.info().scheduler;
  options.scheduler.observers = {&simulated};
  double now = 0;  // as the simulation has it
  simulated.on_added = [&](SequenceId id) {
    for (const Arrival& arrival : arrivals)
      if (arrival.request && arrival.request->id == id) now = std::max(now, arrival.seconds);
  };
  // A step ends when the next one was planned, and a little later, so that what came before has come.
  options.seconds = [&](const StepPlan& plan) {
    const double end = plan.id < recorded.times.size() ? recorded.times[plan.id] + 1e-7 : now + 1;
    return end - std::exchange(now, end);
  };
  const SimulationResult result = run(options, arrivals);
  ASSERT_EQ(simulated.plans.size(), recorded.plans.size());
  for (std::size_t i = 0; i < recorded.plans.size(); ++i)
    ASSERT_EQ(simulated.plans[i], recorded.plans[i]) << "step " << i + 1;
  EXPECT_GT(result.num_aborted, 0U);
}

}  // namespace
}  // namespace quire
