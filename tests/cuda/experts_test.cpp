// Routed experts of the CUDA backend against the CPU reference, on random odd shapes and by both ways to
// compute them, and bitwise against themselves; the same of matrices of codes.
#include "backends/cuda/kernels/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "cuda/device_memory.h"
#include "cuda/quantized_fixtures.h"
#include "cuda/routes.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;
using testing::Routes;

struct Sizes {
  int tokens, num_experts, top_k;
  std::int64_t hidden, intermediate;
  Activation activation = Activation::kSilu;  // of kSwigluOai, biases are added

  ExpertShape shape() const {
    return {.num_experts = num_experts,
            .top_k = top_k,
            .hidden_size = hidden,
            .intermediate_size = intermediate,
            .max_num_tokens = tokens,
            .activation = activation};
  }
  std::string describe() const {
    return std::to_string(tokens) + " tokens, " + std::to_string(top_k) + " of " +
           std::to_string(num_experts) + " experts of " + std::to_string(intermediate) + " x " +
           std::to_string(hidden);
  }
};

// Random codes on the device; `values` f32 becomes what they stand for.
class DeviceCodes {
 public:
  DeviceCodes(const LinearFormat& format, const Tensor& values, std::mt19937& random)
      : group_(testing::random_group(format, values.dim(0), values.dim(1), random)),
        bytes_(testing::packed_bytes(group_)),
        device_(Tensor(bytes_.data(), DType::kU8, {std::ssize(bytes_)})) {
    dequantized(group_)->read_rows(0, values);
  }
  QuantizedMatrix matrix() const {
    return quantized_matrix(device_.tensor().data(), quantized_layout({&group_, 1}),
                            quantized_rows({&group_, 1}).format);
  }

 private:
  WeightGroup group_;
  std::vector<std::byte> bytes_;
  DeviceTensor device_;
};

// A layer of experts, tokens for it and their routes. format: of codes, or null.
class Layer {
 public:
  Layer(const Sizes& sizes, DType dtype, std::mt19937& random, const LinearFormat* format = nullptr)
      : sizes_(sizes),
        gate_up_(format == nullptr ? dtype : DType::kF32, 2 * sizes.num_experts * sizes.intermediate,
                 sizes.hidden, random, 1.5F / std::sqrt(static_cast<float>(sizes.hidden))),
        down_(format == nullptr ? dtype : DType::kF32, sizes.num_experts * sizes.hidden, sizes.intermediate,
              random, 1.0F / std::sqrt(static_cast<float>(sizes.intermediate))),
        x_(dtype, sizes.tokens, sizes.hidden, random),
        out_(dtype, sizes.tokens, sizes.hidden, random),
        device_gate_up_(gate_up_.tensor()),
        device_down_(down_.tensor()),
        device_x_(x_.tensor()),
        device_out_(out_.tensor()),
        workspace_(bytes_of(sizes.shape(), dtype)),
        device_workspace_(Tensor(workspace_.data(), DType::kU8, {std::ssize(workspace_)})),
        routes_(sizes.tokens, sizes.top_k) {
    routes_.draw(sizes.num_experts, random);
    if (format != nullptr) {
      coded_gate_up_.emplace(*format, gate_up_.tensor(), random);
      coded_down_.emplace(*format, down_.tensor(), random);
      draw_input(random);
      // Takes some experts at a time, or a part of one.
      wide_.resize(static_cast<std::size_t>((sizes.num_experts % 2 == 0 ? 11 : 3) * sizes.intermediate *
                                            sizes.hidden));
      device_wide_.emplace(Tensor(wide_.data(), DType::kU8, {std::ssize(wide_)}));
      codes_ = {coded_gate_up_->matrix(), coded_down_->matrix(), device_wide_->tensor()};
    }
    if (sizes.activation == Activation::kSwigluOai) {
      gate_up_bias_.emplace(DType::kF32, sizes.num_experts, 2 * sizes.intermediate, random, 5.0F);
      down_bias_.emplace(DType::kF32, sizes.num_experts, sizes.hidden, random, 5.0F);
      device_gate_up_bias_.emplace(gate_up_bias_->vector());
      device_down_bias_.emplace(down_bias_->vector());
    }
    poison();
  }

  Routes& routes() { return routes_; }
  void poison() const {
    device_out_.poison();
    device_workspace_.poison();
    if (device_wide_) device_wide_->poison();
  }
  void run(const LaunchContext& context, bool fixed_order = false) const {
    experts(context, call(), sizes_.shape(), fixed_order);
  }
  // Only so many tokens from `first` on.
  void run_some(const LaunchContext& context, int first, int count, bool fixed_order) const {
    ExpertCall some = call();
    some.x = some.x.rows(first, count);
    some.out = some.out.rows(first, count);
    some.routing = {some.routing.experts.rows(first, count), some.routing.weights.rows(first, count)};
    experts(context, some, sizes_.shape(), fixed_order);
  }

  std::vector<double> result() const {
    device_out_.download(out_.tensor());
    return out_.values();
  }
  // By the reference in float32, from the same bits.
  std::vector<double> expected() const {
    std::mt19937 unused(0);
    ReferenceBackend reference;
    std::vector<std::unique_ptr<Matrix>> matrices;
    const auto part = [&](const Matrix& all, std::int64_t row, std::int64_t count) {
      matrices.push_back(std::make_unique<Matrix>(DType::kF32, count, all.tensor().dim(1), unused));
      const Tensor& to = matrices.back()->tensor();
      convert(all.tensor().dtype(), all.tensor().rows(row, 1).data(), DType::kF32, to.data(),
              static_cast<std::size_t>(to.numel()));
      return quire::testing::plain(*matrices.back());
    };
    std::vector<ExpertParts> parts;
    for (std::int64_t e = 0; e < sizes_.num_experts; ++e) {
      parts.push_back({part(gate_up_, 2 * e * sizes_.intermediate, sizes_.intermediate),
                       part(gate_up_, (2 * e + 1) * sizes_.intermediate, sizes_.intermediate),
                       part(down_, e * sizes_.hidden, sizes_.hidden)});
    }
    part(x_, 0, sizes_.tokens);
    const Tensor x = matrices.back()->tensor();
    const Matrix out(DType::kF32, sizes_.tokens, sizes_.hidden, unused);
    const auto weights = reference.make_experts(parts, sizes_.shape(), DType::kF32);
    if (gate_up_bias_) weights->set_biases({gate_up_bias_->vector(), down_bias_->vector()});
    reference.experts(out.tensor(), x, *weights, routes_.host(), {});
    return out.values();
  }
  void expect_right(const std::string& what) const { expect_right(what, expected()); }
  void expect_right(const std::string& what, const std::vector<double>& right) const {
    const std::vector<double> actual = result();
    const DType dtype = x_.tensor().dtype();
    double tolerance = dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 1e-3 : 8e-3;
    // Widened codes are rounded, too; and sums of few terms may be much smaller than the terms.
    if (codes_) tolerance *= sizes_.hidden < 64 ? 4 : 1.5;
    const auto hidden = static_cast<std::size_t>(sizes_.hidden);
    for (std::size_t row = 0; row < right.size(); row += hidden) {
      double difference = 0, norm = 0;
      for (std::size_t i = row; i < row + hidden; ++i) {
        difference += (actual[i] - right[i]) * (actual[i] - right[i]);
        norm += right[i] * right[i];
      }
      ASSERT_LT(std::sqrt(difference / norm), tolerance) << what << ", token " << row / hidden;
    }
  }

 private:
  // x with which gates are around 1, whatever the codes stand for: float16 has no small inner values.
  void draw_input(std::mt19937& random) {
    const std::vector<double> weights = gate_up_.values();
    const double squares = std::inner_product(weights.begin(), weights.end(), weights.begin(), 0.0);
    const double per_row = squares / static_cast<double>(gate_up_.tensor().dim(0));
    const Tensor& x = x_.tensor();
    const Matrix drawn(x.dtype(), x.dim(0), x.dim(1), random, static_cast<float>(1 / std::sqrt(per_row)));
    std::memcpy(x.data(), drawn.tensor().data(), x.bytes());
    check(cudaMemcpy(device_x_.tensor().data(), x.data(), x.bytes(), cudaMemcpyHostToDevice), "upload");
  }
  static std::size_t bytes_of(ExpertShape shape, DType dtype) { return expert_workspace_bytes(shape, dtype); }
  ExpertCall call() const {
    ExpertCall call = {device_out_.tensor(),
                       device_x_.tensor(),
                       device_gate_up_.tensor(),
                       device_down_.tensor(),
                       routes_.device(),
                       device_workspace_.tensor(),
                       codes_.has_value() ? &*codes_ : nullptr};
    if (device_down_bias_) call.biases = {device_gate_up_bias_->tensor(), device_down_bias_->tensor()};
    return call;
  }

  Sizes sizes_;
  Matrix gate_up_, down_, x_, out_;
  std::optional<Matrix> gate_up_bias_, down_bias_;
  std::optional<DeviceTensor> device_gate_up_bias_, device_down_bias_;
  DeviceTensor device_gate_up_, device_down_, device_x_, device_out_;
  std::vector<std::byte> workspace_;
  DeviceTensor device_workspace_;
  Routes routes_;
  std::optional<DeviceCodes> coded_gate_up_, coded_down_;
  std::vector<std::byte> wide_;
  std::optional<DeviceTensor> device_wide_;
  std::optional<ExpertCodes> codes_;
};

class ExpertsTest : public testing::DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  std::mt19937 random_{17};
};

TEST_P(ExpertsTest, EqualTheReferenceForEveryShape) {
  for (const Sizes& sizes :
       {Sizes{1, 8, 4, 64, 48}, Sizes{3, 4, 2, 64, 96}, Sizes{33, 8, 4, 64, 48}, Sizes{200, 4, 2, 64, 96},
        Sizes{1, 5, 2, 37, 11}, Sizes{50, 5, 3, 61, 23}, Sizes{7, 6, 6, 136, 40}, Sizes{700, 8, 2, 128, 200},
        Sizes{300, 300, 6, 64, 24}, Sizes{2, 300, 16, 72, 24}, Sizes{1, 8, 4, 1024, 768},
        Sizes{20, 8, 4, 776, 384}, Sizes{150, 1, 1, 520, 264}, Sizes{2000, 12, 3, 64, 72}}) {
    const Layer layer(sizes, GetParam(), random_);
    for (const bool fixed_order : {false, true}) {
      layer.poison();
      layer.run(context_, fixed_order);
      layer.expect_right(sizes.describe() + (fixed_order ? ", fixed order" : ""));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ExpertsTest, AreComputedInPassesWhereTokensAreMany) {
  const Layer layer({9000, 6, 2, 40, 16}, GetParam(), random_);
  layer.run(context_);
  layer.expect_right("9000 tokens");
}

TEST_P(ExpertsTest, AreBitwiseTheSameEveryTime) {
  for (const int tokens : {1, 6, 900}) {
    const Layer layer({tokens, 16, 4, 256, 128}, GetParam(), random_);
    layer.run(context_);
    const std::vector<double> first = layer.result();
    for (int i = 0; i < 5; ++i) {
      layer.poison();
      layer.run(context_);
      ASSERT_EQ(layer.result(), first) << tokens << " tokens";
    }
  }
}

TEST_P(ExpertsTest, InFixedOrderDoNotDependOnTheOtherTokens) {
  const Layer layer({700, 16, 4, 256, 136}, GetParam(), random_);
  layer.run(context_, true);
  const std::vector<double> together = layer.result();
  layer.poison();
  int first = 0;
  for (const int count : {1, 2, 5, 92, 600}) {
    layer.run_some(context_, first, count, true);
    first += count;
  }
  EXPECT_EQ(layer.result(), together);
}

TEST_P(ExpertsTest, FollowRoutesThatChangeUnderACapturedGraph) {
  for (const int tokens : {2, 100}) {
    const Sizes sizes{tokens, 16, 4, 64, 48};
    Layer layer(sizes, GetParam(), random_);
    LaunchContext context = context_;
    check(cudaStreamCreate(&context.stream), "stream");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    layer.run(context);
    check(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal), "capture");
    layer.run(context);
    check(cudaStreamEndCapture(context.stream, &graph), "capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "graph");
    for (int i = 0; i < 3; ++i) {
      check(cudaStreamSynchronize(context.stream), "replay");
      layer.routes().draw(sizes.num_experts, random_);
      layer.poison();
      check(cudaDeviceSynchronize(), "poison");
      check(cudaGraphLaunch(executable, context.stream), "replay");
      layer.expect_right(sizes.describe() + ", replay " + std::to_string(i));
    }
    check(cudaGraphExecDestroy(executable), "graph");
    check(cudaGraphDestroy(graph), "graph");
    check(cudaStreamDestroy(context.stream), "stream");
  }
}

// By pair, by group and in fixed order; codes also by group in 16 bits, in parts.
TEST_P(ExpertsTest, WithBiasesAndTheGateOfGptOssEqualTheReference) {
  const std::vector<testing::NamedFormat> formats = testing::published_formats();
  const auto mxfp4 = std::ranges::find_if(
      formats, [](const testing::NamedFormat& named) { return named.name == std::string("mxfp4"); });
  ASSERT_NE(mxfp4, formats.end());
  for (const LinearFormat* format : {static_cast<const LinearFormat*>(nullptr), &mxfp4->format}) {
    for (Sizes sizes : {Sizes{1, 32, 4, 272, 112}, Sizes{3, 32, 4, 144, 112}, Sizes{40, 32, 4, 144, 112},
                        Sizes{300, 7, 2, 272, 112}, Sizes{340, 8, 2, 272, 112}, Sizes{33, 4, 2, 272, 400}}) {
      sizes.activation = Activation::kSwigluOai;
      const Layer layer(sizes, GetParam(), random_, format);
      const std::vector<double> right = layer.expected();
      for (const bool fixed_order : {false, true}) {
        layer.poison();
        layer.run(context_, fixed_order);
        layer.expect_right((format == nullptr ? "plain, " : "mxfp4, ") + sizes.describe() +
                               (fixed_order ? ", fixed order" : ""),
                           right);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ExpertsTest, OfCodesEqualTheReference) {
  int tested = 0;
  for (const testing::NamedFormat& named : testing::published_formats()) {
    const std::string name = named.name;
    if (name != "int4 g128" && name != "q4_k" && name != "int8 rows" && name != "fp8 blocks" &&
        name != "mxfp4" && name != "nf4") {
      continue;
    }
    ++tested;
    // By pair, by group and by group in 16 bits; odd numbers of tiles; splits of columns among warps.
    for (const Sizes& sizes :
         {Sizes{1, 32, 4, 272, 112}, Sizes{3, 32, 4, 144, 112}, Sizes{40, 32, 4, 144, 112},
          Sizes{300, 7, 2, 272, 112}, Sizes{340, 8, 2, 272, 112}, Sizes{1, 4, 2, 1040, 272},
          Sizes{33, 4, 2, 272, 400}, Sizes{1, 1, 1, 16, 16}}) {
      const Layer layer(sizes, GetParam(), random_, &named.format);
      const std::vector<double> right = layer.expected();
      for (const bool fixed_order : {false, true}) {
        layer.poison();
        layer.run(context_, fixed_order);
        layer.expect_right(name + ", " + sizes.describe() + (fixed_order ? ", fixed order" : ""), right);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_EQ(tested, 6);
}

TEST_P(ExpertsTest, OfCodesDoNotDependOnTheOtherTokensInFixedOrder) {
  const auto formats = testing::published_formats();
  for (const std::size_t i : {std::size_t{0}, formats.size() - 1}) {
    const Layer layer({200, 8, 4, 272, 144}, GetParam(), random_, &formats[i].format);
    layer.run(context_, true);
    const std::vector<double> together = layer.result();
    layer.poison();
    int first = 0;
    for (const int count : {1, 2, 5, 92, 100}) {
      layer.run_some(context_, first, count, true);
      first += count;
    }
    EXPECT_EQ(layer.result(), together) << formats[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ExpertsTest, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire::cuda
