#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/communicator.h"

namespace quire {

// Ranks in threads of one process, for backends that execute an op when it is called: a collective runs when
// called, and is done when it returns. Ranks read and write each other's tensors in place; results are
// bitwise the same on every rank and in every run. Ranks that call different operations, or the same one with
// different shapes, get InternalError, all of them. Thread contract: a communicator belongs to one thread at
// a time; fail may be called from any thread.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size);
  ~ThreadRanks();
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  // The communicator of one rank. It must not outlive this object.
  std::unique_ptr<Communicator> connect(int rank);

  // Every rank that waits for others now, or meets them later, throws Error with the text `why`, until
  // reset(): for a rank that cannot go on. An operation that every rank has called is done first. The first
  // reason counts.
  void fail(const std::string& why);
  // While no rank is in a collective.
  void reset();

 private:
  struct Call;
  class Meeting;
  class Rank;

  bool pass_barrier(bool unless_failed);
  [[noreturn]] void throw_failure();

  const int size_;
  const bool spins_;
  std::vector<Call> calls_;  // by rank; written by that rank before the meeting, read by all during it
  // The barrier: flags kFailed and kPhase, and the ranks that have arrived, in units of kArrival. One word,
  // so that either all ranks pass or none does, whenever fail comes.
  alignas(64) std::atomic<std::uint32_t> state_{0};
  std::mutex mutex_;
  std::string failure_;  // guarded by mutex_
};

}  // namespace quire
