#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "allocations.h"
#include "record/recorder.h"
#include "record/replayer.h"
#include "scheduler/harness.h"
#include "temp_dir.h"

namespace quire {
namespace {

using testing::Harness;
using testing::Operation;
using testing::Scenario;

Scenario random_scenario(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> bytes(Scenario::kHeader + 4 * 400);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return *Scenario::parse(bytes);
}

SchedulerConfig small_config(int num_blocks) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.max_model_len = 200;
  config.num_blocks = num_blocks;
  config.enable_prefix_caching = false;
  return config;
}

SequenceRequest request_of(SequenceId id, std::vector<TokenId> prompt) {
  SequenceRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = 30;
  return request;
}

RecordingInfo info_of(const SchedulerConfig& config, bool with_tokens) {
  RecordingInfo info;
  info.model = "a model";
  info.with_tokens = with_tokens;
  info.scheduler = config;
  return info;
}

// Runs a scenario, and records it in a file.
void record(Scenario scenario, bool with_tokens, const std::string& path,
            const std::function<void(Harness&)>& run) {
  Recorder recorder(info_of(scenario.config, with_tokens), path);
  scenario.config.observers = {&recorder};
  Harness harness(scenario);
  run(harness);
}

// Counts events, and what is in them.
struct Counts : SchedulerObserver {
  std::vector<std::vector<TokenId>> prompts;
  int plans = 0, decisions = 0, ends = 0, aborts = 0, lost = 0, foreseen_tokens = 0, failures = 0;
  std::size_t sampled = 0;

  void added(const SequenceRequest& request) override { prompts.push_back(request.prompt); }
  void aborted(SequenceId /*id*/) override { ++aborts; }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failed) override {
    failures += static_cast<int>(failed.size());
    if (plan == nullptr) return;
    ++plans;
    decisions += static_cast<int>(plan->decisions.size());
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override {
    sampled += result.sequences.size();
    for (const SequenceUpdate& update : updates) ends += update.finish != FinishReason::kNone ? 1 : 0;
  }
  void foreseen(SequenceId /*id*/, std::span<const SequenceUpdate> updates) override {
    foreseen_tokens += static_cast<int>(updates.size());
  }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override { ++lost; }
};

TEST(ReplayTest, EveryPlanOfRandomSchedulesIsMadeAgainWithAndWithoutTokens) {
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  Counts all;
  std::uint64_t num_hits = 0, num_preemptions = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Scenario scenario = random_scenario(seed);
    record(scenario, seed % 2 == 1, path, [&](Harness& harness) { harness.run(scenario.operations); });
    const Recording recording(path);
    EXPECT_TRUE(recording.read(all)) << "it is cut off";
    Replayer replayer(recording.info().scheduler);
    recording.read(replayer);
    ASSERT_FALSE(replayer.difference())
        << "seed " << seed << ", step " << replayer.difference()->step << ": " << replayer.difference()->what
        << "\nrecorded " << replayer.difference()->recorded << "\nreplayed "
        << replayer.difference()->replayed << scenario.describe();
    EXPECT_TRUE(replayer.scheduler().sequences().empty());
    num_hits += replayer.scheduler().stats().prefix_cache_hits;
    num_preemptions += replayer.scheduler().stats().num_preemptions;
  }
  EXPECT_GT(all.plans, 8000);
  EXPECT_GT(all.decisions, 1000);
  EXPECT_GT(all.ends, 1000);
  EXPECT_GT(all.aborts, 100);
  EXPECT_GT(all.lost, 50);
  EXPECT_GT(all.failures, 10);
  EXPECT_GT(all.foreseen_tokens, 100);
  EXPECT_GT(num_hits, 3000U);
  EXPECT_GT(num_preemptions, 300U);
}

// The blocks that a scheduler holds for its sequences.
std::vector<BlockId> held_blocks(const Harness& harness) {
  std::vector<BlockId> held;
  for (const auto& [id, sequence] : harness.scheduler().sequences())
    for (const BlockId block : sequence.blocks.table.blocks()) held.push_back(block);
  return held;
}

// The plans of a recording as texts.
std::vector<std::string> plans_of(const std::string& path) {
  struct Plans : Counts {
    std::vector<std::string> texts;
    void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
      texts.push_back(plan != nullptr ? to_text(*plan) : "");
    }
  } plans;
  Recording(path).read(plans);
  return plans.texts;
}

// When a sequence gives its blocks back, one of them is left out.
TEST(ReplayTest, ABlockThatIsLostIsFoundAtTheFirstPlanThatItChanges) {
  const TempDir directory;
  const std::string path = directory.path() / "recording", sound = directory.path() / "sound";
  Scenario scenario;
  scenario.config = small_config(12);
  // Returns the plans before the block was lost.
  const auto run = [](int fault_at, Harness& harness) {
    for (int i = 0; i < 8; ++i) harness.add(request_of(0, std::vector<TokenId>(20, i)), 1);
    int num_releases = 0, num_plans = 0, lost_behind = -1;
    while (harness.schedule()) {
      ++num_plans;
      const std::vector<BlockId> held = held_blocks(harness);
      harness.apply();
      const BlockPool& pool = harness.scheduler().cache().pool();
      const auto freed = std::ranges::find_if(held, [&](BlockId id) { return pool.ref_count(id) == 0; });
      if (freed == held.end() || ++num_releases != fault_at) continue;
      harness.skip_release(*freed);
      lost_behind = num_plans;
    }
    return lost_behind;
  };
  record(scenario, false, sound, [&](Harness& harness) { run(0, harness); });
  const std::vector<std::string> whole = plans_of(sound);
  for (int fault_at = 1; fault_at <= 4; ++fault_at) {
    int lost_behind = -1;
    record(scenario, false, path, [&](Harness& harness) { lost_behind = run(fault_at, harness); });
    ASSERT_GE(lost_behind, 1) << "there is no release " << fault_at;
    const std::vector<std::string> broken = plans_of(path);
    const auto differs = std::ranges::mismatch(broken, whole);
    const Recording recording(path);
    Replayer replayer(recording.info().scheduler);
    recording.read(replayer);
    ASSERT_TRUE(differs.in1 != broken.end() && differs.in2 != whole.end());
    const auto step = static_cast<int>(differs.in1 - broken.begin()) + 1;
    EXPECT_GT(step, lost_behind);
    ASSERT_TRUE(replayer.difference());
    EXPECT_EQ(replayer.difference()->step, static_cast<std::uint64_t>(step));
    EXPECT_EQ(replayer.difference()->recorded, *differs.in1);
    EXPECT_EQ(replayer.difference()->replayed, *differs.in2);
  }
}

TEST(RecordingTest, SaysNothingOfTokensUnlessItIsTo) {
  const TempDir directory;
  for (const bool with_tokens : {false, true}) {
    const std::string path = directory.path() / "recording";
    {
      Recorder recorder(info_of(small_config(10), with_tokens), path);
      SequenceRequest request = request_of(1, std::vector<TokenId>(40, 7));
      recorder.handle([&request](SchedulerObserver& to) { to.added(request); });
      request.id = 2;
      request.prompt[16] = 8;  // in the second of two whole rows
      recorder.handle([&request](SchedulerObserver& to) { to.added(request); });
    }
    Counts counts;
    Recording(path).read(counts);
    ASSERT_EQ(counts.prompts.size(), 2U);
    const std::vector<TokenId>&a = counts.prompts[0], &b = counts.prompts[1];
    if (with_tokens) {
      EXPECT_EQ(a, std::vector<TokenId>(40, 7));
      continue;
    }
    EXPECT_EQ(std::ranges::count(a, 0), 38);
    EXPECT_EQ(a[15], b[15]);
    EXPECT_NE(a[31], b[31]);
    EXPECT_NE(a[15], a[31]) << "equal rows behind different ones have different names";
  }
}

TEST(RecordingTest, WhatIsCutOffIsReadUpToTheLastWholeChunk) {
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  const Scenario scenario = random_scenario(3);
  record(scenario, false, path, [&](Harness& harness) { harness.run(scenario.operations); });
  Counts whole;
  EXPECT_TRUE(Recording(path).read(whole));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  Counts cut;
  EXPECT_FALSE(Recording(path).read(cut));
  EXPECT_LT(cut.plans, whole.plans);
}

TEST(RecordingTest, WhatIsNoRecordingIsRefusedByName) {
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  const auto message = [&](std::string_view text) {
    try {
      const Recording recording(std::string(text), "F");
      Counts counts;
      recording.read(counts);
      return std::string("none");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(message(""), "F: no recording; `--record FILE` makes one");
  EXPECT_EQ(message("QUIRERECxx"), "F: cut short: 2 bytes are missing at byte 8");
  const std::vector<std::byte> header = write_header(info_of(small_config(10), false));
  const std::string whole(reinterpret_cast<const char*>(header.data()), header.size());
  EXPECT_EQ(message(whole), "none");
  std::string other = whole;
  other.replace(other.find("\"version\":1"), 11, "\"version\":9");
  EXPECT_EQ(message(other), "F: of version 9; this program reads version 1");
  const auto with = [&](const std::string& member, const std::string& in_place) {
    std::string changed = whole;
    return message(changed.replace(changed.find(member), member.size(), in_place));
  };
  EXPECT_EQ(with("\"max_model_len\":200", "\"max_model_len\":9e9"), "F: max_model_len is 9000000000.0");
  EXPECT_EQ(with("\"started\":0,\"with", "\"started\":1e9,\"wi"), "F: started is 1000000000.0");
  EXPECT_EQ(with("\"windows\":[0],\"prior", "\"windows\":[1e9],\"pri"), "F: a window is 1000000000.0");
  EXPECT_EQ(message(whole + std::string("\1\0\0\0abcdX", 9)),
            format_text("F: in what ends at byte {}: the chunk at byte {} is not what was written",
                        whole.size(), whole.size()));
}

TEST(RecorderTest, KeepsTheLastOfManyStepsInMemoryAndSavesThem) {
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  Recorder recorder(info_of(small_config(10), false), "");
  StepPlan plan;
  plan.sequences.resize(256);
  for (SequencePlan& sequence : plan.sequences) sequence.num_tokens = 1;
  StepResult result;
  result.sequences.resize(plan.sequences.size());
  constexpr int kSteps = 20000;
  for (int i = 0; i < kSteps; ++i) {
    plan.id = static_cast<std::uint64_t>(i);
    recorder.handle([&plan](SchedulerObserver& to) { to.planned(&plan, {}); });
    recorder.handle([&result](SchedulerObserver& to) { to.applied(result, {}); });
  }
  recorder.save(path);
  EXPECT_LT(std::filesystem::file_size(path), Recorder::kMemoryBytes + (std::size_t{1} << 18));
  const Recording recording(path);
  EXPECT_FALSE(recording.info().from_start);
  struct Last : Counts {
    std::uint64_t id = 0;
    void planned(const StepPlan* last, std::span<const PlanningFailure> /*failures*/) override {
      id = last->id;
    }
  } last;
  recording.read(last);
  EXPECT_EQ(last.id, std::uint64_t{kSteps - 1});
}

TEST(RecorderTest, WhatIsLeftOfStepsInFlightCanBeRead) {
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  Recorder recorder(info_of(small_config(10), false), "");
  StepPlan plan;
  StepResult result;
  const auto resize = [](auto& sequences, int step) { sequences.assign(200 + step % 2, {}); };
  for (int i = 0; i < 40000; ++i) {  // two steps are in flight, of different numbers of sequences
    resize(plan.sequences, i);
    for (SequencePlan& sequence : plan.sequences) sequence.num_tokens = 1;
    recorder.handle([&plan](SchedulerObserver& to) { to.planned(&plan, {}); });
    if (i < 2) continue;
    resize(result.sequences, i - 2);
    recorder.handle([&result](SchedulerObserver& to) { to.applied(result, {}); });
  }
  recorder.save(path);
  const Recording recording(path);
  EXPECT_FALSE(recording.info().from_start);
  EXPECT_GE(recording.info().num_in_flight, 2);
  Counts counts;
  EXPECT_NO_THROW(recording.read(counts));
}

// Tells of what comes of two long prompts, event by event.
class SomeEvents {
 public:
  static constexpr int kNumber = 5;

  SomeEvents() {
    plan_.id = result_.id = 1;
    for (SequenceId id = 1; id <= 2; ++id) {
      requests_.push_back(request_of(id, std::vector<TokenId>(30'000, 7)));
      SequencePlan& sequence = plan_.sequences.emplace_back();
      sequence.sequence = id;
      sequence.num_tokens = 1;
      result_.sequences.emplace_back().sequence = id;
      result_.sequences.back().token = 9;
      updates_.push_back({.id = id, .token = 9});
    }
  }
  void tell(SchedulerObserver& observer, int event) const {
    observer.handle([this, event](SchedulerObserver& to) {
      if (event < 2) to.added(requests_[static_cast<std::size_t>(event)]);
      if (event == 2) to.planned(&plan_, {});
      if (event == 3) to.applied(result_, updates_);
      if (event == 4) to.aborted(2);
    });
  }

 private:
  std::vector<SequenceRequest> requests_;
  StepPlan plan_;
  StepResult result_;
  std::vector<SequenceUpdate> updates_;
};

// Events that a file has, which may be cut off.
int num_recorded(const std::string& path, bool is_whole) {
  Counts counts;
  int events = 0;
  const Recording recording(path);
  RecordingReader reader(recording);
  while (reader.next(counts)) ++events;
  EXPECT_EQ(reader.ended(), is_whole);
  return events - (is_whole ? 1 : 0);
}

TEST(RecorderTest, EndsWhereThereIsNoMemoryAndKeepsWhatWasBefore) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  const SomeEvents events;
  for (const bool has_file : {false, true}) {
    bool failed = true;
    for (int nth = 1; failed; ++nth) {
      SCOPED_TRACE(nth);
      std::optional<Recorder> recorder(std::in_place, info_of(small_config(10), true), has_file ? path : "");
      int num_told = 0, num_before = 0;
      failed = testing::fails_at(nth, [&] {
        for (; num_told < SomeEvents::kNumber; ++num_told) {
          events.tell(*recorder, num_told);
          num_before += testing::allocations_left > 0 ? 1 : 0;
        }
      });
      EXPECT_EQ(num_told, SomeEvents::kNumber) << "an event has thrown";
      EXPECT_EQ(num_before < SomeEvents::kNumber, failed);
      if (!has_file) recorder->save(path);
      recorder.reset();
      EXPECT_EQ(num_recorded(path, has_file && !failed), num_before);
      EXPECT_TRUE(nth > 3 || failed);
    }
  }
}

TEST(RecorderTest, NoMemoryForItsThreadEndsTheRecordingAlone) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  static const std::thread::id here = std::this_thread::get_id();
  const TempDir directory;
  const std::string path = directory.path() / "recording";
  const SomeEvents events;
  {
    Recorder recorder(info_of(small_config(10), true), path);
    for (int i = 0; i < SomeEvents::kNumber; ++i) events.tell(recorder, i);
    testing::on_allocation = [](std::size_t) {
      if (std::this_thread::get_id() != here) throw std::bad_alloc();
    };
  }
  testing::on_allocation = nullptr;
  num_recorded(path, false);
}

TEST(RecorderTest, GoesOnWithoutTheFileWhereTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_THROW(Recorder(info_of(small_config(10), false), "/dev/full"), Error);
  EXPECT_THROW(Recorder(info_of(small_config(10), false), "/no/such/folder/x"), Error);
}

}  // namespace
}  // namespace quire
