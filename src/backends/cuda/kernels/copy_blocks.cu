// Copies whole blocks of the KV cache: within the cache, or between it and pinned host memory, which the
// kernel reads and writes over the bus itself.
//
// Layout: [block][bytes]. Bytes that must move: those of the blocks, once; that they are some among many in a
// recorded step is why no copy engine does it. Grid x walks a block, y the pairs.
#include <algorithm>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kPairsAtOnce = 64;

template <typename Unit>
struct BlockCopyArgs {
  Unit* to;
  const Unit* from;
  const int* pairs;
  std::int64_t units;  // of a block
  int num_pairs;
};

// Within one cache grid y is 1: a thread copies its place in every pair, in order, so that a block may be
// copied from after it was copied to.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    copy_blocks_kernel(const __grid_constant__ BlockCopyArgs<Unit> args) {
  admit_next_kernel();
  const std::int64_t place = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= args.units) return;
  wait_for_kernels();
  for (int i = static_cast<int>(blockIdx.y); i < args.num_pairs; i += static_cast<int>(gridDim.y))
    args.to[args.pairs[2 * i + 1] * args.units + place] = args.from[args.pairs[2 * i] * args.units + place];
}

template <typename Unit>
void copy_blocks_in(const LaunchContext& context, const Tensor& to, const Tensor& from, const Tensor& pairs) {
  const std::int64_t units = to.dim(1) / std::int64_t{sizeof(Unit)};
  const BlockCopyArgs<Unit> args{to.data_as<Unit>(), from.data_as<const Unit>(), pairs.data_as<const int>(),
                                 units, static_cast<int>(pairs.dim(0))};
  const dim3 grid(static_cast<unsigned>((units + kThreads - 1) / kThreads),
                  to.data() == from.data() ? 1 : static_cast<unsigned>(std::min(pairs.dim(0), kPairsAtOnce)));
  launch(context, "copy_blocks", copy_blocks_kernel<Unit>, grid, dim3(kThreads), 0, args);
}

}  // namespace

void copy_blocks(const LaunchContext& context, const Tensor& to, const Tensor& from, const Tensor& pairs) {
  if (pairs.dim(0) == 0) return;
  const auto places = reinterpret_cast<std::uintptr_t>(to.data()) |
                      reinterpret_cast<std::uintptr_t>(from.data()) | static_cast<std::uintptr_t>(to.dim(1));
  places % 16 == 0 ? copy_blocks_in<uint4>(context, to, from, pairs)
                   : copy_blocks_in<std::uint8_t>(context, to, from, pairs);
}

}  // namespace quire::cuda
