// Times paged decode attention on shapes of published models (of 16384 by 4096: with a window of 4096),
// beside the card's read bandwidth taken in the same run, in 16 bits and in codes of 8. Blocks are scattered
// over the cache; layers read different caches, so that none is served from L2.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/probe.h"
#include "bench/cuda/timing.h"

namespace quire::cuda {
namespace {

constexpr int kLayers = 28;

struct Case {
  const char* name;
  int heads, kv_heads, head_dim, block_size;
  std::vector<int> lengths;
  int window = 0;
  float cap = 0;

  int blocks_of(int length) const { return (length + block_size - 1) / block_size; }
};

// Device memory, freed at the end of its scope.
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

Tensor on_device(const std::vector<int>& values) {
  const Tensor matrix =
      bench::device_tensor<int>(DType::kI32, 1, std::ssize(values), [&](std::size_t i) { return values[i]; });
  return Tensor(matrix.data(), DType::kI32, {std::ssize(values)}, DeviceKind::kCuda);
}

// Every sequence's blocks, drawn at random from [0, num_blocks).
AttentionBatch make_batch(const Case& c, int num_blocks) {
  const auto count = static_cast<int>(c.lengths.size());
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const int max_blocks = c.blocks_of(longest);
  std::vector<int> ids(static_cast<std::size_t>(num_blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(5);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<int> tables(static_cast<std::size_t>(count * max_blocks));
  for (int s = 0; s < count; ++s) {
    for (int i = 0; i < c.blocks_of(c.lengths[static_cast<std::size_t>(s)]); ++i) {
      tables[static_cast<std::size_t>(s * max_blocks + i)] = ids.back();
      ids.pop_back();
    }
  }
  std::vector<int> rows(static_cast<std::size_t>(count + 1));
  std::iota(rows.begin(), rows.end(), 0);
  AttentionBatch batch;
  batch.num_sequences = batch.num_tokens = count;
  batch.max_query_len = 1;
  batch.max_seq_len = longest;
  batch.query_starts = batch.table_rows = on_device(rows);
  batch.seq_lens = on_device(c.lengths);
  batch.block_tables = Tensor(on_device(tables).data(), DType::kI32, {count, max_blocks}, DeviceKind::kCuda);
  return batch;
}

void run(const LaunchContext& context, const Case& c, CacheCode code, double read_rate) {
  int num_blocks = 0;
  for (const int length : c.lengths) num_blocks += c.blocks_of(length);
  const AttentionBatch batch = make_batch(c, num_blocks);
  const AttentionShape shape{c.heads,          c.kv_heads,        c.head_dim, c.block_size, batch.num_tokens,
                             batch.num_tokens, batch.max_seq_len, c.window,   code};
  const bool coded = code != CacheCode::kNone;
  const std::int64_t half = std::int64_t{c.block_size} * c.head_dim * (coded ? 1 : 2);  // bytes, as all here
  const std::int64_t scales = coded ? c.block_size * std::int64_t{sizeof(float)} : 0;
  const std::int64_t head_size = 2 * (half + scales), layer_size = num_blocks * c.kv_heads * head_size;
  const std::int64_t caches = std::clamp<std::int64_t>((512 << 20) / layer_size, 2, kLayers);
  const std::int64_t width = std::int64_t{c.heads} * c.head_dim;
  const Memory cache(static_cast<std::size_t>(layer_size * caches));
  const Memory q(static_cast<std::size_t>(batch.num_tokens * width) * 2);
  const Memory out(static_cast<std::size_t>(batch.num_tokens * width) * 2);
  fill_random(context, cache.data(), layer_size * caches / 2);
  fill_random(context, q.data(), batch.num_tokens * width);
  const std::size_t workspace_bytes = decode_workspace_bytes(shape, context.num_sms);
  const Memory workspace(workspace_bytes);

  AttentionCall call;
  call.out = Tensor(out.data(), DType::kBF16, {batch.num_tokens, width}, DeviceKind::kCuda);
  call.q = Tensor(q.data(), DType::kBF16, {batch.num_tokens, width}, DeviceKind::kCuda);
  call.scores.cap = c.cap;
  call.scores.window = c.window;
  call.workspace =
      Tensor(workspace.data(), DType::kU8, {static_cast<std::int64_t>(workspace_bytes)}, DeviceKind::kCuda);
  const double plan_us = bench::graph_time_us(
      context, kLayers, [&](int) { plan_decode(context, batch, shape, call.workspace); });
  const double us = bench::graph_time_us(context, kLayers, [&](int layer) {
    const auto at = [&](std::int64_t offset, DType type, std::int64_t columns) {
      auto* data = static_cast<std::byte*>(cache.data()) + layer % caches * layer_size + offset;
      const auto stride = head_size / static_cast<std::int64_t>(size_of(type));
      return Tensor(data, type, {num_blocks, c.kv_heads, c.block_size, columns}, DeviceKind::kCuda)
          .with_strides({c.kv_heads * stride, stride, columns, 1});
    };
    const DType dtype = coded ? DType::kU8 : DType::kBF16;
    call.cache = {at(0, dtype, c.head_dim), at(half, dtype, c.head_dim), code};
    if (coded) {
      call.cache.key_scales = at(2 * half, DType::kF32, 1);
      call.cache.value_scales = at(2 * half + scales, DType::kF32, 1);
    }
    decode_attention(context, call, batch, shape);
  });
  std::int64_t tokens = 0;  // that must be read
  for (const int length : c.lengths) tokens += c.window == 0 ? length : std::min(length, c.window);
  const std::int64_t token_size = head_size / c.block_size;
  const double rate = static_cast<double>(tokens * c.kv_heads * token_size) / us / 1e3;  // GB/s
  std::printf("%-32s %s %7.1f us %6.0f GB/s %5.1f %%   plan %.1f us\n", c.name, coded ? " 8" : "16", us, rate,
              100 * rate / read_rate, plan_us);
}

std::vector<int> ragged(int count, int shortest, int longest) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> length(shortest, longest);
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(length(random));
  return lengths;
}

// GB/s of a read of 4 GiB.
double measure_reading(const LaunchContext& context) {
  constexpr std::size_t kBytes = std::size_t{4} << 30;
  const Memory memory(kBytes + sizeof(unsigned));
  fill_random(context, memory.data(), kBytes / 2);
  auto* result = reinterpret_cast<unsigned*>(static_cast<std::byte*>(memory.data()) + kBytes);
  const double us =
      bench::graph_time_us(context, 1, [&](int) { read_all(context, memory.data(), kBytes, result); });
  return static_cast<double>(kBytes) / us / 1e3;
}

int run_all() {
  const LaunchContext context = bench::make_context();
  const double read_rate = measure_reading(context);
  std::printf("Decode attention; heads / KV heads x head size, blocks of 16\n");
  std::printf("%-32s %13s %6.0f GB/s\n", "a read of 4 GiB", "", read_rate);
  const Case cases[] = {
      {"16/8 x 128, 256 of 100-2048", 16, 8, 128, 16, ragged(256, 100, 2048)},
      {"16/8 x 128, 256 of 100-1024", 16, 8, 128, 16, ragged(256, 100, 1024)},
      {"  in blocks of 256", 16, 8, 128, 256, ragged(256, 100, 1024)},
      {"16/8 x 128, 77 of 700-1900", 16, 8, 128, 16, ragged(77, 700, 1900)},
      {"16/8 x 128, 37 of 900-2048", 16, 8, 128, 16, ragged(37, 900, 2048)},
      {"16/8 x 128, 1 of 512", 16, 8, 128, 16, {512}},
      {"16/8 x 128, 1 of 1870", 16, 8, 128, 16, {1870}},
      {"32/8 x 128, 1 of 128", 32, 8, 128, 16, {128}},
      {"32/8 x 128, 1 of 1024", 32, 8, 128, 16, {1024}},
      {"32/8 x 128, 1 of 4096", 32, 8, 128, 16, {4096}},
      {"32/8 x 128, 1 of 32768", 32, 8, 128, 16, {32768}},
      {"32/8 x 128, 8 of 1024", 32, 8, 128, 16, std::vector<int>(8, 1024)},
      {"32/8 x 128, 32 of 4096", 32, 8, 128, 16, std::vector<int>(32, 4096)},
      {"32/8 x 128, 32 of 16384 by 4096", 32, 8, 128, 16, std::vector<int>(32, 16384), 4096},
      {"32/8 x 128, 1 of 32768 by 4096", 32, 8, 128, 16, {32768}, 4096},
      {"16/16 x 128, 64 of 100-2048", 16, 16, 128, 16, ragged(64, 100, 2048)},
      {"64/8 x 128, 64 of 100-2048", 64, 8, 128, 16, ragged(64, 100, 2048)},
      {"64/4 x 128, 64 of 100-2048", 64, 4, 128, 16, ragged(64, 100, 2048)},
      {"32/8 x 64, 256 of 100-2048", 32, 8, 64, 16, ragged(256, 100, 2048)},
      {"32/8 x 96, 128 of 100-2048", 32, 8, 96, 16, ragged(128, 100, 2048)},
      {"16/8 x 256, 64 of 100-2048", 16, 8, 256, 16, ragged(64, 100, 2048)},
      {"  with a cap", 16, 8, 256, 16, ragged(64, 100, 2048), 0, 50},
      {"32/16 x 128, 64 of 100-2048", 32, 16, 128, 16, ragged(64, 100, 2048)},
      {"  with a cap", 32, 16, 128, 16, ragged(64, 100, 2048), 0, 50},
  };
  for (const Case& c : cases) {
    for (const CacheCode code : {CacheCode::kNone, CacheCode::kE4m3}) run(context, c, code, read_rate);
  }
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
