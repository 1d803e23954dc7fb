// Copies whole blocks of the KV cache, in all layers: within the cache, or between it and pinned host memory,
// which the kernel reads and writes over the bus itself.
//
// Layout: cache [block][kv head][K | V][token][dim]. Bytes that must move: those of the blocks, once; that a
// block has a piece in each layer (64 KB of 8 heads of size 128 and 16 tokens) is why no copy engine does it.
// A launch takes 32 layers: grid x walks a block's pieces, y the pairs, z the layers.
#include <algorithm>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {
namespace {

constexpr std::size_t kMaxLayers = 32;
constexpr unsigned kThreads = 256;
constexpr std::int64_t kPairsAtOnce = 64;

template <typename Unit>
struct BlockCopyArgs {
  Unit* to[kMaxLayers][2];  // keys and values
  const Unit* from[kMaxLayers][2];
  std::int64_t to_block, to_head, from_block, from_head;  // strides, in units
  const int* pairs;
  unsigned units;  // of one head's keys in a block
  unsigned heads;
  int num_pairs;
};

// Within one cache grid y is 1: a thread copies its place in every pair, in order, so that a block may be
// copied from after it was copied to.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    copy_blocks_kernel(const __grid_constant__ BlockCopyArgs<Unit> args) {
  admit_next_kernel();
  const unsigned place = blockIdx.x * kThreads + threadIdx.x;
  if (place >= 2 * args.heads * args.units) return;
  const unsigned unit = place % args.units;
  const unsigned head = place / args.units % args.heads;
  const unsigned half = place / args.units / args.heads;
  Unit* to = args.to[blockIdx.z][half] + head * args.to_head + unit;
  const Unit* from = args.from[blockIdx.z][half] + head * args.from_head + unit;
  wait_for_kernels();
  for (int i = static_cast<int>(blockIdx.y); i < args.num_pairs; i += static_cast<int>(gridDim.y))
    to[args.pairs[2 * i + 1] * args.to_block] = from[args.pairs[2 * i] * args.from_block];
}

template <typename Unit>
void copy_blocks(const LaunchContext& context, std::span<const KvCacheLayer> to,
                 std::span<const KvCacheLayer> from, const Tensor& pairs) {
  const auto in_units = [size = size_of(to.front().keys.dtype())](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size) / static_cast<std::int64_t>(sizeof(Unit));
  };
  const Tensor& keys = to.front().keys;
  BlockCopyArgs<Unit> args{.to = {},
                           .from = {},
                           .to_block = in_units(keys.stride(0)),
                           .to_head = in_units(keys.stride(1)),
                           .from_block = in_units(from.front().keys.stride(0)),
                           .from_head = in_units(from.front().keys.stride(1)),
                           .pairs = pairs.data_as<const int>(),
                           .units = static_cast<unsigned>(in_units(keys.dim(2) * keys.dim(3))),
                           .heads = static_cast<unsigned>(keys.dim(1)),
                           .num_pairs = static_cast<int>(pairs.dim(0))};
  for (std::size_t i = 0; i < to.size(); ++i) {
    args.to[i][0] = to[i].keys.data_as<Unit>();
    args.to[i][1] = to[i].values.data_as<Unit>();
    args.from[i][0] = from[i].keys.data_as<const Unit>();
    args.from[i][1] = from[i].values.data_as<const Unit>();
  }
  const bool within = keys.data() == from.front().keys.data();
  const dim3 grid((2 * args.heads * args.units + kThreads - 1) / kThreads,
                  within ? 1 : static_cast<unsigned>(std::min(pairs.dim(0), kPairsAtOnce)),
                  static_cast<unsigned>(to.size()));
  launch(context, "copy_blocks", copy_blocks_kernel<Unit>, grid, dim3(kThreads), 0, args);
}

// All layers of a cache are laid out alike, keys as values.
bool splits_into_16_bytes(std::span<const KvCacheLayer> layers) {
  const Tensor& keys = layers.front().keys;
  const auto size = static_cast<std::int64_t>(size_of(keys.dtype()));
  const bool strides = keys.stride(0) * size % 16 == 0 && keys.stride(1) * size % 16 == 0 &&
                       keys.dim(2) * keys.dim(3) * size % 16 == 0;
  return strides && std::all_of(layers.begin(), layers.end(), [](const KvCacheLayer& layer) {
           return reinterpret_cast<std::uintptr_t>(layer.keys.data()) % 16 == 0 &&
                  reinterpret_cast<std::uintptr_t>(layer.values.data()) % 16 == 0;
         });
}

}  // namespace

void copy_blocks(const LaunchContext& context, std::span<const KvCacheLayer> to,
                 std::span<const KvCacheLayer> from, const Tensor& pairs) {
  if (pairs.dim(0) == 0) return;
  const bool wide = splits_into_16_bytes(to) && splits_into_16_bytes(from);
  for (std::size_t first = 0; first < to.size(); first += kMaxLayers) {
    const std::size_t count = std::min(kMaxLayers, to.size() - first);
    wide ? copy_blocks<uint4>(context, to.subspan(first, count), from.subspan(first, count), pairs)
         : copy_blocks<std::uint8_t>(context, to.subspan(first, count), from.subspan(first, count), pairs);
  }
}

}  // namespace quire::cuda
