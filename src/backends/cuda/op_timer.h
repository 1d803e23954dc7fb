#pragma once

#include <vector>

#include "backends/cuda/kernels/launch.h"
#include "ops/backend.h"

namespace quire::cuda {

// Times the ops of a stretch of the stream, from one's begin to the next one's. The device is held back at
// first, so that the host is ahead of it and ops follow one another as they do in a graph; what stays is an
// event between two ops, about a microsecond.
class OpTimer {
 public:
  explicit OpTimer(const LaunchContext& context);
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  void begin(OpKind kind);
  OpTimes finish();  // waits for the last op

 private:
  struct Mark {
    OpKind kind;
    cudaEvent_t event;
  };

  LaunchContext context_;
  std::vector<Mark> marks_;
};

}  // namespace quire::cuda
