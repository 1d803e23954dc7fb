#include "backends/cuda/op_timer.h"

#include "backends/cuda/kernels/probe.h"

namespace quire::cuda {
namespace {

// Longer than the host takes to queue a step of a thousand kernels.
constexpr std::int64_t kHeadStartNanoseconds = 15'000'000;

}  // namespace

OpTimer::OpTimer(const LaunchContext& context) : context_(context) {
  occupy(context_, kHeadStartNanoseconds);
}

OpTimer::~OpTimer() {
  for (const Mark& mark : marks_) cudaEventDestroy(mark.event);
}

void OpTimer::begin(OpKind kind) {
  Mark mark{kind, nullptr};
  check(cudaEventCreate(&mark.event), "making an event");
  marks_.push_back(mark);
  check(cudaEventRecord(mark.event, context_.stream), "recording an event");
}

OpTimes OpTimer::finish() {
  begin(OpKind::kOther);
  check(cudaEventSynchronize(marks_.back().event), "timing ops");
  OpTimes times{};
  for (std::size_t i = 1; i < marks_.size(); ++i) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, marks_[i - 1].event, marks_[i].event), "timing an op");
    times[static_cast<std::size_t>(marks_[i - 1].kind)] += 1e-3 * static_cast<double>(milliseconds);
  }
  return times;
}

}  // namespace quire::cuda
