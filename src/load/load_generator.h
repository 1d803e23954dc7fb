#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "inspect/agent_bench.h"
#include "load/answer_reader.h"
#include "load/load_plan.h"

namespace quire {

struct LoadTarget {
  std::string url;  // of completions or chat completions
  std::string api_key;
  RequestForm form;
};

struct LoadOptions {
  double requests_per_s = std::numeric_limits<double>::infinity();  // infinite: all at once
  std::size_t max_concurrency = std::numeric_limits<std::size_t>::max();
  std::uint64_t seed = 0;                                                // of the arrivals
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // requests
  std::function<bool()>
      interrupted;  // asked often; true: nothing more is sent, and what is under way cancelled
};

struct LoadResult {
  std::vector<RequestTimeline> timelines;  // one a request
  double seconds = 0;                      // until the last answer
};

// Sends the requests to a server, each when its time has come and fewer than max_concurrency are under way,
// and notes when the answers come.
LoadResult run_load(HttpClient& client, const LoadTarget& target, const std::vector<LoadRequest>& requests,
                    const LoadOptions& options);

// Turns as completions with prompts of token ids, streamed.
std::unique_ptr<TurnRunner> server_turns(LoadTarget target);

// What a load came to. As in vLLM's benchmark, requests that failed or were cancelled count in no figure but
// their own; a latency that no request had is an empty list.
struct LoadFigures {
  std::size_t num_done = 0;
  std::size_t num_failed = 0;
  std::size_t num_cancelled = 0;      // under way when the load was interrupted
  std::size_t num_without_usage = 0;  // of those done: the tokens are a guess
  std::size_t peak_concurrency = 0;
  std::string first_error;
  double seconds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<double> ttft_ms;  // from sending a request to its first chunk
  std::vector<double> tpot_ms;  // of a request: from the first to the last chunk, by its tokens but the first
  std::vector<double> itl_ms;   // between two chunks
  std::vector<double> e2e_ms;   // from sending a request to its last chunk

  // NaN where nothing was done.
  double requests_per_s() const;
  double prompt_tokens_per_s() const;
  double output_tokens_per_s() const;
  double total_tokens_per_s() const;
};

LoadFigures load_figures(const LoadResult& result);

double mean(const std::vector<double>& values);  // NaN of none

// The id of the first model that a server lists. `url` is the server's, without a path.
std::string first_model(const std::string& url, const std::string& api_key);

}  // namespace quire
