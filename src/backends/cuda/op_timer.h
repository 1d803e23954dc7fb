#pragma once

#include <vector>

#include "backends/cuda/kernels/launch.h"
#include "ops/device.h"

namespace quire::cuda {

// Times the ops of a stretch of the stream, from one's begin to the next one's, less what a mark costs. The
// device is held back at first, so that the host is ahead of it. Ops do not overlap here as they do in a
// graph, where one begins while the other ends: their sum may exceed the step they are taken from.
class OpTimer {
 public:
  explicit OpTimer(const LaunchContext& context);

  void begin(OpKind kind);
  OpTimes finish();  // waits for the last op

 private:
  struct Mark {
    OpKind kind;
    CudaEvent event;
  };

  LaunchContext context_;
  std::vector<Mark> marks_;
};

}  // namespace quire::cuda
