#include "backends/cuda/linear_weights.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace quire::cuda {
namespace {

// Large enough to hide what a copy and a round of the threads cost, small enough to be pinned in a moment.
constexpr std::size_t kStagingBytes = std::size_t{16} << 20;
// One core copies some 10 GB/s out of the page cache, the link to the device takes some 50.
constexpr unsigned kMaxThreads = 8;

}  // namespace

WeightLoader::WeightLoader(cudaStream_t stream)
    : stream_(stream),
      pool_(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads))) {
  for (Staging& staging : staging_) {
    void* data = nullptr;
    check(cudaMallocHost(&data, kStagingBytes), "pinned memory to load weights through");
    staging = {{data, cudaFreeHost}, make_event(cudaEventDisableTiming)};
  }
}

WeightLoader::~WeightLoader() {
  for (const Staging& staging : staging_) cudaEventSynchronize(staging.copied.get());
}

void WeightLoader::load(const WeightTensor& rows, const Tensor& weight) {
  const std::size_t row_bytes = static_cast<std::size_t>(weight.dim(1)) * size_of(weight.dtype());
  if (row_bytes > kStagingBytes) fail("{}: rows of {} bytes are too long", rows.name(), row_bytes);
  const auto step = static_cast<std::int64_t>(kStagingBytes / std::max<std::size_t>(row_bytes, 1));
  for (std::int64_t row = 0; row < weight.dim(0); row += step) {
    const std::int64_t count = std::min(step, weight.dim(0) - row);
    Staging& staging = staging_[next_];
    next_ = (next_ + 1) % staging_.size();
    check(cudaEventSynchronize(staging.copied.get()), "a copy of weights");
    const Tensor host(staging.data.get(), weight.dtype(), {count, weight.dim(1)});
    pool_.run_ranges(count, [&](std::int64_t begin, std::int64_t end) {
      rows.read_rows(row + begin, host.rows(begin, end - begin));
    });
    check(cudaMemcpyAsync(weight.rows(row, count).data(), host.data(), host.bytes(), cudaMemcpyHostToDevice,
                          stream_),
          "a copy of weights");
    check(cudaEventRecord(staging.copied.get(), stream_), "an event");
  }
}

}  // namespace quire::cuda
