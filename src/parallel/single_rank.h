#pragma once

#include "base/error.h"
#include "ops/backend.h"
#include "ops/communicator.h"

namespace quire {

// The ordinary case: one rank that has nobody to talk to.
class SingleRank : public Communicator {
 public:
  explicit SingleRank(Backend& backend) : backend_(backend) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(const Tensor&) override {}
  void all_gather(const Tensor& out, const Tensor& in) override {
    if (out.data() != in.data()) backend_.copy(out, in);
  }

 private:
  Backend& backend_;
};

}  // namespace quire
