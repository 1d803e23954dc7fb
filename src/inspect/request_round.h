#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

#include "engine/engine.h"

namespace quire {

using BenchClock = std::chrono::steady_clock;
double seconds_between(BenchClock::time_point from, BenchClock::time_point to);

// An output of a request, as its caller saw it come.
struct TimedOutput {
  std::vector<TokenId> tokens;
  std::vector<BenchClock::time_point> times;  // of its submission, then of each token
};

struct Round {
  double seconds = 0;                // from the first submission to the last answer
  std::vector<TimedOutput> outputs;  // [requests, outputs of a request]
};

// Submits the first `at_once` of the requests, the others when each output of those has two tokens, and waits
// for all. on_token: on the output thread; may be empty. Error where one ends with an error, or before
// max_tokens.
Round run_round(Engine& engine, std::vector<EngineRequest> requests,
                const std::function<void()>& on_token = {},
                std::size_t at_once = std::numeric_limits<std::size_t>::max());

}  // namespace quire
