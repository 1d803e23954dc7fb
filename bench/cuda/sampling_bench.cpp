// Microseconds of sampling in a CUDA graph, and the bytes of logits read a second, for rows of Qwen3's
// vocabulary: greedy, by temperature, and with filters, on logits near the shape of a language model's
// (peaked: a few tokens hold most of the mass) and on plain noise (flat: thousands do).
#include <cmath>
#include <cstdio>
#include <random>

#include "backends/cuda/kernels/sampling.h"
#include "bench/cuda/timing.h"

namespace quire::cuda::bench {
namespace {

constexpr std::int64_t kVocab = 151936;

struct Case {
  const char* name;
  float temperature;
  int top_k;
  float top_p, min_p;
};

Tensor vector_of(const Tensor& matrix) {
  return Tensor(matrix.data(), matrix.dtype(), {matrix.numel()}, DeviceKind::kCuda);
}

template <typename T>
Tensor filled(DType dtype, int n, T value) {
  return vector_of(device_tensor<T>(dtype, 1, n, [&](std::size_t) { return value; }));
}

SamplingBatch make_batch(const Case& c, int rows) {
  const auto index = [](std::size_t i) { return static_cast<std::int32_t>(i); };
  const auto seed = [](std::size_t i) { return static_cast<std::int64_t>(i * 0x9E3779B97F4A7C15U); };
  return {.num_rows = rows,
          .temperature = filled(DType::kF32, rows, c.temperature),
          .top_k = filled(DType::kI32, rows, c.top_k),
          .top_p = filled(DType::kF32, rows, c.top_p),
          .min_p = filled(DType::kF32, rows, c.min_p),
          .seeds = vector_of(device_tensor<std::int64_t>(DType::kI64, 1, rows, seed)),
          .positions = filled(DType::kI32, rows, 17),
          .seats = vector_of(device_tensor<std::int32_t>(DType::kI32, 1, rows, index)),
          .workspace = {}};
}

void run(const LaunchContext& context, const char* shape, const Tensor& logits, int rows) {
  const auto all = static_cast<int>(logits.dim(0));
  const Tensor tokens = filled(DType::kI32, rows, 0);
  const Tensor last = filled(DType::kI32, rows, 0);
  const Tensor workspace = filled<std::uint8_t>(
      DType::kU8, static_cast<int>(sampling_workspace_bytes(context, rows, kVocab)) + 1, 0);
  for (const Case& c :
       {Case{"greedy", 0, 0, 1, 0}, Case{"temperature 0.6", 0.6F, 0, 1, 0},
        Case{"min-p 0.05", 0.6F, 0, 1, 0.05F}, Case{"top-k 50", 0.6F, 50, 1, 0},
        Case{"top-p 0.95", 0.6F, 0, 0.95F, 0}, Case{"top-k 20, top-p 0.95", 0.6F, 20, 0.95F, 0}}) {
    SamplingBatch batch = make_batch(c, rows);
    batch.workspace = workspace;
    const int places = all / rows;
    const int calls = rows > 64 ? 8 : 64;
    const double us = graph_time_us(context, calls, [&](int i) {
      sample(context, tokens, last, logits.rows(i % places * rows, rows), batch);
    });
    std::printf("%-7s %4d rows  %-22s %8.2f us  %6.0f GB/s\n", shape, rows, c.name, us,
                4.0 * static_cast<double>(rows * kVocab) / us * 1e-3);
  }
}

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using namespace quire::cuda::bench;
  const quire::cuda::LaunchContext context = make_context();
  std::mt19937 random(1);
  std::vector<float> noise(1 << 20);
  std::normal_distribution<float> normal(0, 1);
  for (float& x : noise) x = normal(random);
  constexpr int kRows = 512;  // two batches: 311 MB
  const auto logits = [&](float scale, float peak) {
    return device_tensor<float>(quire::DType::kF32, kRows, kVocab, [&](std::size_t i) {
      const std::size_t place = i % kVocab * 40503 % 65536;  // some tokens stand out, the first ones most
      return noise[i * 7919 % noise.size()] * scale +
             (place < 40 ? peak - 0.2F * static_cast<float>(place) : 0);
    });
  };
  for (const bool peaked : {true, false}) {
    const quire::Tensor matrix = peaked ? logits(2.0F, 16.0F) : logits(1.0F, 0.0F);
    for (const int rows : {256, 32, 1}) run(context, peaked ? "peaked" : "flat", matrix, rows);
  }
}
