// Routing of the CUDA backend against the CPU reference, on random odd shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/experts.h"
#include "cuda/device_memory.h"
#include "cuda/routes.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;
using testing::Routes;

class RoutingTest : public testing::DeviceTest {
 protected:
  std::mt19937 random_{3};
};

TEST_F(RoutingTest, IsThatOfTheReference) {
  for (const int num_experts : {1, 4, 8, 31, 32, 33, 64, 128, 129, 300, 512}) {
    for (const int top_k : {1, 2, 5, 8, 16, 32}) {
      if (top_k > num_experts) continue;
      for (const bool normalize : {false, true}) {
        const Matrix logits(DType::kF32, 37, num_experts, random_, 3.0F);
        const DeviceTensor device_logits(logits.tensor());
        const Matrix scales(DType::kF32, 1, num_experts, random_);
        const DeviceTensor device_scales(scales.vector());
        Routes expected(37, top_k), actual(37, top_k);
        RouterOptions options = {.normalize = normalize}, on_device = options;
        if (top_k % 2 == 0) {
          options.expert_scales = scales.vector();
          on_device.expert_scales = device_scales.tensor();
        }
        ReferenceBackend().route_experts(expected.host(), logits.tensor(), options);
        route_experts(context_, actual.device(), device_logits.tensor(), on_device);
        actual.fetch();
        const std::string what = std::to_string(top_k) + " of " + std::to_string(num_experts);
        ASSERT_EQ(actual.experts(), expected.experts()) << what;
        for (std::size_t i = 0; i < expected.weights().size(); ++i)
          ASSERT_NEAR(actual.weights()[i], expected.weights()[i], 2e-6) << what;
      }
    }
  }
}

// Of scores that are nearly equal either may be the larger.
TEST_F(RoutingTest, ASelectionBiasChoosesAmongSigmoidsAndDoesNotWeighThem) {
  for (const int num_experts : {4, 32, 64, 256}) {
    for (const bool normalize : {false, true}) {
      const Matrix logits(DType::kF32, 37, num_experts, random_, 2.0F);
      const Matrix bias(DType::kF32, 1, num_experts, random_, 0.2F);
      const DeviceTensor device_logits(logits.tensor()), device_bias(bias.vector());
      RouterOptions options = {.sigmoid = true, .normalize = normalize, .sum_offset = 0.25F, .scale = 2.5F};
      options.selection_bias = bias.vector();
      Routes expected(37, 4), actual(37, 4);
      ReferenceBackend().route_experts(expected.host(), logits.tensor(), options);
      options.selection_bias = device_bias.tensor();
      route_experts(context_, actual.device(), device_logits.tensor(), options);
      actual.fetch();
      const auto score = [&](std::size_t i, std::int32_t expert) {
        return 1 / (1 + std::exp(-logits.at(static_cast<std::int64_t>(i) / 4, expert)));
      };
      for (std::size_t i = 0; i < expected.weights().size(); ++i) {
        const std::int32_t chosen = actual.experts()[i], other = expected.experts()[i];
        ASSERT_NEAR(score(i, chosen) + bias.at(0, chosen), score(i, other) + bias.at(0, other), 1e-6);
        double total = 0.25;
        for (std::size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) total += score(i, actual.experts()[j]);
        ASSERT_NEAR(actual.weights()[i], 2.5 * score(i, chosen) / (normalize ? total : 1.0), 2e-6);
      }
    }
  }
}

TEST_F(RoutingTest, TakesTheFirstOfEquals) {
  const Matrix logits(DType::kF32, 50, 128, random_);
  auto* values = logits.tensor().data_as<float>();
  for (int i = 0; i < 50 * 128; ++i) values[i] = std::round(2 * values[i]) / 2;  // zeros of both signs too
  std::fill_n(values, 128, -std::numeric_limits<float>::infinity());
  values[77] = 0;
  const DeviceTensor device_logits(logits.tensor());
  Routes expected(50, 8), actual(50, 8);
  ReferenceBackend().route_experts(expected.host(), logits.tensor(), {});
  route_experts(context_, actual.device(), device_logits.tensor(), {});
  actual.fetch();
  EXPECT_EQ(actual.experts(), expected.experts());
  EXPECT_EQ(actual.weights()[0], 1.0F);
}

// Sums of the product are in another order, so that near logits may change places.
TEST_F(RoutingTest, WithTheRoutersProductIsThatOfTheReference) {
  if (!is_hopper()) GTEST_SKIP() << "the kernel is Hopper's";
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int num_experts : {1, 8, 31, 128, 130, 512}) {
      for (const std::int64_t hidden : {8, 264, 2048, 4104}) {
        const int top_k = std::min(num_experts, 8);
        const int tokens = 1 + num_experts % 8;
        const Matrix x(dtype, tokens, hidden, random_), router(dtype, num_experts, hidden, random_, 0.1F);
        const DeviceTensor device_x(x.tensor()), device_router(router.tensor());
        const Matrix logits(DType::kF32, tokens, num_experts, random_);
        for (int t = 0; t < tokens; ++t) {
          for (int e = 0; e < num_experts; ++e) {
            double sum = 0;
            for (std::int64_t i = 0; i < hidden; ++i) sum += x.at(t, i) * router.at(e, i);
            logits.tensor().rows(t, 1).data_as<float>()[e] = static_cast<float>(sum);
          }
        }
        Routes expected(tokens, top_k), actual(tokens, top_k);
        ReferenceBackend().route_experts(expected.host(), logits.tensor(), {});
        ASSERT_TRUE(routing_linear_supports(device_x.tensor(), device_router.tensor()));
        routing_linear(context_, actual.device(), device_x.tensor(), device_router.tensor(), {});
        actual.fetch();
        const std::string what = std::to_string(num_experts) + " experts of " + std::to_string(hidden);
        for (std::size_t i = 0; i < expected.weights().size(); ++i) {
          ASSERT_NEAR(actual.weights()[i], expected.weights()[i], 2e-5) << what;
          const auto token = static_cast<std::int64_t>(i) / top_k;
          ASSERT_NEAR(logits.at(token, actual.experts()[i]), logits.at(token, expected.experts()[i]), 1e-4)
              << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
