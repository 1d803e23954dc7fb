#pragma once

#include <algorithm>

#include "backends/cuda/kernels/peer_collectives.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {

// How the kernels of ranks tell each other vectors of 16 bytes, over peer memory.
//
// An inbox word that has not come is kEmpty, which is never sent: it is a NaN (or two), and another takes its
// place. So data need no flags and no fences; the reader polls the data themselves, and empties them again.
// An inbox has two slots, used by turns. Who has finished a turn has had something from every rank that the
// rank sent in this turn, thus after it had emptied all of the turn before; so two turns on, the slot is
// free. The number of the turn lies on the device, since a recorded graph passes the same arguments each
// time.
//
// All blocks of a launch are on the device at once (Peers::max_blocks), and who waits has sent what others
// wait for: ranks cannot wait for each other for ever.

inline constexpr unsigned kEmpty = 0xFFFFFFFF;
inline constexpr unsigned kOtherNan = 0x7FFF7FFF;  // in every float type, too
inline constexpr unsigned kPatience = 1 << 12;     // reads until the host is told, some milliseconds

__device__ inline uint4 sendable(uint4 words) {
  const auto mend = [](unsigned word) { return word == kEmpty ? kOtherNan : word; };
  return {mend(words.x), mend(words.y), mend(words.z), mend(words.w)};
}

__device__ inline bool is_complete(uint4 words) {
  return words.x != kEmpty && words.y != kEmpty && words.z != kEmpty && words.w != kEmpty;
}

__device__ inline void put(uint4* to, uint4 words) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ inline uint4 peek(const uint4* from) {
  uint4 words;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}

template <typename T>
__device__ uint4 as_words(const Vec<T, 16 / sizeof(T)>& values) {
  return *reinterpret_cast<const uint4*>(&values);
}
template <typename T>
__device__ Vec<T, 16 / sizeof(T)> as_values(const uint4& words) {
  return *reinterpret_cast<const Vec<T, 16 / sizeof(T)>*>(&words);
}

// One collective, as a thread sees it. kRanks: the most there are.
template <int kRanks>
class Exchange {
 public:
  // After wait_for_kernels().
  __device__ explicit Exchange(const Peers& peers) : peers_(peers), turn_(*peers.turn) {}

  __device__ bool is_other(int rank) const { return rank < peers_.size && rank != peers_.rank; }

  // This rank's vector `index` to another, or to all others.
  __device__ void send_to(int rank, std::int64_t index, uint4 words) const {
    put(place(rank, peers_.rank) + index, words);
  }
  __device__ void send(std::int64_t index, uint4 words) const {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank)
      if (is_other(rank)) send_to(rank, index, words);
  }

  // Vector `index` of all others below `ranks`, to words[rank].
  __device__ void receive(std::int64_t index, uint4 (&words)[kRanks], int ranks = kRanks) {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank)
      if (is_other(rank) && rank < ranks) words[rank] = peek(place(peers_.rank, rank) + index);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank)
      if (is_other(rank) && rank < ranks) wait(place(peers_.rank, rank) + index, rank, words[rank]);
  }

  // By every thread of every block: counts the blocks that know the turn, whose number may then change. What
  // comes between hides how long that takes.
  __device__ void begin_ending() {
    __syncthreads();
    if (threadIdx.x == 0) blocks_before_ = atomicAdd(&peers_.turn[1], 1U);
  }
  __device__ void end() const {
    if (threadIdx.x != 0 || blocks_before_ + 1 != gridDim.x) return;
    peers_.turn[1] = 0;
    peers_.turn[0] = turn_ + 1;
  }

 private:
  __device__ uint4* place(int owner, int sender) const {
    const std::size_t slot = (turn_ & 1) * static_cast<std::size_t>(peers_.size) + sender;
    return reinterpret_cast<uint4*>(peers_.inboxes[owner] + slot * peers_.slot_bytes);
  }

  // Until the words, read once already, are there. Empties their place.
  __device__ void wait(uint4* from, int rank, uint4& words) {
    for (unsigned reads = 1; !is_complete(words) && !abandoned_; ++reads) {
      if (reads % kPatience == 0) tell_whom(rank);
      words = peek(from);
    }
    put(from, {kEmpty, kEmpty, kEmpty, kEmpty});
  }

  __device__ void tell_whom(int rank) {
    volatile PeerSigns* const signs = peers_.signs;
    signs->waiting = std::uint64_t{turn_} << 8 | static_cast<unsigned>(rank + 1);
    abandoned_ = signs->abandoned != 0;
  }

  const Peers& peers_;
  unsigned turn_;
  unsigned blocks_before_ = 0;
  bool abandoned_ = false;
};

// In one trip: send(i) for this thread's i < count of all threads', then receive(i).
template <int kRanks, typename Send, typename Receive>
__device__ void exchange_all(Exchange<kRanks>& exchange, unsigned first, unsigned step, unsigned count,
                             Send&& send, Receive&& receive) {
  for (unsigned i = first; i < count; i += step) send(i);
  exchange.begin_ending();
  for (unsigned i = first; i < count; i += step) receive(i);
  exchange.end();
}

// The sum over the ranks in their order, of which this one's is `own`.
template <typename T, int kRanks>
__device__ Vec<T, 16 / sizeof(T)> sum_of_ranks(const Peers& peers, const Vec<T, 16 / sizeof(T)>& own,
                                               const uint4 (&words)[kRanks]) {
  constexpr int kWidth = 16 / sizeof(T);
  float sums[kWidth];
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank >= peers.size) break;
    const auto part = rank == peers.rank ? own : as_values<T>(words[rank]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      sums[i] = rank == 0 ? widen(part.values[i]) : sums[i] + widen(part.values[i]);
  }
  Vec<T, kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.values[i] = narrow<T>(sums[i]);
  return result;
}

// Calls f.template operator()<kRanks>() with room for all ranks.
template <typename F>
void dispatch_ranks(const Peers& peers, F&& f) {
  require(peers.size >= 2 && dispatch_up_to<2, 4, kMaxPeers>(peers.size, f), "number of ranks");
}

// Blocks of `threads` for so many pieces of work, all on the device at once.
inline dim3 grid_of(const Peers& peers, std::int64_t pieces, unsigned threads) {
  // No multiprocessor takes fewer than 16 blocks, if they have the threads.
  const std::int64_t most = std::int64_t{peers.max_blocks} * std::min(kPeerThreads / threads, 16U);
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, most)));
}

}  // namespace quire::cuda
