#pragma once

#include <string>

namespace quire::server {

// What this process uses, in Prometheus' text format under the names that its client libraries have agreed
// upon: process_cpu_seconds_total and the like.
std::string process_metrics();

}  // namespace quire::server
