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

// One rank of several, the others of which are not there: tells what this rank would hold, and never
// computes.
class AbsentRanks : public Communicator {
 public:
  AbsentRanks(int rank, int size) : rank_(rank), size_(size) {
    QUIRE_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(const Tensor&) override { QUIRE_CHECK(false, "nobody to add to"); }
  void all_gather(const Tensor&, const Tensor&) override { QUIRE_CHECK(false, "nobody to gather from"); }

 private:
  int rank_;
  int size_;
};

}  // namespace quire
