#pragma once

#include <span>

#include "quire/request_output.h"

namespace quire::server {

// What an answer waited for, in milliseconds: until the first step of any output, from there until one had a
// token, from there until all had ended.
struct Timings {
  double queue = 0;
  double prefill = 0;
  double decode = 0;

  double total() const { return queue + prefill + decode; }
};

// Of the requests that an answer is made of, which have ended. What they did not come to took no time.
Timings timings_of(std::span<const RequestOutput> requests);

}  // namespace quire::server
