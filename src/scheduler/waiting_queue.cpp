#include "scheduler/waiting_queue.h"

#include "base/error.h"

namespace quire {

void WaitingQueue::push(Sequence& sequence) {
  const auto place = waiting_.insert(&sequence).first;
  if (place == waiting_.begin()) unblock();
  count(sequence, 1);
}

void WaitingQueue::remove(Sequence& sequence) {
  if (waiting_.erase(&sequence) == 0) return;
  unblock();
  count(sequence, -1);
}

void WaitingQueue::count(const Sequence& sequence, int sign) {
  const SequenceRequest& request = *sequence.request;
  const bool is_first = request.first_sibling == 0 || request.first_sibling == sequence.id;
  if (!is_first || sequence.num_cached_tokens >= 0) return;
  num_requests_ += sign;
  num_tokens_ += sign * request.num_queued_tokens();
}

void WaitingQueue::check() const {
  WaitingQueue same;
  for (Sequence* sequence : waiting_) {
    QUIRE_CHECK(sequence->state == SequenceState::kWaiting && !sequence->held,
                "9: sequence {} is in a wrong list", sequence->id);
    same.push(*sequence);
  }
  QUIRE_CHECK(same.num_requests_ == num_requests_ && same.num_tokens_ == num_tokens_, "9: a wrong count");
}

}  // namespace quire
