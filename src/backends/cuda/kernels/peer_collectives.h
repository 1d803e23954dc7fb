#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernels/launch.h"
#include "ops/ops.h"

namespace quire::cuda {

// Collectives of GPUs that reach each other's memory: every rank writes what it has into the inboxes of the
// others, and reads its own inbox until all is there. No barrier.

inline constexpr int kMaxPeers = 8;

// In host memory that the device can write to.
struct PeerSigns {
  std::uint32_t abandoned = 0;  // kernels stop waiting, with whatever result
  // Written anew while a kernel waits for long: 256 * the number of the collective + the rank waited for + 1.
  std::uint64_t waiting = 0;
};

// What the kernels of one rank need of the others.
struct Peers {
  int rank = 0;
  int size = 1;
  int max_blocks = 0;               // of kPeerThreads, that can be on the device at once
  std::size_t slot_bytes = 0;       // that a rank can send to another in one launch
  std::byte* inboxes[kMaxPeers]{};  // of each rank: [2][size][slot_bytes], as this device addresses it
  // On this device, zero at the start: collectives done, and blocks that are done in the present one.
  std::uint32_t* turn = nullptr;
  PeerSigns* signs = nullptr;
};

inline constexpr int kPeerThreads = 1024;

inline std::size_t inbox_bytes(int size, std::size_t slot_bytes) {
  return std::size_t{2} * static_cast<std::size_t>(size) * slot_bytes;
}
// As an inbox must be before the first collective.
void clear_inbox(const LaunchContext& context, std::byte* inbox, std::size_t bytes);

// The operations of Communicator, on tensors of one shape on all ranks. What does not fit a slot takes
// several launches. Sums are added in rank order in float32 and rounded once. A word of all ones, which is a
// NaN, arrives as another.

// tensor: contiguous, 16-byte aligned.
void peer_all_reduce(const LaunchContext& context, const Peers& peers, const Tensor& tensor);
// Whether the next takes these.
bool peer_all_reduce_add_norm_supports(const Tensor& out, const Tensor& residual, const Tensor& x,
                                       const NormParams& params);
// In two trips, each rank leaves the rows of the residual that are others' as they were.
int peer_norm_trips(const Peers& peers, const Tensor& x);
// The sum is rounded to x's type before it is added.
void peer_all_reduce_add_norm(const LaunchContext& context, const Peers& peers, const Tensor& out,
                              const Tensor& residual, const Tensor& x, float scale, const NormParams& params);
// All rows where out has as many as `in`; else each rank's share of them: out has as many as
// Communicator::rows_a_share says, and what a rank's own share has less is filled up. A row of `in` must fit
// a slot when each element takes 16 bytes.
void peer_gather(const LaunchContext& context, const Peers& peers, const Tensor& out, const Tensor& in);

}  // namespace quire::cuda
