// Microseconds of the element-wise kernels in a CUDA graph, and the bytes they move a second, for the shapes
// of Qwen3-0.6B and Qwen3-8B in bf16.
#include <cstdio>
#include <random>

#include "backends/cuda/kernels/elementwise.h"
#include "bench/cuda/timing.h"
#include "ops/ops.h"

namespace quire::cuda::bench {
namespace {

struct Shape {
  const char* name;
  int hidden, heads, kv_heads, head_dim, intermediate;
};

Tensor bf16(std::int64_t rows, std::int64_t cols) {
  return device_tensor<std::uint16_t>(DType::kBF16, rows, cols, [](std::size_t i) {
    return static_cast<std::uint16_t>(0x3E00 + i * 2654435761U % 0x300 + (i % 3 == 0 ? 0x8000 : 0));
  });
}
Tensor f32(std::int64_t rows, std::int64_t cols) {
  return device_tensor<float>(DType::kF32, rows, cols, [](std::size_t i) {
    return static_cast<float>(i * 2654435761U % 1000) * 1e-3F;
  });
}

void print(const Shape& shape, int tokens, const char* op, double us, double bytes) {
  std::printf("%-10s %6d tokens  %-20s %8.2f us  %7.0f GB/s\n", shape.name, tokens, op, us,
              bytes / us * 1e-3);
}

void run(const LaunchContext& context, const Shape& shape, int tokens) {
  const std::int64_t n = tokens;
  const int calls = tokens > 2000 ? 8 : 40;
  const Tensor residual = f32(n, shape.hidden), x = bf16(n, shape.hidden), out = bf16(n, shape.hidden);
  const Tensor weight(f32(1, shape.hidden).data(), DType::kF32, {shape.hidden}, DeviceKind::kCuda);
  const NormParams rms{weight, {}, 1e-6F}, layer{weight, weight, 1e-6F};
  print(shape, tokens, "add_norm",
        graph_time_us(context, calls, [&](int) { add_norm(context, out, residual, x, 1.0F, rms); }),
        12.0 * static_cast<double>(n) * shape.hidden);
  print(shape, tokens, "add_norm, LayerNorm",
        graph_time_us(context, calls, [&](int) { add_norm(context, out, residual, x, 1.0F, layer); }),
        12.0 * static_cast<double>(n) * shape.hidden);

  const Tensor gate_up = bf16(n, 2 * shape.intermediate), gated = bf16(n, shape.intermediate);
  for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
    print(shape, tokens, activation == Activation::kSilu ? "activate_gate, SiLU" : "activate_gate, GELU",
          graph_time_us(context, calls, [&](int) { activate_gate(context, gated, gate_up, activation); }),
          6.0 * static_cast<double>(n) * shape.intermediate);
  }

  constexpr std::int64_t kBlock = 16;
  const int width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  const std::int64_t half = kBlock * shape.head_dim;
  const Tensor memory = bf16(blocks * shape.kv_heads * 2 * kBlock, shape.head_dim);
  const auto half_at = [&](std::int64_t offset) {
    return Tensor(memory.data_as<std::uint16_t>() + offset, DType::kBF16,
                  {blocks, shape.kv_heads, kBlock, shape.head_dim}, DeviceKind::kCuda)
        .with_strides({shape.kv_heads * 2 * half, 2 * half, shape.head_dim, 1});
  };
  const Tensor norm(f32(1, shape.head_dim).data(), DType::kF32, {shape.head_dim}, DeviceKind::kCuda);
  AttentionInput input;
  input.qkv = bf16(n, width);
  input.q_norm = input.k_norm = norm;
  input.norm_eps = 1e-6F;
  input.cos_sin = f32(4096, shape.head_dim);
  input.num_heads = shape.heads;
  input.num_kv_heads = shape.kv_heads;
  input.head_dim = shape.head_dim;
  AttentionBatch batch;
  batch.num_tokens = tokens;
  const auto index = [](std::size_t i) { return static_cast<std::int32_t>(i); };
  const auto position = [](std::size_t i) { return static_cast<std::int32_t>(i * 7 % 4096); };
  batch.slot_mapping = Tensor(device_tensor<std::int32_t>(DType::kI32, 1, n, index).data(), DType::kI32, {n},
                              DeviceKind::kCuda);
  batch.positions = Tensor(device_tensor<std::int32_t>(DType::kI32, 1, n, position).data(), DType::kI32, {n},
                           DeviceKind::kCuda);
  const KvCacheLayer cache{half_at(0), half_at(half)};
  print(shape, tokens, "prepare_attention",
        graph_time_us(context, calls, [&](int) { rotate_and_store(context, input, cache, batch); }),
        4.0 * static_cast<double>(n) * width);
}

// Of logits of a vocabulary of 256,000.
void run_cap(const LaunchContext& context, int rows) {
  const Tensor logits = f32(rows, 256000);
  const double us = graph_time_us(context, 8, [&](int) { cap(context, logits, 30.0F); });
  std::printf("%d x 256000 logits, cap %8.2f us  %7.0f GB/s\n", rows, us, 8.0 * rows * 256000 / us * 1e-3);
}

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using namespace quire::cuda::bench;
  const quire::cuda::LaunchContext context = make_context();
  for (const Shape shape :
       {Shape{"qwen3-0.6b", 1024, 16, 8, 128, 3072}, Shape{"qwen3-8b", 4096, 32, 8, 128, 12288}}) {
    for (const int tokens : {1, 256, 16384}) run(context, shape, tokens);
  }
  for (const int rows : {1, 16, 256}) run_cap(context, rows);
}
