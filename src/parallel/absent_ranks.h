#pragma once

#include "base/error.h"
#include "ops/communicator.h"

namespace quire {

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
