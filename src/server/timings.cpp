#include "server/timings.h"

#include <algorithm>

namespace quire::server {

Timings timings_of(std::span<const RequestOutput> requests) {
  TimePoint arrival = TimePoint::max();
  for (const RequestOutput& request : requests) arrival = std::min(arrival, request.arrival);
  TimePoint end = arrival;
  for (const RequestOutput& request : requests)
    for (const CompletionOutput& output : request.outputs)
      end = std::max(end, output.times.finished.value_or(arrival));
  TimePoint scheduled = end;
  TimePoint first_token = end;
  for (const RequestOutput& request : requests) {
    for (const CompletionOutput& output : request.outputs) {
      scheduled = std::min(scheduled, output.times.scheduled.value_or(end));
      first_token = std::min(first_token, output.times.first_token.value_or(end));
    }
  }
  const auto milliseconds = [](TimePoint::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  return {milliseconds(scheduled - arrival), milliseconds(first_token - scheduled),
          milliseconds(end - first_token)};
}

}  // namespace quire::server
