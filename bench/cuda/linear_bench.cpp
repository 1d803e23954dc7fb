// Times matrix products on shapes of published models, in bf16, beside the card's ceilings taken in the same
// run. Every product of a graph has a weight of its own, so that none is served from L2.
#include <algorithm>
#include <array>
#include <cstdio>

#include "backends/cuda/ceiling.h"
#include "backends/cuda/matmul.h"
#include "base/error.h"
#include "bench/cuda/timing.h"

namespace quire::cuda::bench {
namespace {

struct Shape {
  const char* name;
  std::int64_t out_features, in_features;
};

constexpr std::size_t kPoolBytes = std::size_t{1} << 30;
constexpr std::int64_t kMaxTokens = 4096;
constexpr std::int64_t kMaxWidth = 24576;

Tensor random_bf16(std::int64_t rows, std::int64_t cols, int exponent) {
  return device_tensor<std::uint16_t>(DType::kBF16, rows, cols, [&](std::size_t i) {
    std::uint32_t bits = static_cast<std::uint32_t>(i) * 2654435761U;
    bits = (bits ^ (bits >> 15)) * 2246822519U;
    bits ^= bits >> 13;
    return static_cast<std::uint16_t>((bits & 0x807F) |
                                      static_cast<std::uint32_t>((exponent - (bits >> 20) % 3) << 7));
  });
}

// Weights of any shape, one behind the other.
class Pool {
 public:
  Tensor next(std::int64_t rows, std::int64_t cols) {
    const auto bytes = static_cast<std::size_t>(rows * cols) * 2;
    if (used_ + bytes > kPoolBytes) used_ = 0;
    const Tensor weight(memory_.data_as<std::byte>() + used_, DType::kBF16, {rows, cols}, DeviceKind::kCuda);
    used_ += bytes;
    return weight;
  }

 private:
  Tensor memory_ = random_bf16(kPoolBytes / 2 / 1024, 1024, 121);
  std::size_t used_ = 0;
};

class Bench {
 public:
  void print_ceilings() {
    ceiling_ = measure_ceiling(context_, library_);
    std::printf("ceilings: reading %.0f GB/s, products %.0f TFLOP/s\n", ceiling_.read_gb_per_s,
                ceiling_.matrix_gflop_per_s / 1000);
  }
  // Microseconds, GB/s and share of the ceiling: ours, then the library's, then in the fixed order.
  void print_few_tokens(const Shape& shape) {
    std::printf("%-9s", shape.name);
    for (const std::int64_t tokens : {1, 4, 8, 16}) {
      const double ours = time(shape, tokens, [&](const Tensor& out, const Tensor& x, const Tensor& weight) {
        matvec(context_, out, x, weight, {});
      });
      const double theirs =
          time(shape, tokens, [&](const Tensor& out, const Tensor& x, const Tensor& weight) {
            QUIRE_CHECK(library_.multiply(context_, out, x, weight, {}));
          });
      const double fixed = time(shape, tokens, [&](const Tensor& out, const Tensor& x, const Tensor& weight) {
        linear(context_, nullptr, out, x, weight, {});
      });
      const double rate = 2e-3 * static_cast<double>(shape.out_features * shape.in_features) / ours;
      std::printf(" | %2d: %6.2f us %4.0f GB/s %2.0f%%, library %6.2f us, fixed order %6.2f us",
                  static_cast<int>(tokens), ours, rate, 100 * rate / ceiling_.read_gb_per_s, theirs, fixed);
    }
    std::printf("\n");
  }
  // TFLOP/s and share of the ceiling: the library's, then in the fixed order.
  void print_many_tokens(const Shape& shape) {
    std::printf("%-9s", shape.name);
    for (const std::int64_t tokens : {64, 128, 256, 1024, 4096}) {
      std::array<double, 2> rates{};
      for (const bool fixed : {false, true}) {
        const double us = time(shape, tokens, [&](const Tensor& out, const Tensor& x, const Tensor& weight) {
          linear(context_, fixed ? nullptr : &library_, out, x, weight, {});
        });
        rates[fixed ? 1 : 0] =
            2e-6 * static_cast<double>(tokens * shape.out_features * shape.in_features) / us;
      }
      std::printf(" | %4d: %3.0f (%2.0f%%) fixed order %3.0f TFLOP/s", static_cast<int>(tokens), rates[0],
                  1e5 * rates[0] / ceiling_.matrix_gflop_per_s, rates[1]);
    }
    std::printf("\n");
  }
  // The products of a decode step of Qwen3-0.6B without its head, each reading what the one before wrote.
  void print_decode_step(std::int64_t tokens) {
    const Tensor hidden = activations_.rows(0, tokens).columns(0, 1024);
    const Tensor qkv = outputs_.rows(0, tokens).columns(0, 4096);
    const Tensor gated = outputs_.rows(tokens, tokens).columns(0, 3072);
    const auto layer = [&] {
      linear(context_, &library_, qkv, hidden, pool_.next(4096, 1024), {});
      linear(context_, &library_, hidden, qkv.columns(0, 2048), pool_.next(1024, 2048), {});
      matvec(context_, gated, hidden, pool_.next(6144, 1024), {}, Activation::kSilu);
      linear(context_, &library_, hidden, gated, pool_.next(1024, 3072), {});
    };
    const double us = graph_time_us(context_, 28, [&](int) { layer(); });
    std::printf("decode step of Qwen3-0.6B, %2d tokens: %5.2f us a layer, %4.0f GB/s\n",
                static_cast<int>(tokens), us, 2e-3 * 15'728'640 / us);
  }

 private:
  template <typename F>
  double time(const Shape& shape, std::int64_t tokens, const F& multiply) {
    const Tensor x = activations_.rows(0, tokens).columns(0, shape.in_features);
    const auto product = [&](int) {
      const Tensor weight = pool_.next(shape.out_features, shape.in_features);
      const Tensor out(outputs_.data(), DType::kBF16, {tokens, shape.out_features}, DeviceKind::kCuda);
      multiply(out, x, weight);
    };
    product(0);  // the library chooses
    check(cudaStreamSynchronize(context_.stream), "a product");
    const std::int64_t bytes = 2 * shape.out_features * shape.in_features;
    const auto calls = std::clamp<std::int64_t>(600'000'000 / bytes, 3, 64);
    return graph_time_us(context_, static_cast<int>(tokens > 512 ? 3 : calls), product);
  }

  LaunchContext context_ = make_context();
  Pool pool_;
  Tensor activations_ = random_bf16(kMaxTokens, 12288, 127);
  Tensor outputs_ = random_bf16(kMaxTokens, kMaxWidth, 127);
  LibraryMatmul library_{device_tensor<std::uint8_t>(DType::kU8, 1, LibraryMatmul::kWorkspaceBytes,
                                                     [](std::size_t) { return std::uint8_t{0}; })};
  DeviceCeiling ceiling_;
};

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using quire::cuda::bench::Shape;
  constexpr std::array<Shape, 8> kLayerShapes = {{{"0.6B qkv", 4096, 1024},
                                                  {"0.6B o", 1024, 2048},
                                                  {"0.6B gate", 6144, 1024},
                                                  {"0.6B down", 1024, 3072},
                                                  {"8B qkv", 6144, 4096},
                                                  {"8B o", 4096, 4096},
                                                  {"8B gate", 24576, 4096},
                                                  {"8B down", 4096, 12288}}};
  constexpr Shape kHead = {"0.6B head", 151936, 1024};
  quire::cuda::bench::Bench bench;
  bench.print_ceilings();
  for (const Shape& shape : kLayerShapes) bench.print_few_tokens(shape);
  bench.print_few_tokens(kHead);
  for (const Shape& shape : kLayerShapes) bench.print_many_tokens(shape);
  for (const std::int64_t tokens : {1, 2, 4, 8, 16}) bench.print_decode_step(tokens);
  return 0;
}
