#include "backends/cuda/ceiling.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "backends/cuda/kernels/probe.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

constexpr int kRepeats = 8;
constexpr std::size_t kReadBytes = std::size_t{2} << 30;
constexpr std::int64_t kSide = 8192;

// Memory for the time of a measurement; null where there is not so much.
std::shared_ptr<std::byte> scratch(std::size_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) == cudaSuccess) return {static_cast<std::byte*>(data), cudaFree};
  static_cast<void>(cudaGetLastError());
  return {};
}

// Seconds of the fastest of some runs, the first one apart.
double fastest(const LaunchContext& context, const std::function<void()>& work) {
  const CudaEvent begin = make_event(), end = make_event();
  work();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    check(cudaEventRecord(begin.get(), context.stream), "recording an event");
    work();
    check(cudaEventRecord(end.get(), context.stream), "recording an event");
    check(cudaEventSynchronize(end.get()), "measuring the device");
    best = std::min(best, seconds_between(begin, end));
  }
  return best;
}

}  // namespace

DeviceCeiling measure_ceiling(const LaunchContext& context, LibraryMatmul& library) {
  DeviceCeiling ceiling;
  if (const auto memory = scratch(kReadBytes + sizeof(unsigned))) {
    fill_random(context, memory.get(), kReadBytes / 2);
    auto* result = reinterpret_cast<unsigned*>(memory.get() + kReadBytes);
    const double seconds = fastest(context, [&] { read_all(context, memory.get(), kReadBytes, result); });
    ceiling.read_gb_per_s = 1e-9 * static_cast<double>(kReadBytes) / seconds;
  }
  constexpr std::size_t kMatrixBytes = 2 * kSide * kSide;
  if (const auto memory = scratch(3 * kMatrixBytes)) {
    fill_random(context, memory.get(), 3 * kSide * kSide);
    const auto matrix = [&](std::size_t index) {
      return Tensor(memory.get() + index * kMatrixBytes, DType::kBF16, {kSide, kSide}, DeviceKind::kCuda);
    };
    const double seconds = fastest(context, [&] {
      if (!library.multiply(context, matrix(0), matrix(1), matrix(2), {}))
        fail("cuBLASLt cannot multiply matrices of {} × {} bfloat16", kSide, kSide);
    });
    ceiling.matrix_gflop_per_s = 2e-9 * static_cast<double>(kSide) * kSide * kSide / seconds;
  }
  return ceiling;
}

}  // namespace quire::cuda
