#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "inspect/answer_reader.h"
#include "inspect/load_plan.h"

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

// The id of the first model that a server lists. `url` is the server's, without a path.
std::string first_model(const std::string& url, const std::string& api_key);

}  // namespace quire
