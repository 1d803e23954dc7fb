// Times products of quantised matrices at the shapes of Qwen3-8B, beside bf16's and the card's ceilings taken
// in the same run. Every product of a graph has a weight of its own, so that none is served from L2.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>

#include "backends/cuda/ceiling.h"
#include "backends/cuda/w8a8_linear.h"
#include "bench/cuda/timing.h"
#include "tests/cuda/quantized_fixtures.h"

namespace quire::cuda::bench {
namespace {

struct Shape {
  const char* name;
  std::int64_t out_features, in_features;
  bool gated;
};
constexpr std::array<Shape, 4> kShapes = {{{"qkv", 6144, 4096, false},
                                           {"o", 4096, 4096, false},
                                           {"gate", 24576, 4096, true},
                                           {"down", 4096, 12288, false}}};
constexpr std::array<std::int64_t, 7> kTokens = {1, 8, 16, 32, 64, 128, 256};
constexpr std::int64_t kPrefillTokens = 8192;
constexpr std::size_t kPoolBytes = std::size_t{768} << 20;

Tensor random_bf16(std::int64_t rows, std::int64_t cols, int exponent) {
  return device_tensor<std::uint16_t>(DType::kBF16, rows, cols, [&](std::size_t i) {
    std::uint32_t bits = static_cast<std::uint32_t>(i) * 2654435761U;
    bits = (bits ^ (bits >> 15)) * 2246822519U;
    bits ^= bits >> 13;
    return static_cast<std::uint16_t>((bits & 0x807F) |
                                      static_cast<std::uint32_t>((exponent - (bits >> 20) % 3) << 7));
  });
}

class Bench {
 public:
  Bench() {
    ceiling_ = measure_ceiling(context_, library_);
    std::printf("reading %.0f GB/s, products %.0f TFLOP/s; us of a product (share of the reading rate)\n",
                ceiling_.read_gb_per_s, ceiling_.matrix_gflop_per_s / 1000);
    std::printf("%-16s", "");
    for (const std::int64_t tokens : kTokens) std::printf("  %7d tokens", static_cast<int>(tokens));
    std::printf("\n");
  }

  void print_bf16() {
    for (const Shape& shape : kShapes) {
      print(shape, "bf16", 2 * shape.out_features * shape.in_features,
            [&](const std::byte* at, const Tensor& out, const Tensor& x) {
              const Tensor weight(const_cast<std::byte*>(at), DType::kBF16,
                                  {shape.out_features, shape.in_features}, DeviceKind::kCuda);
              if (shape.gated && fused_gated_linear(context_, out.columns(0, shape.out_features / 2), x,
                                                    weight, Activation::kSilu, SumOrder::kFree)) {
                return;
              }
              linear(context_, &library_, out, x, weight, {});
            });
    }
  }
  void print_format(const testing::NamedFormat& named) {
    std::mt19937 random(1);
    const WeightGroup sample = testing::random_group(named.format, 128, 4096, random);
    const std::vector<std::byte> packed = testing::packed_bytes(sample);
    const QuantizedLayout sample_layout = quantized_layout({&sample, 1});
    const auto tiles_bytes = static_cast<std::size_t>(sample_layout.row_tiles() * sample_layout.row_bytes());
    for (std::size_t at = 0; at + tiles_bytes <= kPoolBytes; at += tiles_bytes)
      check(cudaMemcpy(pool_ + at, packed.data(), tiles_bytes, cudaMemcpyHostToDevice), "upload");
    check(cudaMemcpy(values_, packed.data() + packed.size() - sizeof(QuantizedValues),
                     sizeof(QuantizedValues), cudaMemcpyHostToDevice),
          "upload");
    for (const Shape& shape : kShapes) {
      QuantizedMatrix matrix = quantized_matrix(pool_, sample_layout, quantized_rows({&sample, 1}).format);
      matrix.layout.rows = static_cast<int>(shape.out_features);
      matrix.layout.cols = static_cast<int>(shape.in_features);
      if (matrix.row_scales != nullptr) matrix.row_scales = row_scales_.data_as<const float>();
      matrix.values = reinterpret_cast<const QuantizedValues*>(values_);
      print(shape, named.name, matrix.layout.row_tiles() * matrix.layout.row_bytes(),
            [&](const std::byte* at, const Tensor& out, const Tensor& x) {
              matrix.tiles = reinterpret_cast<const std::uint8_t*>(at);
              if (shape.gated && fused_gated_linear(context_, out.columns(0, shape.out_features / 2), x,
                                                    matrix, Activation::kSilu, SumOrder::kFree)) {
                return;
              }
              linear(context_, &library_, out, x, matrix, {}, workspace_);
            });
    }
  }
  // With activations of 8 bits too; then TFLOP/s with many tokens, their rounding included.
  void print_w8a8(const testing::NamedFormat& named) {
    std::mt19937 random(1);
    const WeightGroup sample = testing::random_group(named.format, 2048, 4096, random);
    std::vector<std::byte> codes(2048 * 4096);
    w8a8_codes(quantized_rows({&sample, 1}), w8a8_matrix(nullptr, {&sample, 1}))
        ->read_rows(0, Tensor(codes.data(), DType::kU8, {2048, 4096}));
    for (std::size_t at = 0; at + codes.size() <= kPoolBytes; at += codes.size())
      check(cudaMemcpy(pool_ + at, codes.data(), codes.size(), cudaMemcpyHostToDevice), "upload");
    for (const Shape& shape : kShapes) {
      const WeightGroup group{sample.tensors, named.format, shape.out_features, shape.in_features};
      W8a8Matrix matrix = w8a8_matrix(pool_, {&group, 1});
      matrix.scales = row_scales_.data_as<const float>();
      const auto multiply = [&](const std::byte* at, const Tensor& out, const Tensor& x) {
        matrix.codes = reinterpret_cast<const std::uint8_t*>(at);
        if (shape.gated && fused_gated_linear(context_, out.columns(0, shape.out_features / 2), x, matrix,
                                              Activation::kSilu, SumOrder::kFree, workspace_)) {
          return;
        }
        linear(context_, &library_, out, x, matrix, {}, workspace_);
      };
      print(shape, named.name, shape.out_features * shape.in_features, multiply);
      const Tensor x = activations_.columns(0, shape.in_features);
      const Tensor out(outputs_.data(), DType::kBF16, {kPrefillTokens, shape.out_features},
                       DeviceKind::kCuda);
      const double us = graph_time_us(
          context_, 4, [&](int) { multiply(pool_, out, x); }, 6);
      std::printf("%-16s  %lld tokens: %.0f us, %.0f TFLOP/s\n", "", static_cast<long long>(kPrefillTokens),
                  us,
                  2e-6 * static_cast<double>(kPrefillTokens * shape.out_features * shape.in_features) / us);
    }
  }

 private:
  using Multiply = std::function<void(const std::byte* weight, const Tensor& out, const Tensor& x)>;

  void print(const Shape& shape, const char* format, std::int64_t bytes, const Multiply& multiply) {
    std::printf("%-10s %-5s", format, shape.name);
    const auto size = static_cast<std::size_t>(bytes);
    std::size_t used = 0;
    for (const std::int64_t tokens : kTokens) {
      const Tensor x = activations_.rows(0, tokens).columns(0, shape.in_features);
      const Tensor out(outputs_.data(), DType::kBF16, {tokens, shape.out_features}, DeviceKind::kCuda);
      const auto call = [&](int) {
        if (used + size > kPoolBytes) used = 0;
        multiply(pool_ + used, out, x);
        used += size;
      };
      call(0);
      check(cudaStreamSynchronize(context_.stream), "a product");
      const auto calls = static_cast<int>(std::clamp<std::int64_t>(400'000'000 / bytes, 3, 48));
      const double us = graph_time_us(context_, calls, call, 6);
      std::printf("  %7.2f (%3.0f%%)", us,
                  100 * 1e-3 * static_cast<double>(bytes) / us / ceiling_.read_gb_per_s);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  LaunchContext context_ = make_context();
  Tensor activations_ = random_bf16(kPrefillTokens, 12288, 127);
  Tensor outputs_ = device_tensor<std::uint16_t>(DType::kBF16, kPrefillTokens, 24576,
                                                 [](std::size_t) { return std::uint16_t{0}; });
  Tensor pool_memory_ = random_bf16(kPoolBytes / 2 / 4096, 4096, 121);
  std::byte* pool_ = pool_memory_.data_as<std::byte>();
  Tensor row_scales_ = device_tensor<float>(DType::kF32, 1, 24576, [](std::size_t) { return 0.01F; });
  Tensor workspace_ = device_tensor<std::uint8_t>(DType::kU8, 1, kQuantizedWorkspaceBytes,
                                                  [](std::size_t) { return std::uint8_t{0}; });
  Tensor values_memory_ =
      device_tensor<float>(DType::kF32, 1, sizeof(QuantizedValues) / 4, [](std::size_t) { return 0.0F; });
  void* values_ = values_memory_.data();
  LibraryMatmul library_{device_tensor<std::uint8_t>(DType::kU8, 1, LibraryMatmul::kWorkspaceBytes,
                                                     [](std::size_t) { return std::uint8_t{0}; })};
  DeviceCeiling ceiling_;
};

}  // namespace
}  // namespace quire::cuda::bench

// Arguments: the formats, those with activations of 8 bits by "w8a8 …", "bf16" among them; none: all.
int main(int argc, char** argv) {
  const auto wanted = [&](std::string_view name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* other) { return other == name; });
  };
  quire::cuda::bench::Bench bench;
  if (wanted("bf16")) bench.print_bf16();
  for (const auto& format : quire::cuda::testing::published_formats())
    if (wanted(format.name)) bench.print_format(format);
  for (const auto& format : quire::cuda::testing::w8a8_formats())
    if (wanted(format.name)) bench.print_w8a8(format);
  return 0;
}
