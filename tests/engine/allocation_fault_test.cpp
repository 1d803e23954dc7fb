// Memory runs out on the engine's thread or on the one of outputs: that ends requests at most, and each once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "allocations.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/output_processor.h"
#include "engine/submit.h"
#include "quire/llm.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using testing::fail_allocation;
using testing::has_allocation_failed;
using testing::request_of;

constexpr auto kLongestWait = 60s;  // for what is to end

struct AllocationCase {
  const char* name;
  SamplingParams params;
  const char* model = "qwen3";
  bool among_others = false;  // and with two steps in flight
};

// A source that no request had before.
std::shared_ptr<const StructuredOutputs> new_source() {
  static int number = 0;
  return std::make_shared<const StructuredOutputs>(StructuredOutputs{
      .kind = StructuredOutputs::Kind::kRegex, .source = "[a-z ]{9," + std::to_string(100 + number++) + "}"});
}

class EngineAllocationTest : public ::testing::TestWithParam<AllocationCase> {
 protected:
  // From the `turn`th step's end to the next one's, or (0) from before the request comes to the first one's,
  // the nth allocation of the engine's thread fails.
  EngineHooks hooks() {
    EngineHooks hooks;
    hooks.pipelined = GetParam().among_others;
    hooks.fault = [this](EngineStage stage, SequenceId) {
      if (stage != EngineStage::kCollect || turns_left_ == 0) return;
      if (--turns_left_ == 1) fail_allocation(nth_);
      if (turns_left_ == 0) failed_ = has_allocation_failed();
    };
    return hooks;
  }

  std::atomic<int> turns_left_ = 0, nth_ = 0;
  std::atomic<bool> failed_ = false;
};

TEST_P(EngineAllocationTest, AFailedOneEndsEveryRequestOnceAndTheNextIsAsEver) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  if (GetParam().params.beam_width && !QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  if (GetParam().params.structured_outputs && !QUIRE_HAS_GRAMMAR) GTEST_SKIP() << "needs QUIRE_GRAMMAR=ON";
  const std::string model = GetParam().model;
  const auto prompt = [&](int i) { return testing::golden_ids(model, "prompt." + std::to_string(i)); };
  EngineConfig config = testing::golden_config(model);
  if (model == "toy") config.model = QUIRE_SOURCE_DIR "/models/toy";
  Engine engine(config, open_model(config.model), hooks());
  const auto next_is_as_ever = [&] {
    auto next = testing::submit_output(engine, request_of(prompt(0)));
    if (next.wait_for(kLongestWait) != std::future_status::ready) return false;
    return next.get().token_ids == testing::golden_ids(model, "greedy.0");
  };
  int num_failed = 0;
  for (int turn = 0; turn <= 3; ++turn) {
    failed_ = true;
    for (nth_ = 1; failed_ && !HasFailure(); ++nth_) {
      SCOPED_TRACE("turn " + std::to_string(turn) + ", allocation " + std::to_string(nth_));
      EngineRequest request = request_of(prompt(1));
      request.params = GetParam().params;
      if (request.params.structured_outputs) request.params.structured_outputs = new_source();
      request.params.max_tokens = 3;
      request.params.ignore_eos = true;
      turns_left_ = turn + 1;
      if (turn == 0) engine.look([nth = nth_.load()](Scheduler&) { fail_allocation(nth); });
      std::vector<EngineRequest> requests(1, std::move(request));
      if (GetParam().among_others) requests.push_back(request_of(prompt(0)));
      for (auto& victim : testing::submit(engine, std::move(requests))) {
        ASSERT_EQ(victim.wait_for(kLongestWait), std::future_status::ready) << "it never ends";
        for (const CompletionOutput& output : victim.get().outputs) EXPECT_TRUE(output.finished());
      }
      // The first one may be where it fails.
      EXPECT_TRUE(next_is_as_ever() || next_is_as_ever());
      EXPECT_EQ(turns_left_, 0);
      num_failed += failed_ ? 1 : 0;
    }
  }
  EXPECT_GT(num_failed, 20);
  EXPECT_TRUE(engine.healthy());
  EXPECT_EQ(engine.stats().scheduler.num_free_blocks, engine.stats().scheduler.num_blocks);
}

SamplingParams params_with(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  params.seed = 1;
  change(params);
  return params;
}

INSTANTIATE_TEST_SUITE_P(
    Requests, EngineAllocationTest,
    ::testing::Values(AllocationCase{"one", params_with([](SamplingParams& p) { p.logprobs = 2; })},
                      AllocationCase{"several", params_with([](SamplingParams& p) { p.n = 3; })},
                      AllocationCase{"best_of", params_with([](SamplingParams& p) { p.best_of = 3; })},
                      AllocationCase{"beams", params_with([](SamplingParams& p) { p.beam_width = 3; })},
                      AllocationCase{"beams_among_others",
                                     params_with([](SamplingParams& p) { p.beam_width = 3; }), "qwen3", true},
                      AllocationCase{"constrained", params_with([](SamplingParams& p) {
                                       p.structured_outputs = new_source();
                                     }),
                                     "toy"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(SearchAllocationTest, OneWhoseAnswerFindsNoMemoryIsComputedNoMore) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  if (!QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  Engine engine(testing::golden_config("qwen3"));
  const auto is_idle = [&] {
    const SchedulerStats stats = engine.stats().scheduler;
    return stats.num_free_blocks == stats.num_blocks && stats.num_running == 0;
  };
  bool failed = true;
  for (int nth = 1; failed && !::testing::Test::HasFailure(); ++nth) {
    SCOPED_TRACE(nth);
    std::promise<void> are_there;
    std::promise<bool> ended;
    std::vector<EngineRequest> requests(2, request_of(testing::golden_ids("qwen3", "prompt.0")));
    requests[0].params.max_tokens = 1;
    requests[0].on_update = [nth, are_there = are_there.get_future().share()](const RequestUpdate&) {
      are_there.wait();
      fail_allocation(nth);  // of the thread of outputs, which begins with the search next
    };
    requests[1].params.beam_width = 4;  // of which one is given
    requests[1].params.max_tokens = 40;
    requests[1].on_update = [&ended](const RequestUpdate& update) {
      if (update.finished) ended.set_value(has_allocation_failed());
    };
    engine.submit({requests.data(), 1});
    engine.submit({requests.data() + 1, 1});
    are_there.set_value();
    failed = ended.get_future().get();
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (!is_idle() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(is_idle());
  }
}

TEST(SubmitAllocationTest, WhoCouldNotSubmitARequestIsToldNothingOfIt) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    std::atomic<int> num_updates = 0;
    bool is_submitted = false;
    std::vector<EngineRequest> requests(2, request_of({5, 6, 7}));
    for (EngineRequest& request : requests) request.on_update = [&](const RequestUpdate&) { ++num_updates; };
    {
      Engine engine(testing::golden_config("qwen3"));
      failed = testing::fails_at(nth, [&] {
        engine.submit(requests);
        is_submitted = true;
      });
    }
    EXPECT_EQ(num_updates > 0, is_submitted);
  }
}

TEST(GenerateAllocationTest, ACallThatFindsNoneHasEndedWhenItsCallerIsTold) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  LLM llm{EngineConfig{}};  // the bundled model: the others make no text
  std::atomic<bool> told = false;
  GenerateOptions options;
  options.on_text = [&](std::size_t, const CompletionOutput&, std::string_view) { EXPECT_FALSE(told); };
  const std::vector<Prompt> prompts(3, std::vector<TokenId>{5, 6, 7});
  bool failed = true;
  for (int nth = 1; failed && !::testing::Test::HasFailure(); ++nth) {
    SCOPED_TRACE(nth);
    told = false;
    failed = testing::fails_at(nth, [&] { llm.generate(prompts, testing::greedy(100), options); });
    told = true;
    std::this_thread::sleep_for(2ms);  // for what would still run
  }
}

// An output processor whose thread, or the one that calls it, finds no memory.
class OutputAllocationTest : public ::testing::Test {
 protected:
  static constexpr SequenceId kBefore = 1, kVictim = 10, kAfter = 20;

  void SetUp() override {
    if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  }

  static SequenceUpdate update_of(SequenceId id, FinishReason finish = FinishReason::kNone) {
    SequenceUpdate update;
    update.id = id;
    update.token = 5;
    update.finish = finish;
    update.logprobs.emplace();
    return update;
  }
  static void add(OutputProcessor& outputs, RequestId id, int n,
                  decltype(EngineRequest::on_update) on_update) {
    EngineRequest request;
    request.params.n = n;
    request.params.logprobs = 1;
    request.params.stop = {"a text"};
    request.on_update = std::move(on_update);
    auto prompt = std::make_shared<const std::vector<TokenId>>(100, 7);
    outputs.add(std::vector(1, OutputProcessor::Addition{id, std::move(request), std::move(prompt)}));
  }
  // Does `work` on the thread of outputs, behind all that was queued before.
  static void on_thread(OutputProcessor& outputs, RequestId id, const std::function<void()>& work) {
    auto done = std::make_shared<std::promise<void>>();
    const std::future<void> is_done = done->get_future();
    add(outputs, id, 1, [&work, done](const RequestUpdate&) {
      work();
      done->set_value();
    });
    outputs.push({update_of(id, FinishReason::kLength)}, TimePoint::clock::now());
    ASSERT_EQ(is_done.wait_for(kLongestWait), std::future_status::ready);
  }

  struct Told {
    int updates = 0, ends = 0;
    FinishReason finish = FinishReason::kNone;
  };
  // Whoever the victim tells; gone once it has ended.
  static std::weak_ptr<Told> add_victim(OutputProcessor& outputs, Told& last) {
    auto told = std::make_shared<Told>();
    add(outputs, kVictim, 2, [&last, told](const RequestUpdate& update) {
      ++told->updates;
      told->ends += update.finished ? 1 : 0;
      told->finish = update.output.finish_reason;
      last = *told;
    });
    return told;
  }
};

TEST_F(OutputAllocationTest, AFailedOneEndsTheRequestOnce) {
  bool failed = true;
  int num_refused = 0;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    std::set<SequenceId> stopped;
    OutputProcessor outputs(nullptr, {}, [&](SequenceId id) {
      const int left = std::exchange(testing::allocations_left, 0);
      stopped.insert(id);
      testing::allocations_left = left;
    });
    on_thread(outputs, kBefore, [nth] { fail_allocation(nth); });
    Told last;
    add_victim(outputs, last);
    const auto now = TimePoint::clock::now();
    outputs.start({{kVictim}, {kVictim + 1}}, now);
    outputs.push({update_of(kVictim), update_of(kVictim + 1)}, now);
    outputs.push({update_of(kVictim), update_of(kVictim + 1, FinishReason::kLength)}, now);
    outputs.push({update_of(kVictim, FinishReason::kLength)}, now);
    on_thread(outputs, kAfter, [&] { failed = has_allocation_failed(); });
    EXPECT_EQ(last.ends, 1);
    EXPECT_TRUE(failed || last.finish == FinishReason::kLength);
    if (last.updates == 1) {  // before it had begun: nothing is computed for it any more
      EXPECT_EQ(stopped, (std::set<SequenceId>{kVictim, kVictim + 1}));
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 2);
}

TEST_F(OutputAllocationTest, ACallbackThatFindsNoneEndsItsRequest) {
  std::set<SequenceId> stopped;
  OutputProcessor outputs(nullptr, {}, [&](SequenceId id) { stopped.insert(id); });
  int calls = 0;
  const auto held = std::make_shared<int>();
  add(outputs, kVictim, 2, [&calls, held](const RequestUpdate&) {
    ++calls;
    throw std::bad_alloc();
  });
  outputs.push({update_of(kVictim), update_of(kVictim + 1), update_of(kVictim)}, TimePoint::clock::now());
  on_thread(outputs, kAfter, [] {});
  EXPECT_EQ(held.use_count(), 1) << "it has not ended";
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(stopped, (std::set<SequenceId>{kVictim, kVictim + 1}));
}

TEST_F(OutputAllocationTest, WhatCannotBeQueuedEndsAllRequests) {
  OutputProcessor outputs(nullptr, {}, [](SequenceId) {});
  Told last;
  const std::weak_ptr<Told> victim = add_victim(outputs, last);
  std::vector<SequenceUpdate> updates;
  for (int i = 0; i < 1000; ++i) updates.push_back(update_of(kVictim));  // more than there is room for
  EXPECT_TRUE(testing::fails_at(1, [&] { outputs.push(std::move(updates), TimePoint::clock::now()); }));
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (!victim.expired() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  on_thread(outputs, kAfter, [] {});
  EXPECT_TRUE(victim.expired());
  EXPECT_EQ(last.ends, 1);
  EXPECT_EQ(last.finish, FinishReason::kError);
}

}  // namespace
}  // namespace quire
