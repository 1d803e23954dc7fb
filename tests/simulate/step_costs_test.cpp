#include "simulate/step_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "expect_error.h"
#include "inspect/small_shape.h"
#include "simulate/simulation.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepPlan plan_of(const std::vector<std::pair<int, int>>& spans) {  // first position, tokens
  StepPlan plan;
  for (const auto& [first, count] : spans) {
    SequencePlan& sequence = plan.sequences.emplace_back();
    sequence.first_position = first;
    sequence.num_tokens = count;
    plan.num_tokens += count;
  }
  return plan;
}

TEST(StepShapeTest, CountsWhatAttentionReads) {
  StepPlan plan = plan_of({{0, 10}, {9, 1}, {99, 1}});
  plan.saves = {{0, 0}, {1, 1}};
  plan.restores = {{2, 2}};
  const StepShape all(plan, {.windows = {0}});
  EXPECT_EQ(all.tokens, 12);
  EXPECT_THAT(all.counts, ElementsAre(1, 3, 10 + 100, 55, 3));
  const StepShape two_lanes(plan, {.windows = {0, 4}});
  EXPECT_THAT(two_lanes.counts, ElementsAre(1, 3, 10 + 100 + 4 + 4, 55 + 1 + 2 + 3 + 7 * 4, 3));
}

TEST(StepCostsTest, TokensCostWhatTheirNumberSays) {
  const StepCosts costs{{0, 4}, {1, 10, 0, 0, 100, 0.5, 2}};
  EXPECT_EQ(costs.seconds(StepShape(plan_of({{0, 3}}), {})), 1 + 10 + 1.5);
  StepPlan plan = plan_of({{0, 5}, {0, 1}});
  plan.saves = {{0, 0}};
  EXPECT_EQ(costs.seconds(StepShape(plan, {})), 1 + 20 + 100 + 4 * 0.5 + 2 * 2);
}

// A machine whose costs are known.
double true_seconds(const StepShape& shape) {
  return 2e-3 + std::max(1e-3, 1e-4 * shape.tokens) + 3e-5 * shape.counts[StepShape::kSequence] +
         1e-7 * shape.counts[StepShape::kDecodePair] + 2e-8 * shape.counts[StepShape::kChunkPair];
}

std::vector<MeasuredStep> steps_of_known_machine() {
  std::vector<MeasuredStep> steps;
  for (int batch = 1; batch <= 64; batch *= 2) {
    for (const int before : {0, 50, 500, 3000}) {
      for (const int count : {1, 7, 33, 150}) {
        const StepShape shape(plan_of(std::vector(static_cast<std::size_t>(batch), std::pair(before, count))),
                              {});
        for (int i = 0; i < 3; ++i)
          steps.push_back({shape, true_seconds(shape) + (steps.size() % 150 == 7 ? 5 : 0)});
      }
    }
  }
  return steps;
}

TEST(FitCostsTest, FindsTheCostsOfAKnownMachineThroughSingleDelays) {
  const StepCosts costs = fit_costs(steps_of_known_machine());
  EXPECT_NEAR(costs.each[StepShape::kDecodePair], 1e-7, 1e-9);
  EXPECT_NEAR(costs.each[StepShape::kChunkPair], 2e-8, 4e-10);
  for (const MeasuredStep& step : steps_of_known_machine())
    EXPECT_NEAR(costs.seconds(step.shape) / true_seconds(step.shape), 1, 0.06);
}

// What is held up now and then takes longer on average, and that is what counts.
TEST(FitCostsTest, NoiseDoesNotMakeStepsQuickerThanTheyAreOnAverage) {
  std::vector<MeasuredStep> steps;
  double expected = 0, fitted = 0;
  for (int i = 0; i < 2000; ++i) {  // all of different shape
    const StepShape shape(plan_of({{i, 1}, {0, 1 + i % 100}}), {});
    steps.push_back({shape, (i % 4 == 0 ? 2 : 1) * true_seconds(shape)});
    expected += steps.back().seconds;
  }
  const StepCosts costs = fit_costs(steps);
  for (const MeasuredStep& step : steps) fitted += costs.seconds(step.shape);
  EXPECT_NEAR(fitted / expected, 1, 0.02);
}

// Says how late it is: each step takes what it takes on the known machine.
struct Clock : SchedulerObserver {
  EventWriter writer{{}, 1};
  double now = 0, step = 0;

  void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
    step = plan == nullptr ? 0 : true_seconds(StepShape(*plan, {}));
  }
  void applied(const StepResult& /*result*/, std::span<const SequenceUpdate> /*updates*/) override {
    now += step;
    writer.set_time(static_cast<std::uint64_t>(1e6 * now));
  }
};

TEST(FitMachineTest, ARecordingsStepsCostWhatTheyTook) {
  SimulationOptions options;
  options.scheduler.max_num_seqs = 16;
  options.scheduler.max_model_len = 4000;
  options.scheduler.num_blocks = 3000;
  Clock clock;
  clock.writer.begin();
  options.scheduler.observers = {&clock, &clock.writer};
  options.seconds = [](const StepPlan&) { return 1; };
  GeneratedLoad load{.sizes = random_sizes({100, 300, 100, 0.9}, 0), .times = std::vector<double>(100)};
  simulate(options, generate(load));
  RecordingInfo info;
  info.model = "a model";
  info.scheduler = options.scheduler;
  std::string bytes;
  for (const auto& part : {write_header(info), frame_chunk(clock.writer.chunk())})
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());

  const MachineCosts machine = fit_machine(Recording(bytes, "a recording"));
  EXPECT_EQ(machine.model, "a model");
  EXPECT_EQ(machine.steps_in_flight, 1);
  EXPECT_LT(machine.p90_error, 0.02);
  EXPECT_NEAR(machine.costs.each[StepShape::kDecodePair], 1e-7, 1e-8);
  const StepShape shape(plan_of({{900, 1}, {300, 1}, {0, 200}}), {});
  EXPECT_NEAR(machine.costs.seconds(shape) / true_seconds(shape), 1, 0.02);
}

// Of two steps in flight each takes what passes since the one before it has ended, as long as there is more
// to do: also behind a search, of which there are more beams than were added.
TEST(FitMachineTest, WhatABeamSearchLeavesBehindIsNoMoreAlive) {
  EventWriter writer({}, 1);
  writer.begin();
  SequenceRequest request;
  request.id = 1;
  request.prompt = {7};
  request.beam_width = 3;
  writer.added(request);
  const std::vector<BeamFork> forks = {{1, 5}, {1, 6}, {1, 7}};
  writer.forked(1, forks);
  for (SequenceId id = 1; id <= 3; ++id) writer.aborted(id);
  request.id = 4;
  request.beam_width = 0;
  writer.added(request);
  constexpr std::uint64_t kStep = 10'000;  // microseconds
  StepPlan plan;
  plan.sequences.resize(1);
  plan.sequences[0].sequence = 4;
  StepResult result;
  result.sequences.push_back({.sequence = 4, .token = 9});
  for (std::uint64_t i = 0; i < 40; ++i) {
    writer.set_time(i * kStep);
    if (i > 1) writer.applied(result, std::vector<SequenceUpdate>{{.id = 4, .token = 9}});
    plan.id = i + 1;
    plan.num_tokens = static_cast<int>(2 + i);
    plan.sequences[0].num_tokens = plan.num_tokens;
    writer.planned(&plan, {});
  }
  RecordingInfo info;
  std::string bytes;
  for (const auto& part : {write_header(info), frame_chunk(writer.chunk())})
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  const MachineCosts machine = fit_machine(Recording(bytes, "a recording"));
  EXPECT_EQ(machine.steps_in_flight, 2);
  EXPECT_NEAR(machine.costs.seconds(StepShape(plan, {})), 1e-6 * kStep, 2e-3);
}

TEST(FitMachineTest, WhatNoEngineRecordsIsRefused) {
  const auto refused = [](const SequenceRequest& request, const StepPlan& plan, const std::string& what) {
    EventWriter writer({}, 1);
    writer.begin();
    writer.added(request);
    writer.planned(&plan, {});
    std::string bytes;
    for (const auto& part : {write_header({}), frame_chunk(writer.chunk())})
      bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    expect_error([&] { fit_machine(Recording(bytes, "a recording")); }, {"a recording", what});
  };
  SequenceRequest request;
  request.id = 1;
  StepPlan plan;
  plan.sequences.resize(1);
  plan.sequences[0].sequence = 1;
  plan.sequences[0].first_position = std::numeric_limits<int>::max();
  plan.sequences[0].num_tokens = 2;
  refused(request, plan, "sequence 1 has 2147483649 tokens");
  request.num_outputs = kMaxOutputs + 1;
  refused(request, plan, "may be at most 16384");
}

// Its first results are of steps that it does not have, and decodes do not say where they stand.
TEST(FitMachineTest, TheLastPartOfARecordingIsRefused) {
  RecordingInfo info;
  info.from_start = false;
  const std::vector<std::byte> header = write_header(info);
  const std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
  expect_error([&] { fit_machine(Recording(bytes, "a recording")); }, {"the last part of one"});
}

TEST(FitCostsTest, FewStepsAreRefused) {
  const std::vector<MeasuredStep> steps(100, {StepShape(plan_of({{0, 5}}), {}), 1});
  try {
    fit_costs(steps);
    FAIL() << "fitted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("1 different steps are too few"));
  }
}

MachineCosts some_machine() {
  MachineCosts machine;
  machine.model = "a model";
  machine.device = "a \"device\"";
  machine.steps_in_flight = 2;
  machine.block_bytes = 1 << 20;
  machine.scheduler.num_blocks = 10;
  machine.scheduler.layout.windows = {0, 512};
  machine.scheduler.policy = SchedulingPolicy::kPriority;
  machine.costs = {{0, 8}, {1, 2, 3, 4, 5, 0.25, 0.5}};
  return machine;
}

TEST(MachineCostsTest, AFileSaysAllThatItWasWrittenFrom) {
  const TempDir directory;
  const std::string text = to_json(some_machine());
  const MachineCosts read = read_machine(directory.write("costs", text));
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.costs.seconds(StepShape(plan_of({{0, 9}}), {})),
            some_machine().costs.seconds(StepShape(plan_of({{0, 9}}), {})));
}

std::string error_of_reading(const std::filesystem::path& path) {
  try {
    read_machine(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(MachineCostsTest, AFileThatIsNotThereIsNamedOnce) {
  const TempDir directory;
  const std::filesystem::path path = directory.path() / "absent";
  const std::string error = error_of_reading(path);
  EXPECT_NE(error.find(path.string()), std::string::npos) << error;
  EXPECT_EQ(error.find(path.string()), error.rfind(path.string())) << error;
}

TEST(MachineCostsTest, AnyOtherFileIsRefusedInOneLine) {
  const TempDir directory;
  const auto error_of = [&](const std::string& text) {
    return error_of_reading(directory.write("costs", text));
  };
  const auto with = [](const std::string& pointer, const Json& value) {
    Json object = Json::parse(to_json(some_machine()));
    object[Json::json_pointer(pointer)] = value;
    return object.dump();
  };
  EXPECT_THAT(error_of("no JSON"), HasSubstr("costs"));
  EXPECT_THAT(error_of("[]"), HasSubstr("version is missing"));
  EXPECT_THAT(error_of("{}"), HasSubstr("version is missing"));
  EXPECT_THAT(error_of(with("/version", 9)), HasSubstr("version must be a number from 1 to 1"));
  EXPECT_THAT(error_of(with("/model", 1)), HasSubstr("model must be a text"));
  EXPECT_THAT(error_of(with("/steps_in_flight", 0)), HasSubstr("steps_in_flight"));
  EXPECT_THAT(error_of(with("/seconds/step", -1)), HasSubstr("step must be a number from 0"));
  EXPECT_THAT(error_of(with("/seconds/step", nullptr)), HasSubstr("step must be a number from 0"));
  EXPECT_THAT(error_of(with("/seconds", 1)), HasSubstr("step is missing"));
  EXPECT_THAT(error_of(with("/tokens", Json::array())), HasSubstr("begin with 0"));
  EXPECT_THAT(error_of(with("/tokens", {{0, 1}, {0, 1}})), HasSubstr("rise"));
  EXPECT_THAT(error_of(with("/tokens", {{5, 1}})), HasSubstr("begin with 0"));
  EXPECT_THAT(error_of(with("/tokens", {1, 2})), HasSubstr("list of pairs"));
  EXPECT_THAT(error_of(with("/scheduler", 1)), HasSubstr("scheduler is"));
  EXPECT_THAT(error_of(with("/scheduler/num_state_slots", 3)), HasSubstr("state_interval 0"));
}

// A real engine's steps, if only of a small model: their shapes are measured, and what was fitted is of use.
TEST(MeasureCostsTest, AnEnginesStepsHaveCosts) {
  const TempDir directory;
  CostsOptions options;
  options.engine.device = "cpu";
  options.engine.cpu_threads = 1;
  options.engine.max_model_len = 256;
  options.engine.max_num_seqs = 8;
  options.engine.record = directory.path() / "recording";
  options.seconds = 1;
  const MachineCosts machine = measure_costs(options, random_model(test::small_shape()));
  EXPECT_EQ(machine.steps_in_flight, 1);
  EXPECT_EQ(machine.block_bytes, 2 * 2 * 2 * 128 * 2 * 16);  // layers, keys and values, heads, size, bytes
  EXPECT_EQ(machine.scheduler.num_host_blocks, 0);
  EXPECT_GT(machine.scheduler.preemption.block_copied, 0);
  EXPECT_GT(machine.costs.each[StepShape::kCopy], 0);
  EXPECT_GE(machine.num_steps, 100);
  EXPECT_GT(machine.costs.seconds(StepShape(plan_of({{0, 200}}), {})),
            machine.costs.seconds(StepShape(plan_of({{0, 1}}), {})));
}

}  // namespace
}  // namespace quire
