#pragma once

#include "base/error.h"
#include "ops/communicator.h"
#include "ops/device.h"

namespace quire {

// The ordinary case: one rank that has nobody to talk to.
class SingleRank : public Communicator {
 public:
  explicit SingleRank(Device& device) : device_(device) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(const Tensor&) override {}
  void all_gather(const Tensor& out, const Tensor& in) override {
    if (out.data() != in.data()) device_.copy(out, in);
  }

 private:
  Device& device_;
};

}  // namespace quire
