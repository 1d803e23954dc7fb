// Copies whole blocks of the KV cache: within the cache, or between it and pinned host memory, which the
// kernel reads and writes over the bus itself.
//
// Layout: [slot][block][bytes]. Bytes that must move: those of the blocks, once; that a block has a piece in
// each slot (64 KB of 8 heads of size 128 and 16 tokens) is why no copy engine does it. Grid x walks a piece,
// y the pairs, z the slots.
#include <algorithm>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kPairsAtOnce = 64;

// units: of a piece; slots: their strides, in units. Within one cache grid y is 1: a thread copies its place
// in every pair, in order, so that a block may be copied from after it was copied to.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    copy_blocks_kernel(Unit* to, const Unit* from, const int* pairs, std::int64_t units, std::int64_t to_slot,
                       std::int64_t from_slot, int num_pairs) {
  admit_next_kernel();
  const std::int64_t place = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= units) return;
  to += blockIdx.z * to_slot + place;
  from += blockIdx.z * from_slot + place;
  wait_for_kernels();
  for (int i = static_cast<int>(blockIdx.y); i < num_pairs; i += static_cast<int>(gridDim.y))
    to[pairs[2 * i + 1] * units] = from[pairs[2 * i] * units];
}

template <typename Unit>
void copy_blocks_in(const LaunchContext& context, const Tensor& to, const Tensor& from, const Tensor& pairs) {
  const auto in_units = [](std::int64_t bytes) { return bytes / std::int64_t{sizeof(Unit)}; };
  const std::int64_t units = in_units(to.dim(2));
  const dim3 grid(ceil_div(units, kThreads),
                  to.data() == from.data() ? 1 : std::min(pairs.dim(0), kPairsAtOnce), to.dim(0));
  launch(context, "copy_blocks", copy_blocks_kernel<Unit>, grid, kThreads, 0, to.data_as<Unit>(),
         from.data_as<const Unit>(), pairs.data_as<const int>(), units, in_units(to.stride(0)),
         in_units(from.stride(0)), static_cast<int>(pairs.dim(0)));
}

}  // namespace

void copy_blocks(const LaunchContext& context, const Tensor& to, const Tensor& from, const Tensor& pairs) {
  if (pairs.dim(0) == 0) return;
  const auto places = reinterpret_cast<std::uintptr_t>(to.data()) |
                      reinterpret_cast<std::uintptr_t>(from.data()) | static_cast<std::uintptr_t>(to.dim(2));
  places % 16 == 0 ? copy_blocks_in<uint4>(context, to, from, pairs)
                   : copy_blocks_in<std::uint8_t>(context, to, from, pairs);
}

}  // namespace quire::cuda
