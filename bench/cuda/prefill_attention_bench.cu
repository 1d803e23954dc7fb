// Times causal prefill attention over the paged cache: 16 query heads, 8 KV heads of 128, bf16, blocks of 16
// scattered over the cache, some 16k tokens a batch; TFLOP/s count 4 * head_dim a (query head, query, key
// that it sees); beside each, over a cache of E4M3 codes. Arguments: none. Layers read different caches and
// queries, so that none is served from L2.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backends/cuda/kernels/prefill_attention.h"
#include "bench/cuda/timing.h"

namespace quire::cuda {
namespace {

constexpr int kLayers = 4;

struct Case {
  const char* name;
  int heads, kv_heads, head_dim, block_size;
  std::vector<int> before, queries;
  float cap = 0;
  CacheCode code = CacheCode::kNone;
};

// In [-2, 2).
__device__ float random_value(std::size_t i) {
  auto bits = static_cast<std::uint32_t>(i * 2654435761U) ^ static_cast<std::uint32_t>(i >> 32);
  bits = (bits ^ (bits >> 15)) * 2246822519U;
  bits ^= bits >> 13;
  return static_cast<float>(bits) * 0x1p-30F - 2.0F;
}

// Random values in device memory.
__global__ void fill_kernel(__nv_bfloat16* values, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    values[i] = __float2bfloat16(random_value(i));
  }
}

// Their codes, and scales: of each `head` bytes the first `codes` and the rest.
__global__ void fill_codes_kernel(std::uint8_t* memory, std::size_t count, std::size_t head,
                                  std::size_t codes) {
  constexpr float kScale = 2.0F / 448;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    memory[i] = i % head < codes ? __nv_cvt_float_to_fp8(random_value(i) / kScale, __NV_SATFINITE, __NV_E4M3)
                                 : __float_as_uint(kScale) >> (i % 4 * 8) & 0xFF;
  }
}

void* allocate(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "memory");
  check(cudaMemset(data, 0, bytes), "memory");
  return data;
}

Tensor random_tensor(std::int64_t rows, std::int64_t cols) {
  auto* data = static_cast<__nv_bfloat16*>(allocate(static_cast<std::size_t>(rows * cols) * 2));
  fill_kernel<<<1024, 256>>>(data, static_cast<std::size_t>(rows * cols));
  return Tensor(data, DType::kBF16, {rows, cols}, DeviceKind::kCuda);
}

Tensor upload(const std::vector<int>& values) {
  void* data = allocate(values.size() * sizeof(int));
  check(cudaMemcpy(data, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice), "upload");
  return Tensor(data, DType::kI32, {static_cast<std::int64_t>(values.size())}, DeviceKind::kCuda);
}

// The batch on the device; block ids in random order.
AttentionBatch make_batch(const Case& c, int& num_blocks) {
  AttentionBatch batch;
  batch.num_sequences = static_cast<int>(c.queries.size());
  std::vector<int> starts = {0}, lengths, rows;
  for (std::size_t s = 0; s < c.queries.size(); ++s) {
    starts.push_back(starts.back() + c.queries[s]);
    lengths.push_back(c.before[s] + c.queries[s]);
    rows.push_back(static_cast<int>(s));
    batch.max_query_len = std::max(batch.max_query_len, c.queries[s]);
    batch.max_seq_len = std::max(batch.max_seq_len, lengths.back());
  }
  batch.num_tokens = starts.back();
  const int columns = (batch.max_seq_len + c.block_size - 1) / c.block_size;
  std::vector<int> table(static_cast<std::size_t>(columns * batch.num_sequences));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  num_blocks = static_cast<int>(table.size());
  batch.query_starts = upload(starts);
  batch.seq_lens = upload(lengths);
  batch.table_rows = upload(rows);
  const Tensor flat = upload(table);
  batch.block_tables = Tensor(flat.data(), DType::kI32, {batch.num_sequences, columns}, DeviceKind::kCuda);
  return batch;
}

double flops(const Case& c) {
  double pairs = 0;
  for (std::size_t s = 0; s < c.queries.size(); ++s) {
    pairs += double(c.queries[s]) * (c.before[s] + 0.5 * (c.queries[s] + 1.0));
  }
  return 4.0 * c.head_dim * c.heads * pairs;
}

// A layer of the cache with random values.
KvCacheLayer make_cache(const Case& c, int num_blocks) {
  const bool has_codes = c.code != CacheCode::kNone;
  const std::int64_t half = (has_codes ? 1 : 2) * std::int64_t{c.block_size} * c.head_dim;
  const std::int64_t head = 2 * (half + (has_codes ? 4 * c.block_size : 0));
  auto* memory = random_tensor(std::int64_t{num_blocks} * c.kv_heads, head / 2).data_as<std::uint8_t>();
  if (has_codes) {
    fill_codes_kernel<<<1024, 256>>>(memory, static_cast<std::size_t>(num_blocks * c.kv_heads * head),
                                     static_cast<std::size_t>(head), static_cast<std::size_t>(2 * half));
  }
  const auto part = [&](std::int64_t at, DType dtype, std::int64_t width) {
    const auto bytes = static_cast<std::int64_t>(size_of(dtype));
    return Tensor(memory + at, dtype, {num_blocks, c.kv_heads, c.block_size, width}, DeviceKind::kCuda)
        .with_strides({c.kv_heads * head / bytes, head / bytes, width, 1});
  };
  const DType stored = has_codes ? DType::kU8 : DType::kBF16;
  KvCacheLayer cache{part(0, stored, c.head_dim), part(half, stored, c.head_dim), c.code};
  if (has_codes) {
    cache.key_scales = part(2 * half, DType::kF32, 1);
    cache.value_scales = part(2 * half + 4 * c.block_size, DType::kF32, 1);
  }
  return cache;
}

std::vector<AttentionCall> make_layers(const Case& c, const AttentionBatch& batch, int num_blocks,
                                       const Tensor& workspace) {
  const std::int64_t width = std::int64_t{c.heads} * c.head_dim;
  std::vector<AttentionCall> layers;
  for (int i = 0; i < kLayers; ++i) {
    AttentionCall call;
    call.q = random_tensor(batch.num_tokens, width + 2 * c.kv_heads * c.head_dim).columns(0, width);
    call.out = random_tensor(batch.num_tokens, width);
    call.cache = make_cache(c, num_blocks);
    call.scores.scale = 0.088F;
    call.scores.cap = c.cap;
    call.workspace = workspace;
    layers.push_back(call);
  }
  return layers;
}

// Microseconds of one layer.
template <typename Layer>
double time_layers(const LaunchContext& context, Layer&& layer) {
  return bench::graph_time_us(context, kLayers, layer);
}

// A case's batch and layers on the device.
struct Setup {
  AttentionBatch batch;
  AttentionShape shape;
  Tensor workspace;
  std::vector<AttentionCall> layers;

  Setup(const Case& c, int num_sms) {
    int num_blocks = 0;
    batch = make_batch(c, num_blocks);
    shape = {c.heads,          c.kv_heads,        c.head_dim, c.block_size, batch.num_sequences,
             batch.num_tokens, batch.max_seq_len, 0,          c.code};
    const auto bytes = prefill_workspace_bytes(shape, num_sms);
    workspace = Tensor(allocate(bytes), DType::kU8, {static_cast<std::int64_t>(bytes)}, DeviceKind::kCuda);
    layers = make_layers(c, batch, num_blocks, workspace);
    check(cudaDeviceSynchronize(), "set-up");
  }
  const AttentionCall& layer(int i) const { return layers[static_cast<std::size_t>(i)]; }
};

// Prints a case, and where `than` is given by how many times it takes longer than that.
// Returns the microseconds of this GPU's own kernel.
double time_prefill(const LaunchContext& context, const Case& c, double than = 0) {
  const Setup s(c, context.num_sms);
  const double plan =
      time_layers(context, [&](int) { plan_prefill(context, s.batch, s.shape, s.workspace); });
  const double own =
      time_layers(context, [&](int i) { prefill_attention(context, s.layer(i), s.batch, s.shape); });
  const double mma = time_layers(context, [&](int i) {
    prefill_attention_mma(context, prefill_params(s.layer(i), s.batch, s.shape), s.batch, s.shape,
                          DType::kBF16);
  });
  const double work = flops(c) * 1e-6;  // TFLOP/s of one microsecond
  std::printf("%-34s plan %5.1f us   attention %8.1f us %5.0f TFLOP/s   mma %8.1f us %5.0f TFLOP/s", c.name,
              plan, own, work / own, mma, work / mma);
  than > 0 ? std::printf("   %5.3f of 16 bits\n", own / than) : std::printf("\n");
  return own;
}

// In a fixed order: by this GPU's own kernel, and on the plain cores.
void time_fixed_order(const LaunchContext& context, Case c) {
  for (const CacheCode code : {CacheCode::kNone, CacheCode::kE4m3}) {
    c.code = code;
    const Setup s(c, context.num_sms);
    constexpr auto kAll = PrefillOf::kAllInFixedOrder;
    const double plan =
        time_layers(context, [&](int) { plan_prefill(context, s.batch, s.shape, s.workspace, kAll); });
    const double own =
        time_layers(context, [&](int i) { prefill_attention(context, s.layer(i), s.batch, s.shape, kAll); });
    const double plain =
        time_layers(context, [&](int i) { fixed_order_attention(context, s.layer(i), s.batch, s.shape); });
    std::printf("%-34s in a fixed order: plan %5.1f us   attention %8.1f us, on the plain cores %8.1f us\n",
                code == CacheCode::kNone ? c.name : "  of codes", plan, own, plain);
  }
}

}  // namespace
}  // namespace quire::cuda

int main() {
  using quire::cuda::Case;
  const quire::cuda::LaunchContext context = quire::cuda::bench::make_context();
  const std::vector<int> none(16, 0);
  std::vector<int> ragged;
  for (int i = 0; i < 28; ++i) ragged.push_back(100 + (i * 397) % 925);
  const std::vector<Case> cases = {
      {"16 x 1k", 16, 8, 128, 16, none, std::vector<int>(16, 1024)},
      {"4 x 4k", 16, 8, 128, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096)},
      {"1 x 16k", 16, 8, 128, 16, {0}, {16384}},
      {"1 x 1k", 16, 8, 128, 16, {0}, {1024}},
      {"28 x 100 to 1,024", 16, 8, 128, 16, std::vector<int>(28, 0), ragged},
      {"64 x 128 after 1k", 16, 8, 128, 16, std::vector<int>(64, 1024), std::vector<int>(64, 128)},
      {"1 x 2k after 16k", 16, 8, 128, 16, {16384}, {2048}},
      {"1 x 64 after 30k", 16, 8, 128, 16, {30000}, {64}},
      {"1 x 8 after 30k, heads of 256", 16, 4, 256, 16, {30000}, {8}},
      {"1 x 256 after 30k, heads of 256", 16, 4, 256, 16, {30000}, {256}},
      {"1 x 1k after 30k, heads of 256", 16, 4, 256, 16, {30000}, {1024}},
      {"16 x 1k, blocks of 128", 16, 8, 128, 128, none, std::vector<int>(16, 1024)},
      {"1 x 16k, blocks of 128", 16, 8, 128, 128, {0}, {16384}},
      {"4 x 4k, blocks of 128", 16, 8, 128, 128, std::vector<int>(4, 0), std::vector<int>(4, 4096)},
      {"4 x 4k, 32 / 8 heads", 32, 8, 128, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096)},
      {"4 x 4k, heads of 64", 32, 8, 64, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096)},
      {"4 x 4k, heads of 96", 16, 8, 96, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096)},
      {"4 x 4k, heads of 256", 8, 4, 256, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096)},
      {"  with a cap of 50", 8, 4, 256, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096), 50},
      {"  with a cap of 3", 8, 4, 256, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096), 3},
      {"4 x 4k, with a cap of 50", 16, 8, 128, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096), 50},
      {"  with a cap of 3", 16, 8, 128, 16, std::vector<int>(4, 0), std::vector<int>(4, 4096), 3},
  };
  for (const Case& c : cases) {
    const double own = quire::cuda::time_prefill(context, c);
    Case of_codes = c;
    of_codes.name = "  of codes";
    of_codes.code = quire::CacheCode::kE4m3;
    quire::cuda::time_prefill(context, of_codes, own);
  }
  quire::cuda::time_fixed_order(context, cases[0]);
  std::vector<int> spread;
  for (int i = 0; i < 256; ++i) spread.push_back(100 + (i * 397) % 1949);
  const auto ones = [](std::size_t count) { return std::vector<int>(count, 1); };
  for (const Case& c :
       {Case{"256 x 1 after 1k", 16, 8, 128, 16, std::vector<int>(256, 1024), ones(256)},
        Case{"256 x 1 after 100 to 2,048", 16, 8, 128, 16, spread, ones(256)},
        Case{"32 x 1 after 4k, 32 / 8 heads", 32, 8, 128, 16, std::vector<int>(32, 4096), ones(32)},
        Case{"1 x 1 after 512, 32 / 8 heads", 32, 8, 128, 16, {512}, ones(1)},
        Case{"1 x 1 after 32k, 32 / 8 heads", 32, 8, 128, 16, {32768}, ones(1)}}) {
    quire::cuda::time_fixed_order(context, c);
  }
  return 0;
}
