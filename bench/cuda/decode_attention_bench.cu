// Times paged decode attention on shapes of published models, beside the card's read bandwidth taken in the
// same run. Blocks are scattered over the cache; layers read different caches, so that none is served from
// L2.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backends/cuda/kernels/attention.h"
#include "cuda/timing.h"

namespace quire::cuda {
namespace {

// Device memory, freed at the end of the program's scope.
class Memory {
 public:
  explicit Memory(std::size_t bytes) {
    check(cudaMalloc(&data_, bytes), "memory");
    check(cudaMemset(data_, 0, bytes), "memory");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class DeviceInts {
 public:
  explicit DeviceInts(const std::vector<int>& values)
      : count_(std::ssize(values)), memory_(values.size() * sizeof(int)) {
    check(cudaMemcpy(memory_.data(), values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice),
          "copy");
  }
  Tensor tensor() const { return Tensor(memory_.data(), DType::kI32, {count_}, DeviceKind::kCuda); }

 private:
  std::int64_t count_;
  Memory memory_;
};

__global__ void fill_random(__nv_bfloat16* values, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    auto bits = static_cast<std::uint32_t>(i * 2654435761U) ^ static_cast<std::uint32_t>(i >> 32);
    bits = (bits ^ (bits >> 15)) * 2246822519U;
    bits ^= bits >> 13;
    values[i] = __float2bfloat16(static_cast<float>(bits) * 0x1p-30F - 2.0F);
  }
}

// Reads everything once, each block of threads 32 KiB at a time.
__global__ void read_all(const uint4* words, std::size_t count, std::uint32_t* sum) {
  constexpr int kUnroll = 8;
  std::uint32_t mix = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * kUnroll * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * kUnroll * blockDim.x) {
    uint4 values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) values[u] = __ldcs(words + i + u * blockDim.x);
#pragma unroll
    for (const uint4& value : values) mix += value.x ^ value.y ^ value.z ^ value.w;
  }
  if (mix == 0x12345678U) *sum = mix;
}

struct Case {
  const char* name;
  int heads, kv_heads, head_dim, block_size;
  std::vector<int> lengths;
};

void run(const LaunchContext& context, const Case& c, double read_rate) {
  constexpr int kLayers = 28;
  const auto batch_size = static_cast<int>(c.lengths.size());
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const int max_blocks = (longest + c.block_size - 1) / c.block_size;
  int blocks = 0;
  std::vector<int> tables(c.lengths.size() * static_cast<std::size_t>(max_blocks));
  for (const int length : c.lengths) blocks += (length + c.block_size - 1) / c.block_size;
  std::vector<int> ids(static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(5);
  std::shuffle(ids.begin(), ids.end(), random);
  std::int64_t tokens = 0;
  for (std::size_t s = 0; s < c.lengths.size(); ++s) {
    tokens += c.lengths[s];
    for (int i = 0; i * c.block_size < c.lengths[s]; ++i) {
      tables[s * static_cast<std::size_t>(max_blocks) + static_cast<std::size_t>(i)] = ids.back();
      ids.pop_back();
    }
  }
  std::vector<int> rows(c.lengths.size() + 1);
  std::iota(rows.begin(), rows.end(), 0);

  const std::int64_t half = std::int64_t{c.block_size} * c.head_dim;
  const std::size_t layer_bytes = static_cast<std::size_t>(blocks * c.kv_heads * 2 * half) * 2;
  const int caches = static_cast<int>(std::clamp<std::size_t>((512U << 20) / layer_bytes, 2, kLayers));
  const Memory cache(layer_bytes * static_cast<std::size_t>(caches));
  const Memory q(static_cast<std::size_t>(batch_size * c.heads * c.head_dim) * 2);
  const Memory out(static_cast<std::size_t>(batch_size * c.heads * c.head_dim) * 2);
  fill_random<<<1024, 256>>>(static_cast<__nv_bfloat16*>(cache.data()),
                             layer_bytes * static_cast<std::size_t>(caches) / 2);
  fill_random<<<64, 256>>>(static_cast<__nv_bfloat16*>(q.data()),
                           static_cast<std::size_t>(batch_size * c.heads * c.head_dim));
  check(cudaDeviceSynchronize(), "random values");

  const DeviceInts starts(rows), lengths(c.lengths), device_tables(tables);
  const AttentionShape shape{c.heads, c.kv_heads, c.head_dim, c.block_size, batch_size, batch_size, longest};
  const std::size_t workspace_bytes = decode_workspace_bytes(shape, context.num_sms);
  const Memory workspace(workspace_bytes);
  AttentionBatch batch;
  batch.num_sequences = batch.num_tokens = batch_size;
  batch.max_query_len = 1;
  batch.max_seq_len = longest;
  batch.query_starts = starts.tensor();
  batch.seq_lens = lengths.tensor();
  batch.table_rows = starts.tensor();
  batch.block_tables =
      Tensor(device_tables.tensor().data(), DType::kI32, {batch_size, max_blocks}, DeviceKind::kCuda);
  const Tensor space(workspace.data(), DType::kU8, {static_cast<std::int64_t>(workspace_bytes)},
                     DeviceKind::kCuda);
  const auto attend = [&](int layer) {
    auto* base =
        static_cast<std::byte*>(cache.data()) + static_cast<std::size_t>(layer % caches) * layer_bytes;
    const auto at = [&](std::int64_t offset) {
      return Tensor(base + offset * 2, DType::kBF16, {blocks, c.kv_heads, c.block_size, c.head_dim},
                    DeviceKind::kCuda)
          .with_strides({c.kv_heads * 2 * half, 2 * half, c.head_dim, 1});
    };
    AttentionCall call;
    call.out = Tensor(out.data(), DType::kBF16, {batch_size, c.heads * c.head_dim}, DeviceKind::kCuda);
    call.q = Tensor(q.data(), DType::kBF16, {batch_size, c.heads * c.head_dim}, DeviceKind::kCuda);
    call.cache = {at(0), at(half)};
    call.scale = 0.09F;
    call.workspace = space;
    decode_attention(context, call, batch, shape);
  };
  const double plan =
      bench::graph_time_us(context, kLayers, [&](int) { plan_decode(context, batch, shape, space); });
  const double us = bench::graph_time_us(context, kLayers, attend);
  const double bytes = static_cast<double>(tokens) * c.kv_heads * c.head_dim * 4;
  std::printf("%-34s %8.1f us %8.0f GB/s %5.1f %%   plan %.1f us\n", c.name, us, bytes / us / 1e3,
              bytes / us / 1e3 / read_rate * 100, plan);
}

std::vector<int> ragged(int count, int shortest, int longest) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> length(shortest, longest);
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(length(random));
  return lengths;
}

int run_all() {
  const LaunchContext context = bench::make_context();
  constexpr std::size_t kProbeBytes = std::size_t{4} << 30;
  double read_rate = 0;
  {
    const Memory probe(kProbeBytes);
    fill_random<<<1024, 256>>>(static_cast<__nv_bfloat16*>(probe.data()), kProbeBytes / 2);
    for (const unsigned blocks : {4096U, 1U << 17}) {  // a few waves, or one pass each
      const double us = bench::graph_time_us(context, 1, [&](int) {
        read_all<<<blocks, 256, 0, context.stream>>>(static_cast<const uint4*>(probe.data()),
                                                     kProbeBytes / 16,
                                                     static_cast<std::uint32_t*>(probe.data()));
      });
      read_rate = std::max(read_rate, kProbeBytes / us / 1e3);
      std::printf("read probe, 4 GiB, %6u blocks       %8.1f us %8.0f GB/s\n", blocks, us,
                  kProbeBytes / us / 1e3);
    }
  }
  const Case cases[] = {
      {"Qwen3-0.6B, 256 of 100-2048", 16, 8, 128, 16, ragged(256, 100, 2048)},
      {"Qwen3-0.6B, 256 of 100-1024", 16, 8, 128, 16, ragged(256, 100, 1024)},
      {"Qwen3-0.6B, 256 of 100-1024, b 256", 16, 8, 128, 256, ragged(256, 100, 1024)},
      {"Qwen3-0.6B, 77 of 700-1900", 16, 8, 128, 16, ragged(77, 700, 1900)},
      {"Qwen3-0.6B, 37 of 900-2048", 16, 8, 128, 16, ragged(37, 900, 2048)},
      {"Qwen3-0.6B, 1 of 512", 16, 8, 128, 16, {512}},
      {"Qwen3-0.6B, 1 of 1870", 16, 8, 128, 16, {1870}},
      {"Qwen3-8B, 1 of 128", 32, 8, 128, 16, {128}},
      {"Qwen3-8B, 1 of 1024", 32, 8, 128, 16, {1024}},
      {"Qwen3-8B, 1 of 4096", 32, 8, 128, 16, {4096}},
      {"Qwen3-8B, 1 of 32768", 32, 8, 128, 16, {32768}},
      {"Qwen3-8B, 8 of 1024", 32, 8, 128, 16, std::vector<int>(8, 1024)},
      {"Qwen3-8B, 32 of 4096", 32, 8, 128, 16, std::vector<int>(32, 4096)},
      {"MHA 16 of 128, 64 of 100-2048", 16, 16, 128, 16, ragged(64, 100, 2048)},
      {"64/8 of 128, 64 of 100-2048", 64, 8, 128, 16, ragged(64, 100, 2048)},
      {"64/4 of 128, 64 of 100-2048", 64, 4, 128, 16, ragged(64, 100, 2048)},
      {"32/8 of 64, 256 of 100-2048", 32, 8, 64, 16, ragged(256, 100, 2048)},
      {"32/8 of 96, 128 of 100-2048", 32, 8, 96, 16, ragged(128, 100, 2048)},
      {"16/8 of 256, 64 of 100-2048", 16, 8, 256, 16, ragged(64, 100, 2048)},
  };
  for (const Case& c : cases) run(context, c, read_rate);
  return 0;
}

}  // namespace
}  // namespace quire::cuda

int main() {
  try {
    return quire::cuda::run_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
