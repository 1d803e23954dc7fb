#pragma once

#include <vector>

namespace quire {

struct RequestSize {
  int prompt_tokens = 0;
  int output_tokens = 0;
};

// The 256 requests of the standard workload.
const std::vector<RequestSize>& standard_workload();

}  // namespace quire
