// Microseconds of what is done to logits beside sampling, in a CUDA graph, for rows of Qwen3's vocabulary:
// penalties with some hundred different tokens in prompt and output, and log-probabilities.
#include <cstdio>
#include <random>

#include "backends/cuda/kernels/sampling.h"
#include "bench/cuda/timing.h"

namespace quire::cuda::bench {
namespace {

constexpr std::int64_t kVocab = 151936;
constexpr int kStates = 800;  // tokens of a row that have one

Tensor vector_of(const Tensor& matrix) {
  return Tensor(matrix.data(), matrix.dtype(), {matrix.numel()}, DeviceKind::kCuda);
}

template <typename T>
Tensor filled(DType dtype, int n, T value) {
  return vector_of(device_tensor<T>(dtype, 1, n, [&](std::size_t) { return value; }));
}

LogitsAdjustment make_adjustment(int rows) {
  const auto index = [](std::size_t i) { return static_cast<std::int32_t>(i); };
  const Tensor indices = vector_of(device_tensor<std::int32_t>(DType::kI32, 1, rows, index));
  return {.num_rows = rows,
          .rows = indices,
          .seats = indices,
          .state_uses = filled(DType::kI32, rows, static_cast<std::int32_t>(StateUse::kCountLastAndRead)),
          .repetition = filled(DType::kF32, rows, 1.1F),
          .frequency = filled(DType::kF32, rows, 0.0F),
          .presence = filled(DType::kF32, rows, 0.5F),
          .bias_starts = filled(DType::kI32, rows + 1, 0),
          .bias_ids = filled(DType::kI32, 1, 0),
          .bias_values = filled(DType::kF32, 1, 0.0F),
          .mask_starts = filled(DType::kI32, rows + 1, 0),
          .masks = device_tensor<std::int32_t>(DType::kI32, 1, 2, [](std::size_t) { return 0; }),
          .token_states = device_tensor<std::uint16_t>(DType::kI16, rows, kVocab, [](std::size_t i) {
            return static_cast<std::uint16_t>(i * 40503 % (kVocab / kStates) == 0 ? 1 : 0);
          })};
}

void print(const char* what, int rows, double us, double bytes) {
  std::printf("%-14s %4d rows %8.2f us  %6.0f GB/s\n", what, rows, us, bytes / us * 1e-3);
}

void run(const LaunchContext& context, const Tensor& logits, int rows) {
  const int places = static_cast<int>(logits.dim(0)) / rows;
  const int calls = rows > 64 ? 8 : 64;
  const auto part = [&](int i) { return logits.rows(i % places * rows, rows); };
  const LogitsAdjustment adjustment = make_adjustment(rows);
  const Tensor last = filled(DType::kI32, rows, 5);
  print("adjust_logits", rows,
        graph_time_us(context, calls, [&](int i) { adjust_logits(context, part(i), last, adjustment); }),
        2.0 * static_cast<double>(rows * kVocab));
  for (const int num_top : {0, 5, 20}) {
    const Tensor memory = filled<std::int32_t>(
        DType::kI32, static_cast<int>(LogprobRows::bytes(rows, num_top) / sizeof(std::int32_t)), 0);
    const LogprobRows out = LogprobRows::at(memory.data(), rows, num_top, DeviceKind::kCuda);
    const LogprobBatch batch{.num_rows = rows, .num_top = num_top, .rows = {}, .tokens = last};
    const double us = graph_time_us(context, calls, [&](int i) { log_probs(context, out, part(i), batch); });
    print(("log_probs " + std::to_string(num_top)).c_str(), rows, us,
          4.0 * static_cast<double>(rows * kVocab));
  }
}

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using namespace quire::cuda::bench;
  const quire::cuda::LaunchContext context = make_context();
  std::mt19937 random(1);
  std::vector<float> noise(1 << 20);
  std::normal_distribution<float> normal(0, 2);
  for (float& x : noise) x = normal(random);
  const quire::Tensor logits = device_tensor<float>(
      quire::DType::kF32, 512, kVocab, [&](std::size_t i) { return noise[i * 7919 % noise.size()]; });
  for (const int rows : {256, 32, 1}) run(context, logits, rows);
}
