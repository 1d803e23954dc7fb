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

  void push(Sequence& sequence) {
    waiting_.insert(&sequence);
    blocked_ = blocked_ && &sequence != &first();
    count(sequence, 1);
  }
  // Does nothing if it does not wait here.
  void remove(Sequence& sequence) {
    if (waiting_.erase(&sequence) == 0) return;
    blocked_ = false;
    count(sequence, -1);
  }

  // The first does not fit, until something is given back or another one is the first.
  void block() { blocked_ = true; }
  void unblock() { blocked_ = false; }
  bool is_blocked() const { return blocked_; }

  // A request is queued until its first sequence is admitted, and counts as so many tokens.
  std::int64_t num_requests() const { return num_requests_; }
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  void count(const Sequence& sequence, int sign) {
    const SequenceRequest& request = *sequence.request;
    const bool is_first = request.first_sibling == 0 || request.first_sibling == sequence.id;
    if (!is_first || sequence.num_cached_tokens >= 0) return;
    num_requests_ += sign;
    num_tokens_ += sign * request.num_queued_tokens();
  }

  std::set<Sequence*, Precedes> waiting_;
  bool blocked_ = false;
  std::int64_t num_requests_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace quire
