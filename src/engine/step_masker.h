#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "scheduler/scheduler.h"

namespace quire {

// Finds out, on threads of its own and the caller's, which tokens the constrained sequences of a step may
// have, while a device computes that step. Costs nothing before the first of them. Thread contract: one
// thread.
class StepMasker {
 public:
  struct Row {
    SequenceId id = 0;
    std::optional<ConstrainedOutput> output = {};  // none: the sequence has ended
    bool has_mask = false;
    std::vector<TokenId> forced = {};  // as Constraint::forced
    std::string error = {};            // why the sequence cannot go on
    bool is_request_at_fault = false;  // with it
  };

  // end_ids: those of EOS, which do not come while a sequence may say anything.
  StepMasker(std::int64_t vocab_size, const std::vector<TokenId>& end_ids);

  // The constrained sequences of a plan, if there are any, that will be submitted.
  void take(const StepPlan& plan);
  bool pending() const { return !ids_.empty(); }
  void drop() { ids_.clear(); }
  // Their tokens are known. What has come of each, in order; and then the masks, until the next call.
  std::vector<Row> compute(Scheduler& scheduler);
  std::shared_ptr<const StepMasks> masks() const { return masks_; }
  double seconds() const { return seconds_; }  // that the last call took

 private:
  void compute(Row& row, std::span<std::uint32_t> mask) const;

  const std::size_t words_;               // of a mask
  std::vector<std::uint32_t> free_mask_;  // all tokens but end_ids
  std::vector<SequenceId> ids_;
  std::shared_ptr<StepMasks> masks_ = std::make_shared<StepMasks>();
  std::optional<ThreadPool> threads_;
  double seconds_ = 0;
};

}  // namespace quire
