#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <memory>
#include <vector>

#include "backends/cuda/kernels/peer_collectives.h"
#include "ops/communicator.h"

namespace quire::cuda {

// What this rank's kernels and their host tell each other; the host's memory, for any device.
std::shared_ptr<PeerSigns> make_signs();

// Waits for a GPU whose kernels may wait for other ranks. Thread contract: one thread, but for abandon.
class RankWatch {
 public:
  // host: of all ranks. signs: those of the ranks in this process, this one's first; none: NCCL adds up. A
  // rank that is waited for `watchdog` seconds in one collective is lost.
  RankWatch(std::unique_ptr<Communicator> host, std::vector<std::shared_ptr<PeerSigns>> signs,
            double watchdog);

  // Until the event has passed; LostRank where a rank is lost, and then our kernels of all ranks of this
  // process wait no longer.
  void wait(cudaEvent_t event);
  // Has these kernels wait no longer. From any thread.
  void abandon() const;

 private:
  using Clock = std::chrono::steady_clock;
  void look(Clock::time_point now);

  const std::unique_ptr<Communicator> host_;
  const std::vector<std::shared_ptr<PeerSigns>> signs_;
  const std::chrono::duration<double> watchdog_;
  std::uint64_t waiting_ = 0;        // as PeerSigns::waiting, when it was last looked at
  Clock::time_point waiting_since_;  // of the same
  Clock::time_point last_look_;
};

}  // namespace quire::cuda
