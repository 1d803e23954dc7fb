// Microseconds of a decode step's Gated DeltaNet layers in a CUDA graph, of which each has its own weights
// and states, and the bytes of states they move a second: what is between the products in one launch and in
// three, alone and for one sequence between the products. Shapes of Qwen3.5-0.8B and Qwen3.5-4B in bf16.
#include <cstdio>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/linear.h"
#include "bench/cuda/timing.h"
#include "ops/ops.h"

namespace quire::cuda::bench {
namespace {

constexpr int kKeyHeads = 16, kDim = 128, kTokens = 4;

struct Shape {
  const char* name;
  int hidden, value_heads, layers;

  std::int64_t values() const { return std::int64_t{value_heads} * kDim; }
  std::int64_t channels() const { return 2 * kKeyHeads * kDim + values(); }
  std::int64_t projected() const { return channels() + values() + 2 * value_heads; }
};

// The kernels of a layer one by one.
class Kernels final : public ReferenceBackend {
 public:
  explicit Kernels(const LaunchContext& context) : context_(context) {}

  void causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params, const Tensor& state,
                   const StateBatch& batch) override {
    cuda::causal_conv(context_, out, x, params, state, batch);
  }
  void gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                        const StateBatch& batch) override {
    cuda::gated_delta_rule(context_, out, input, state, batch);
  }
  void gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const NormParams& params) override {
    cuda::gated_norm(context_, out, x, gate, params);
  }

 private:
  LaunchContext context_;
};

// Zeros on the device for the life of a shape.
class Zeros {
 public:
  Zeros() = default;
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  ~Zeros() {
    for (void* data : all_) cudaFree(data);
  }
  Tensor operator()(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::size_t bytes = size_of(dtype);
    for (const std::int64_t n : shape) bytes *= static_cast<std::size_t>(n);
    void*& data = all_.emplace_back();
    check(cudaMalloc(&data, bytes), "memory");
    check(cudaMemset(data, 0, bytes), "zeros");
    return Tensor(data, dtype, shape, DeviceKind::kCuda);
  }

 private:
  std::vector<void*> all_;
};

Tensor counted(int count) {
  const Tensor rows = device_tensor<std::int32_t>(DType::kI32, 1, count,
                                                  [](std::size_t i) { return static_cast<std::int32_t>(i); });
  return Tensor(rows.data(), DType::kI32, {count}, DeviceKind::kCuda);
}

void run(const LaunchContext& context, const Shape& shape, int sequences) {
  Zeros zeros;
  const int layers = sequences == 1 ? shape.layers : 4;
  const std::int64_t n = sequences, values = shape.values(), channels = shape.channels();
  const Tensor slots = counted(sequences);
  const StateBatch batch = {sequences, sequences, 1, counted(sequences + 1), slots, slots};
  const Tensor x = zeros(DType::kBF16, {n, shape.hidden});
  const Tensor projected = zeros(DType::kBF16, {n, shape.projected()}),
               out = zeros(DType::kBF16, {n, values});
  std::vector<DeltaNet> nets;
  std::vector<Tensor> in_weights, out_weights;
  for (int i = 0; i < layers; ++i) {
    nets.push_back({.conv = {zeros(DType::kF32, {kTokens, channels}), {}, Activation::kSilu},
                    .rule = {.qkv = {},
                             .rates = {},
                             .a_log = zeros(DType::kF32, {shape.value_heads}),
                             .dt_bias = zeros(DType::kF32, {shape.value_heads}),
                             .num_key_heads = kKeyHeads},
                    .norm = {zeros(DType::kF32, {kDim}), {}, 1e-6F},
                    .conv_state = zeros(DType::kF32, {n, kTokens - 1, channels}),
                    .state = zeros(DType::kF32, {n, shape.value_heads, kDim, kDim}),
                    .mixed = zeros(DType::kBF16, {n, channels}),
                    .heads = zeros(DType::kF32, {n, values})});
    in_weights.push_back(zeros(DType::kBF16, {shape.projected(), shape.hidden}));
    out_weights.push_back(zeros(DType::kBF16, {shape.hidden, values}));
  }
  Kernels kernels(context);
  const auto middle = [&](bool fused, int i) {
    const DeltaNet& net = nets[static_cast<std::size_t>(i % layers)];
    fused ? delta_step(context, out, projected, net, batch)
          : kernels.Backend::gated_delta_net(out, projected, net, batch);
  };
  const double bytes = 2.0 * sequences * static_cast<double>(values) * kDim * sizeof(float);
  for (const bool fused : {false, true}) {
    const double us = graph_time_us(context, 2 * layers, [&](int i) { middle(fused, i); });
    std::printf("%-13s %4d sequences  %-16s %8.2f us  %7.0f GB/s\n", shape.name, sequences,
                fused ? "one launch" : "three launches", us, bytes / us * 1e-3);
  }
  for (const bool fused : {false, true}) {
    if (sequences > 1) break;
    const double us = graph_time_us(context, 2 * layers, [&](int i) {
      const auto layer = static_cast<std::size_t>(i % layers);
      matvec(context, projected, x, in_weights[layer], {});
      middle(fused, i);
      matvec(context, x, out, out_weights[layer], {});
    });
    std::printf("%-13s %4d sequences  %-16s %8.2f us with both products\n", shape.name, sequences,
                fused ? "one launch" : "three launches", us);
  }
}

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using namespace quire::cuda::bench;
  const quire::cuda::LaunchContext context = make_context();
  for (const Shape& shape : {Shape{"qwen3.5-0.8b", 1024, 16, 18}, Shape{"qwen3.5-4b", 2560, 32, 24}}) {
    for (const int sequences : {1, 4, 16, 64, 256}) run(context, shape, sequences);
  }
}
