#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/ids.h"

namespace quire {

// What the output of one sequence must be. Thread contract: one thread at a time.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // Which tokens may follow `output`, that of the sequence so far, which begins with what it was in the call
  // before. True: those whose bits it sets in `mask`, [StepMasks::words(vocab)]; false: any that does not end
  // the output. Error where none may, or where what was asked for makes it too much to find out.
  virtual bool fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) = 0;
  // The tokens that must come next after that output, one after the other, as many as are known, `most` at
  // most.
  virtual std::vector<TokenId> forced(int most) = 0;
};
using MakeConstraint = std::function<std::shared_ptr<Constraint>()>;

// A sequence that is constrained, and its output.
struct ConstrainedOutput {
  Constraint& constraint;
  std::span<const TokenId> tokens;
  int most_forced = 0;  // tokens that Scheduler::foresee may be told of
};

}  // namespace quire
