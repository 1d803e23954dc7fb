#pragma once

#include "backends/cuda/kernels/delta_rule.cuh"
#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

// The gated delta rule over chunks of 64 tokens (Yang et al., "Gated delta networks", 2025) on tensor cores.
// With g the decay from a chunk's start up to a token, G (i, j) = g_i / g_j, S the state before the chunk and
// A = diag(beta) (G * K Kᵀ) below the diagonal:
//   D = (I + A)⁻¹ diag(beta) (V - g * K S), out = g * Q S + (G * Q Kᵀ) D, S = g_last S + (g_last / g * K)ᵀ D.
// The first kernel makes of each chunk, all side by side, what does not need the state. The second goes along
// a sequence's chunks. There a warp has 16 columns of the values, and all that it makes stands transposed, so
// that what one product gives is the left operand of the next in the same registers: warps share the right
// operands alone, which copies bring while the chunk before is computed.
// Operands are f16, sums f32. Keys and queries are scaled by powers of two to a norm in (1/2, 1], which loses
// nothing that counts; (I + A)⁻¹, a product of contractions, and G * Q Kᵀ are within 1. S, V and so D come in
// a unit of each chunk's and warp's own, a power of two that follows from their size alone. So each operand
// is within 2⁻¹² of itself, an eighth of what bf16 activations are rounded by, and S stays f32.
// Bytes of a chunk: q, k and v once, 32 KiB a key head and 17 KiB a value head written and read again, mostly
// in L2. Predicted of 32 heads: 1.2 us a chunk of one sequence, 232 products of a warp at 8 cycles; 15 us for
// 1,024 tokens of many sequences, by the bandwidth of shared memory; the first kernel 4 us for as many.
namespace quire::cuda {

constexpr int kChunk = kStateChunk;
constexpr int kKeyDim = 128;
constexpr int kGroup = 64;  // chunks that the workspace holds at one time

// Tiles of 16-bit values, rows of kColumns: the 16 bytes of a row change places so that eight rows of one
// column lie in different banks.
template <int kColumns>
__device__ int place(int row, int column) {
  constexpr int kVectors = kColumns / 8;
  const int turn = kVectors >= 8 ? row % 8 : row / (8 / kVectors) % kVectors;
  return row * kColumns + (column / 8 ^ turn) * 8 + column % 8;
}

// What load_matrices wants of this lane for the 16 × 16 values from (0, 0) on: a right operand's quarters
// (0, 0), (0, 8), (8, 0), (8, 8), or a left one's, (8, 0) before (0, 8). The tile begins at a multiple of its
// rows' bytes, so an exclusive or leads to other columns.
template <int kColumns>
__device__ std::uint32_t right_corner(const __half* tile) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  return shared_address(tile + place<kColumns>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
}
template <int kColumns>
__device__ std::uint32_t left_corner(const __half* tile) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  return shared_address(tile + place<kColumns>(lane / 8 % 2 * 8 + lane % 8, lane / 16 * 8));
}
// The same of the values from (row, column) on, both multiples of 16.
template <int kColumns>
__device__ std::uint32_t corner_at(std::uint32_t corner, int row, int column) {
  return (corner ^ static_cast<std::uint32_t>(2 * column)) + static_cast<std::uint32_t>(2 * row * kColumns);
}

// Of a chunk's key head; tokens that are not there are zeros.
struct alignas(256) ChunkKeys {
  __half keys[kChunk * kKeyDim], queries[kChunk * kKeyDim];
};
// Factors of tokens: of what the state has for a key, and for a query; of what D adds to the state.
struct alignas(16) ChunkFactors {
  float seen[kChunk], read[kChunk], kept[kChunk];
  float decay, unused[3];
};
// Of a chunk's value head. Values right of the diagonal's 16 × 16 blocks are anything.
struct alignas(256) ChunkRule {
  __half solution[kChunk * kChunk];  // (I + A)⁻¹ diag(beta)
  __half scores[kChunk * kChunk];    // G * Q Kᵀ
  ChunkFactors factors;
};

template <typename T>
struct ChunkArgs : DeltaArgs<T> {
  const LongSpan* spans;
  ChunkKeys* keys;   // [kGroup, num_key_heads]
  ChunkRule* rules;  // [kGroup, num_value_heads]
  int num_spans;
  int begin, end;  // the chunks of this group
};

// The long span that a chunk is of. Every thread of the block must call this.
template <typename T>
__device__ int span_of(const ChunkArgs<T>& args, int chunk) {
  int before = 0;  // spans that begin with this chunk or before it
  for (int first = 0; first < args.num_spans; first += static_cast<int>(blockDim.x)) {
    const int i = first + static_cast<int>(threadIdx.x);
    before += __syncthreads_count(i < args.num_spans && args.spans[i].first_chunk <= chunk);
  }
  return before - 1;
}

struct ChunkRows {
  int first, count;  // of the step's tokens
};

template <typename T>
__device__ ChunkRows rows_of(const ChunkArgs<T>& args, const LongSpan& span) {
  const int first = args.starts[span.sequence];
  return {first, args.starts[span.sequence + 1] - first};
}
__device__ inline ChunkRows rows_of(const LongSpan& span, const ChunkRows& all, int chunk) {
  const int whole = (chunk - span.first_chunk) * kChunk - span.skipped;
  const int first = max(whole, 0);
  return {all.first + first, min(whole + kChunk, all.count) - first};
}

// Queues the kernel over the chunks of a group.
template <typename T>
void prepare_chunks(const LaunchContext& context, const ChunkArgs<T>& args);

}  // namespace quire::cuda
