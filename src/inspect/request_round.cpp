#include "inspect/request_round.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"

namespace quire {

double seconds_between(BenchClock::time_point from, BenchClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Round run_round(Engine& engine, std::vector<EngineRequest> requests, const std::function<void()>& on_token,
                std::size_t at_once) {
  constexpr std::size_t kUnderWay = 3;  // times: of the submission and of two tokens
  at_once = std::min(at_once, requests.size());
  Round round;
  std::size_t num_outputs = 0, num_first = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i == at_once) num_first = num_outputs;
    num_outputs += static_cast<std::size_t>(requests[i].params.n);
  }
  round.outputs.resize(num_outputs);
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t unfinished = requests.size(), under_way = 0;  // guarded by mutex, as is the next one
  std::string error;
  auto output = round.outputs.begin();
  const BenchClock::time_point start = BenchClock::now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i == at_once) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return under_way == num_first || unfinished + at_once == requests.size(); });
    }
    const std::span<TimedOutput> outputs(output, static_cast<std::size_t>(requests[i].params.n));
    output += requests[i].params.n;
    for (TimedOutput& own : outputs) own.times.push_back(BenchClock::now());
    requests[i].on_update = [&, outputs](const RequestUpdate& update) {
      const BenchClock::time_point now = BenchClock::now();
      TimedOutput& own = outputs[static_cast<std::size_t>(update.output.index)];
      const bool has_token = update.output.token_ids.size() >= own.times.size();
      if (has_token) {
        own.times.push_back(now);
        if (on_token) on_token();
      }
      const std::lock_guard lock(mutex);
      if (has_token && own.times.size() == kUnderWay && ++under_way == num_first) changed.notify_all();
      if (!update.output.finished()) return;
      own.tokens = update.output.token_ids;
      if (!update.output.error.empty()) error = update.output.error;
      if (update.output.finish_reason == FinishReason::kStop)
        error = format_text("an output was complete after {} tokens; a schema that never is would do",
                            update.output.token_ids.size());
      if (!update.finished) return;
      round.seconds = seconds_between(start, now);
      --unfinished;
      changed.notify_all();  // under the lock: all this may be gone right after
    };
    engine.submit(std::move(requests[i]));
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return unfinished == 0; });
  if (!error.empty()) fail("bench: {}", error);
  return round;
}

}  // namespace quire
