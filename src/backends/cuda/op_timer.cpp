#include "backends/cuda/op_timer.h"

#include <algorithm>

#include "backends/cuda/kernels/probe.h"

namespace quire::cuda {
namespace {

// Longer than the host takes to queue a step of a thousand kernels.
constexpr std::int64_t kHeadStartNanoseconds = 15'000'000;

constexpr int kEmptyMarks = 64;  // with no op between them, to see what a mark costs

}  // namespace

OpTimer::OpTimer(const LaunchContext& context) : context_(context) {
  occupy(context_, kHeadStartNanoseconds);
}

void OpTimer::begin(OpKind kind) {
  marks_.push_back({kind, make_event()});
  check(cudaEventRecord(marks_.back().event.get(), context_.stream), "recording an event");
}

OpTimes OpTimer::finish() {
  const std::size_t end = marks_.size();
  for (int i = 0; i <= kEmptyMarks; ++i) begin(OpKind::kOther);
  check(cudaEventSynchronize(marks_.back().event.get()), "timing ops");
  const double mark_seconds = seconds_between(marks_[end].event, marks_.back().event) / kEmptyMarks;
  OpTimes times{};
  for (std::size_t i = 0; i < end; ++i) {
    const double taken = seconds_between(marks_[i].event, marks_[i + 1].event);
    times[static_cast<std::size_t>(marks_[i].kind)] += std::max(0.0, taken - mark_seconds);
  }
  return times;
}

}  // namespace quire::cuda
