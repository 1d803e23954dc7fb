#pragma once

#include "quire/request_output.h"

namespace quire::server {

// What a request waited for, in milliseconds. Of several outputs: until one was scheduled, until one had a
// token, until all had ended.
struct Timings {
  double queue = 0;
  double prefill = 0;
  double decode = 0;

  double total() const { return queue + prefill + decode; }
};

// Of a request that has ended. What it did not come to took no time.
Timings timings_of(const RequestOutput& request);

}  // namespace quire::server
