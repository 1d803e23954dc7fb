#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "quire/request_output.h"

namespace quire {

struct BrokenInvariant {
  std::string what;  // empty: none is
  // It is one of those that keep one sequence's contents apart from another's: 1 to 6, and their like for
  // host memory (16) and fixed states (18 to 20).
  bool mixes_contents = false;
};

// When the scheduler's invariants are checked while it serves, and what becomes of one that does not hold.
// Thread contract: one thread, but for num_broken.
class InvariantChecks {
 public:
  // EngineConfig::check_invariants; Error where it is under -1.
  explicit InvariantChecks(std::int64_t every);

  // Whether to check behind this step, which ended now.
  bool is_due(TimePoint now);
  // Logs and counts what `check` throws, InternalError or another.
  BrokenInvariant check(const std::function<void()>& check);
  std::uint64_t num_broken() const { return num_broken_; }

 private:
  const std::int64_t every_;
  std::int64_t steps_ = 0;  // since the last one
  TimePoint next_{};
  std::atomic<std::uint64_t> num_broken_{0};
};

}  // namespace quire
