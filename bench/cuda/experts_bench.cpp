// Times routed experts on shapes of published models, in bf16 or of codes, beside the card's read bandwidth
// taken in the same run. Tokens choose their experts at random; layers of a graph have other tokens and so
// other experts, more than the L2 cache holds.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/probe.h"
#include "backends/cuda/matmul.h"
#include "bench/cuda/timing.h"
#include "tests/cuda/quantized_fixtures.h"

namespace quire::cuda::bench {
namespace {

struct Model {
  const char* name;
  int num_experts, top_k;
  std::int64_t hidden, intermediate;

  ExpertShape shape(int max_num_tokens) const {
    return {num_experts, top_k, hidden, intermediate, max_num_tokens};
  }
};

constexpr int kMaxTokens = 8192;
constexpr int kRoutings = 16;

Tensor memory(DType dtype, std::int64_t rows, std::int64_t cols) {
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<std::size_t>(rows * cols) * size_of(dtype)), "memory");
  return Tensor(data, dtype, {rows, cols}, DeviceKind::kCuda);
}
Tensor random_bf16(const LaunchContext& context, std::int64_t rows, std::int64_t cols) {
  const Tensor tensor = memory(DType::kBF16, rows, cols);
  fill_random(context, tensor.data(), tensor.numel());
  return tensor;
}

class Bench {
 public:
  // format: null for bf16.
  Bench(const Model& model, const LinearFormat* format)
      : model_(model),
        routers_(random_bf16(context_, kRoutings * model.num_experts, model.hidden)),
        x_(random_bf16(context_, kMaxTokens, model.hidden)),
        out_(memory(DType::kBF16, kMaxTokens, model.hidden)),
        logits_(device_tensor<float>(DType::kF32, kMaxTokens, model.num_experts,
                                     [&](std::size_t) { return static_cast<float>(random_() % 10007); })),
        workspace_(memory(
            DType::kU8, 1,
            static_cast<std::int64_t>(expert_workspace_bytes(model.shape(kMaxTokens), DType::kBF16)))) {
    workspace_ = Tensor(workspace_.data(), DType::kU8, {workspace_.numel()}, DeviceKind::kCuda);
    const std::int64_t wide = 2 * model.num_experts * model.intermediate;
    const std::int64_t narrow = model.num_experts * model.hidden;
    if (format == nullptr) {
      gate_up_ = random_bf16(context_, wide, model.hidden);
      down_ = random_bf16(context_, narrow, model.intermediate);
      return;
    }
    codes_ = {random_codes(*format, wide, model.hidden), random_codes(*format, narrow, model.intermediate),
              memory(DType::kU8, 1, kQuantizedWorkspaceBytes)};
    bits_ =
        codes_.gate_up.layout.tile_bytes * 8.0 / (QuantizedLayout::kTileRows * QuantizedLayout::kTileColumns);
  }
  ~Bench() {
    for (const Tensor& tensor : {gate_up_, down_, routers_, x_, out_, workspace_, codes_.workspace})
      if (tensor.defined()) cudaFree(tensor.data());
    cudaFree(const_cast<std::uint8_t*>(codes_.gate_up.tiles));
    cudaFree(const_cast<std::uint8_t*>(codes_.down.tiles));
  }

  void print(int tokens, double read_rate) {
    const int routings = tokens <= 64 ? kRoutings : 2;
    double bytes = 0;
    std::vector<ExpertRouting> routing;
    for (int i = 0; i < routings; ++i) {
      routing.push_back(draw(tokens));
      bytes += weight_bytes(routing.back()) / routings;
    }
    const auto call = [&](int i) {
      const auto& routes = routing[static_cast<std::size_t>(i % routings)];
      return ExpertCall{
          out_.rows(0, tokens),           x_.rows(0, tokens), gate_up_, down_, routes, workspace_,
          bits_ == 16 ? nullptr : &codes_};
    };
    const ExpertShape shape = model_.shape(kMaxTokens);
    const double us =
        graph_time_us(context_, routings, [&](int i) { experts(context_, call(i), shape, false); });
    const double fixed_us =
        graph_time_us(context_, routings, [&](int i) { experts(context_, call(i), shape, true); });
    const double route_us = graph_time_us(context_, routings, [&](int i) {
      route_experts(context_, routing[static_cast<std::size_t>(i)], logits_.rows(0, tokens), {});
    });
    const double flops =
        6.0 * tokens * model_.top_k * static_cast<double>(model_.hidden * model_.intermediate);
    std::printf(
        "%-14s %5d tokens: %8.1f us, %5.0f GB/s %5.1f %%, %4.0f TFLOP/s; fixed order %8.1f us; "
        "routing %4.1f us",
        model_.name, tokens, us, bytes / us * 1e-3, 100 * bytes / us * 1e-3 / read_rate, flops / us * 1e-6,
        fixed_us, route_us);
    if (routing_linear_supports(x_.rows(0, tokens), routers_.rows(0, model_.num_experts))) {
      const double product_us = graph_time_us(context_, routings, [&](int i) {
        const Tensor router = routers_.rows(i * model_.num_experts, model_.num_experts);
        routing_linear(context_, routing[static_cast<std::size_t>(i)], x_.rows(0, tokens), router, {});
      });
      std::printf(", with the router's product %4.1f us", product_us);
    }
    std::printf("\n");
  }

 private:
  ExpertRouting draw(int tokens) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(model_.num_experts));
    std::iota(all.begin(), all.end(), 0);
    const auto top_k = static_cast<std::size_t>(model_.top_k);
    std::vector<std::int32_t> chosen;
    for (int t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random_);
      chosen.insert(chosen.end(), all.begin(), all.begin() + model_.top_k);
    }
    return {device_tensor<std::int32_t>(DType::kI32, tokens, model_.top_k,
                                        [&](std::size_t i) { return chosen[i]; }),
            device_tensor<float>(DType::kF32, tokens, model_.top_k,
                                 [&](std::size_t) { return 1.0F / static_cast<float>(top_k); })};
  }
  // Of the experts that a routing needs.
  double weight_bytes(const ExpertRouting& routing) const {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(routing.experts.numel()));
    check(cudaMemcpy(ids.data(), routing.experts.data(), routing.experts.bytes(), cudaMemcpyDeviceToHost),
          "routing");
    std::sort(ids.begin(), ids.end());
    const auto distinct = std::distance(ids.begin(), std::unique(ids.begin(), ids.end()));
    return bits_ / 8 * 3 * static_cast<double>(distinct * model_.hidden * model_.intermediate);
  }
  // 128 random rows, again and again.
  QuantizedMatrix random_codes(const LinearFormat& format, std::int64_t rows, std::int64_t cols) {
    const WeightGroup sample = testing::random_group(format, 128, cols, random_);
    const std::vector<std::byte> packed = testing::packed_bytes(sample);
    const QuantizedLayout layout = quantized_layout({&sample, 1});
    const auto bytes = static_cast<std::size_t>(layout.row_tiles() * layout.row_bytes());
    const auto count = static_cast<std::size_t>(rows / 128);
    const Tensor tiles =
        memory(DType::kU8, 1, static_cast<std::int64_t>(bytes * count + sizeof(QuantizedValues)));
    for (std::size_t i = 0; i < count; ++i)
      check(cudaMemcpy(tiles.data_as<std::byte>() + i * bytes, packed.data(), bytes, cudaMemcpyHostToDevice),
            "upload");
    QuantizedMatrix matrix = quantized_matrix(tiles.data(), layout, quantized_rows({&sample, 1}).format);
    matrix.layout.rows = static_cast<int>(rows);
    if (layout.has_row_scales) {
      matrix.row_scales = device_tensor<float>(DType::kF32, 1, rows, [](std::size_t) {
                            return 0.01F;
                          }).data_as<const float>();
    }
    auto* values = tiles.data_as<std::byte>() + bytes * count;
    check(cudaMemcpy(values, packed.data() + packed.size() - sizeof(QuantizedValues), sizeof(QuantizedValues),
                     cudaMemcpyHostToDevice),
          "upload");
    matrix.values = reinterpret_cast<const QuantizedValues*>(values);
    return matrix;
  }

  LaunchContext context_ = make_context();
  std::mt19937 random_{5};
  Model model_;
  Tensor gate_up_, down_, routers_, x_, out_, logits_, workspace_;
  ExpertCodes codes_;
  double bits_ = 16;  // of a weight
};

// GB/s of a read of 4 GiB.
double measure_reading(const LaunchContext& context) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  const Tensor data = random_bf16(context, kBytes / 2048, 1024);
  const Tensor result = memory(DType::kI32, 1, 1);
  const double us = graph_time_us(
      context, 1, [&](int) { read_all(context, data.data(), kBytes, result.data_as<unsigned>()); });
  check(cudaFree(data.data()), "memory");
  return static_cast<double>(kBytes) / us * 1e-3;
}

}  // namespace
}  // namespace quire::cuda::bench

// Arguments: formats, "bf16" among them; none: bf16.
int main(int argc, char** argv) {
  using namespace quire::cuda;
  using namespace quire::cuda::bench;
  try {
    const double read_rate = measure_reading(bench::make_context());
    std::printf("Routed experts; a read of 4 GiB: %.0f GB/s\n", read_rate);
    const auto run = [&](const char* name, const quire::LinearFormat* format) {
      std::printf("%s\n", name);
      for (const Model& model :
           {Model{"Qwen3-30B-A3B", 128, 8, 2048, 768}, Model{"Mixtral 8x7B", 8, 2, 4096, 14336}}) {
        Bench bench(model, format);
        for (const int tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192})
          bench.print(tokens, read_rate);
      }
    };
    const auto wanted = [&](std::string_view name) {
      return std::any_of(argv + 1, argv + argc, [&](const char* other) { return other == name; });
    };
    if (argc == 1 || wanted("bf16")) run("bf16", nullptr);
    for (const auto& named : quire::cuda::testing::published_formats())
      if (wanted(named.name)) run(named.name, &named.format);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
