#pragma once

#include <cstdint>
#include <set>

#include "scheduler/sequence.h"

namespace quire {

// The sequences that wait to run, in order of precedence, and what they count as. The first is admitted
// first; while it is known not to fit, nobody is.
class WaitingQueue {
 public:
  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }
  Sequence& first() const { return **waiting_.begin(); }
  auto begin() const { return waiting_.begin(); }
  auto end() const { return waiting_.end(); }

  void push(Sequence& sequence);
  // Does nothing if it does not wait here.
  void remove(Sequence& sequence);

  // The first does not fit, until something is given back or another one is the first.
  void block() { blocked_ = true; }
  void unblock() { blocked_ = false; }
  bool is_blocked() const { return blocked_; }

  // A request is queued until its first sequence is admitted, and counts as so many tokens.
  std::int64_t num_requests() const { return num_requests_; }
  std::int64_t num_tokens() const { return num_tokens_; }

  // Throws InternalError where an invariant of docs/invariants.md does not hold.
  void check() const;

 private:
  void count(const Sequence& sequence, int sign);

  std::set<Sequence*, Precedes> waiting_;
  bool blocked_ = false;
  std::int64_t num_requests_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace quire
