#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/load_generator.h"

namespace quire {

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

}  // namespace quire
