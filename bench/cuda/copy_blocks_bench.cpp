// Copies of KV cache blocks to pinned host memory and back, beside what one large copy by the driver reaches
// in the same direction in the same run.
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backends/cuda/kernels/elementwise.h"
#include "bench/cuda/timing.h"

namespace quire::cuda::bench {
namespace {

struct Shape {
  const char* name;
  int layers, kv_heads, head_dim;
};

constexpr int kBlockSize = 16;
constexpr std::int64_t kBlocks = 2048;

// Blocks that lie scattered on both sides.
Tensor random_pairs(int count) {
  std::vector<std::int32_t> from(kBlocks), to(kBlocks);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.begin(), to.end(), 0);
  std::mt19937 random(3);
  std::shuffle(from.begin(), from.end(), random);
  std::shuffle(to.begin(), to.end(), random);
  return device_tensor<std::int32_t>(DType::kI32, count, 2,
                                     [&](std::size_t i) { return i % 2 == 0 ? from[i / 2] : to[i / 2]; });
}

void run(const LaunchContext& context, const Shape& shape) {
  const std::size_t block_bytes =
      std::size_t{4} * shape.layers * shape.kv_heads * kBlockSize * shape.head_dim;
  const std::size_t bytes = block_bytes * kBlocks;
  void* device = nullptr;
  void* host = nullptr;
  check(cudaMalloc(&device, bytes), "memory");
  check(cudaMallocHost(&host, bytes), "pinned memory");
  const std::int64_t width = static_cast<std::int64_t>(block_bytes) / shape.layers;
  const Tensor device_cache(device, DType::kU8, {shape.layers, kBlocks, width}, DeviceKind::kCuda);
  const Tensor host_cache(host, DType::kU8, {shape.layers, kBlocks, width});
  for (const bool out : {true, false}) {
    const char* direction = out ? "to the host" : "from the host";
    constexpr std::size_t kLarge = std::size_t{1} << 28;
    const double large_us = graph_time_us(context, 1, [&](int) {
      check(cudaMemcpyAsync(out ? host : device, out ? device : host, kLarge, cudaMemcpyDefault,
                            context.stream),
            "copy");
    });
    const double limit = kLarge / large_us * 1e-3;
    std::printf("%-10s %-13s one copy of 256 MiB                       %6.1f GB/s\n", shape.name, direction,
                limit);
    for (const int count : {1, 4, 16, 64, 256, 1024}) {
      const Tensor pairs = random_pairs(count);
      const double us = graph_time_us(context, 1, [&](int) {
        out ? copy_blocks(context, host_cache, device_cache, pairs)
            : copy_blocks(context, device_cache, host_cache, pairs);
      });
      const double rate = static_cast<double>(block_bytes) * count / us * 1e-3;
      std::printf("%-10s %-13s %5d blocks of %4zu KiB  %9.1f us  %6.1f GB/s  %3.0f %%\n", shape.name,
                  direction, count, block_bytes >> 10, us, rate, 100 * rate / limit);
    }
  }
  check(cudaFree(device), "memory");
  check(cudaFreeHost(host), "pinned memory");
}

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using namespace quire::cuda::bench;
  const quire::cuda::LaunchContext context = make_context();
  for (const Shape& shape : {Shape{"Qwen3-0.6B", 28, 8, 128}, Shape{"Qwen3-8B", 36, 8, 128}})
    run(context, shape);
}
