// What requests hold while they wait for their first step.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "sanitized.h"

namespace quire {
namespace {

constexpr std::int64_t kLimit = 4 << 20;  // tokens

std::int64_t resident_bytes() {
  malloc_trim(0);
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Waiting {
  const char* name;
  int num_prompt;
  int n;
  int num_biases;
};

class QueueMemoryTest : public ::testing::TestWithParam<Waiting> {
 protected:
  static EngineRequest make_request(const Waiting& waiting) {
    EngineRequest request;
    request.prompt.assign(static_cast<std::size_t>(waiting.num_prompt), 5);
    request.params.n = waiting.n;
    for (int id = 0; id < waiting.num_biases; ++id) request.params.logit_bias[id] = 1;
    return request;
  }
};

TEST_P(QueueMemoryTest, AFullQueueHoldsAsManyBytesAsItsTokensSay) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer's allocator holds more than is asked of it";
  EngineConfig config = testing::golden_config("qwen3");
  config.max_num_seqs = 1;
  config.max_num_queued_tokens = kLimit;
  Engine engine(config);
  engine.observe_steps([](const StepRecord&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  EngineRequest running = make_request({"", 1, 1, 0});  // takes some 20 s if nobody aborts it
  running.params.max_tokens = 1000;
  running.params.ignore_eos = true;
  const RequestId first = engine.submit(std::move(running));
  while (engine.stats().scheduler.num_running == 0) std::this_thread::yield();
  const std::int64_t before = resident_bytes();
  std::vector<RequestId> ids;
  try {
    for (;;) ids.push_back(engine.submit(make_request(GetParam())));
  } catch (const QueueFullError&) {
  }
  const auto all_wait = [&] {
    return engine.stats().scheduler.num_queued_requests == static_cast<std::int64_t>(ids.size());
  };
  while (!all_wait()) std::this_thread::yield();
  const std::int64_t growth = resident_bytes() - before;
  EXPECT_EQ(engine.stats().scheduler.num_running, 1) << "the queue was not full any more";
  RecordProperty("bytes_per_token", std::to_string(static_cast<double>(growth) / kLimit));
  EXPECT_LE(growth, kLimit * SequenceRequest::kBytesPerQueuedToken * 3 / 2);
  engine.abort(first);
  for (const RequestId id : ids) engine.abort(id);
}

INSTANTIATE_TEST_SUITE_P(Requests, QueueMemoryTest,
                         ::testing::Values(Waiting{"long_prompts", 900, 1, 0},
                                           Waiting{"prompts_of_16_outputs", 900, 16, 0},
                                           Waiting{"128_outputs", 10, 128, 0}, Waiting{"biases", 10, 1, 200}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
