#pragma once

#include <cstdint>

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/linear_args.cuh"
#include "backends/cuda/kernels/product_tile.cuh"

// How the Hopper products whose left operand is the weight end: the blocks of a cluster, each with the sums
// of a part of k, add them, always in one order, and write them.
namespace quire::cuda {

struct ProductOut {
  explicit ProductOut(const LinearArgs& args)
      : bias(args.bias),
        out(args.out),
        out_stride(args.out_stride),
        tokens(args.tokens),
        n(args.n),
        activation(args.activation),
        pairs(reinterpret_cast<std::uintptr_t>(args.out) % 4 == 0 && args.out_stride % 2 == 0) {}

  const float* bias;  // or null
  void* out;
  std::int64_t out_stride;
  int tokens;
  int n;                       // columns
  ActivationTerms activation;  // of a gate
  bool pairs;                  // two neighbours of a row of out can be stored at once
};

// Bytes of shared memory that blocks of `threads` threads, each with sums of so many blocks, send each other.
constexpr int exchange_bytes(int blocks, int split, int threads) {
  return (split - 1) * ceil_div(blocks, split) * threads * int{sizeof(float4)};
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Writes a thread's sums. A block of sums is 16 rows of the weight by 8 tokens, the layout of mma.cuh.
template <typename Out, bool kGated>
class ProductWriter {
 public:
  // row: of the warp's 16 rows of the weight, the first column of out.
  __device__ ProductWriter(const ProductOut& p, int row) : p_(p), row_(row) {
    if (p.bias == nullptr) return;
    for (int half = 0; half < 2; ++half) {
      const int column = row_ + half * 8 + lane() / 4;
      if (column < p.n) bias_[half] = p.bias[column];
    }
  }

  __device__ void write(const float (&sums)[4], int first_token) const {
    if constexpr (kGated) {
      write_half(activated(sums[0], p_.activation) * sums[2], activated(sums[1], p_.activation) * sums[3],
                 row_, first_token);
    } else {
      write_half(sums[0] + bias_[0], sums[1] + bias_[0], row_, first_token);
      write_half(sums[2] + bias_[1], sums[3] + bias_[1], row_ + 8, first_token);
    }
  }

 private:
  // 8 columns of out from `column` on by 8 tokens: two tokens of column lane / 4.
  __device__ void write_half(float first, float second, int column, int token) const {
    if constexpr (sizeof(Out) == 4) {
      column += lane() / 4;
      token += lane() % 4 * 2;
      if (column >= p_.n) return;
      Out* to = static_cast<Out*>(p_.out) + token * p_.out_stride + column;
      if (token < p_.tokens) to[0] = first;
      if (token + 1 < p_.tokens) to[p_.out_stride] = second;
    } else {
      const std::uint32_t pair = transpose(pack(first, second, Out()));
      column += lane() % 4 * 2;
      token += lane() / 4;
      if (column >= p_.n || token >= p_.tokens) return;
      Out* to = static_cast<Out*>(p_.out) + token * p_.out_stride + column;
      if (p_.pairs && column + 1 < p_.n) {
        *reinterpret_cast<std::uint32_t*>(to) = pair;
      } else {
        const Out* values = reinterpret_cast<const Out*>(&pair);
        to[0] = values[0];
        if (column + 1 < p_.n) to[1] = values[1];
      }
    }
  }

  const ProductOut& p_;
  int row_;
  float bias_[2] = {};
};

// A block's part of k: the rank-th of `split`.
struct KPart {
  int split, rank;
};

// Block b of the sums is added and written by the cluster's block of rank b % split.
// place(i): of this thread's part of the i-th block of sums that a block receives.

// Calls f(b, owner, slot): block b is the slot-th of the sums that the cluster's block `owner` adds.
template <int kBlocks, typename F>
__device__ inline void for_sums(const KPart& own, const F& f) {
  int owner = 0, slot = 0;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    f(b, owner, slot);
    if (++owner == own.split) owner = 0, ++slot;
  }
}
// Sends what others add, once the rings of all of them, where it goes, are empty. The warps without sums call
// wait_for_sums() in its place.
template <int kBlocks, typename Place>
__device__ inline void send_sums(const float (&sums)[kBlocks][4], float4* exchange, const KPart& own,
                                 const Place& place) {
  if (own.split == 1) return;
  hopper::sync_cluster();
  const int slots = ceil_div(kBlocks, own.split);
  for_sums<kBlocks>(own, [&](int b, int owner, int slot) {
    if (owner == own.rank) return;
    const int sender = (own.rank - owner - 1 + own.split) % own.split;
    hopper::store_to_block(exchange + place(sender * slots + slot), static_cast<unsigned>(owner), sums[b]);
  });
  hopper::sync_cluster();
}
__device__ inline void wait_for_sums(const KPart& own) {
  if (own.split == 1) return;
  hopper::sync_cluster();
  hopper::sync_cluster();
}
// Adds what was sent to this block's, and calls write(block) for each of them.
template <int kBlocks, typename Place, typename Write>
__device__ inline void receive_sums(float (&sums)[kBlocks][4], const float4* exchange, const KPart& own,
                                    const Place& place, const Write& write) {
  const int slots = ceil_div(kBlocks, own.split);
  for_sums<kBlocks>(own, [&](int b, int owner, int slot) {
    if (owner != own.rank) return;
    for (int sender = 0; sender < own.split - 1; ++sender) {
      const float4 part = exchange[place(sender * slots + slot)];
      sums[b][0] += part.x;
      sums[b][1] += part.y;
      sums[b][2] += part.z;
      sums[b][3] += part.w;
    }
    write(b);
  });
}

#endif

}  // namespace quire::cuda
