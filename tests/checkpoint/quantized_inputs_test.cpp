// How products round their inputs, as quantised checkpoints say it.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "checkpoint/quantized_file.h"
#include "expect_error.h"

namespace quire {
namespace {

// A matrix of E4M3 or int8, [4, 32], with these scales.
InputFormat input_of(const std::string& config, std::string_view dtype, const std::string& scale,
                     std::vector<std::int64_t> shape, std::optional<float> input_scale = {},
                     bool weight_only = false) {
  QuantizedFile file;
  std::size_t count = 1;
  for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
  file.add("q.weight", dtype, {4, 32}, std::string(4 * 32, '\x38'))
      .add("q." + scale, "F32", shape, std::vector<float>(count, 1));
  if (input_scale) file.add("q.input_scale", "F32", {}, std::vector<float>{*input_scale});
  QuantizedWeights weights = file.open(config);
  const InputFormat input = settle_input(weights.take_linear("q", 4, 32), weight_only).format.input;
  EXPECT_TRUE(weights.unclaimed().empty());
  return input;
}

// Of a weight strategy, and what its group says of activations.
std::string activations_config(const std::string& strategy, const std::string& type,
                               const std::string& activations) {
  return R"({"quant_method": "compressed-tensors", "format": ")" + type +
         R"(-quantized", "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": ")" +
         type + R"(", "strategy": )" + strategy + R"(}, "input_activations": )" + activations + "}}}";
}

constexpr InputFormat kNotRounded;
constexpr InputFormat kE4m3Tokens = {.code = InputFormat::Code::kE4m3};
constexpr InputFormat kE4m3Blocks = {.code = InputFormat::Code::kE4m3, .in_blocks = true};
constexpr InputFormat kE4m3Static = {.code = InputFormat::Code::kE4m3, .scale = 0.5F};

TEST(QuantizedInputsTest, Fp8SaysHowInputsAreRounded) {
  EXPECT_EQ(input_of(R"({"quant_method": "fp8", "weight_block_size": [4, 16]})", "F8_E4M3",
                     "weight_scale_inv", {1, 2}),
            kE4m3Blocks);
  const std::string tensor = R"({"quant_method": "fp8", "activation_scheme": )";
  EXPECT_EQ(input_of(tensor + R"("dynamic"})", "F8_E4M3", "weight_scale", {}), kE4m3Tokens);
  EXPECT_EQ(input_of(tensor + R"("dynamic"})", "F8_E4M3", "weight_scale", {}, 0.5F), kE4m3Tokens);
  const std::string fixed = tensor + R"("static"})";
  EXPECT_EQ(input_of(fixed, "F8_E4M3", "weight_scale", {}, 0.5F), kE4m3Static);
  for (const float bad : {0.0F, -1.0F, INFINITY})
    EXPECT_EQ(input_of(fixed, "F8_E4M3", "weight_scale", {}, bad, true), kNotRounded);
  for (const float bad : {0.0F, -1.0F})
    expect_error([&] { input_of(fixed, "F8_E4M3", "weight_scale", {}, bad); }, {"q.input_scale", "positive"});
  expect_error([&] { input_of(fixed, "F8_E4M3", "weight_scale", {}, INFINITY); },
               {"q.input_scale", "finite"});
  expect_error([&] { input_of(fixed, "F8_E4M3", "weight_scale", {}); }, {"q.input_scale"});
  expect_error([&] { input_of(tensor + R"("none"})", "F8_E4M3", "weight_scale", {}); },
               {"activation_scheme", "static or dynamic"});
  expect_error(
      [&] {
        input_of(tensor + R"("static", "weight_block_size": [4, 16]})", "F8_E4M3", "weight_scale_inv",
                 {1, 2});
      },
      {"activation_scheme", "weight_block_size"});
}

TEST(QuantizedInputsTest, CompressedTensorsSayHowInputsAreRounded) {
  const std::string tokens = R"({"num_bits": 8, "dynamic": true, "strategy": "token", "type": )";
  const auto of_floats = [&](const std::string& activations) {
    return input_of(activations_config(R"("channel")", "float", activations), "F8_E4M3", "weight_scale",
                    {4, 1}, 0.5F);
  };
  EXPECT_EQ(of_floats(tokens + R"("float"})"), kE4m3Tokens);
  EXPECT_EQ(of_floats(R"({"num_bits": 8, "strategy": "tensor", "type": "float"})"), kE4m3Static);
  EXPECT_EQ(of_floats(R"({"num_bits": 8, "dynamic": true, "strategy": "tensor", "type": "float"})"),
            kNotRounded);
  EXPECT_EQ(of_floats(tokens + R"("int"})"), kNotRounded);
  EXPECT_EQ(of_floats("null"), kNotRounded);
  for (const int size : {16, 8}) {
    const std::string blocks = activations_config(
        R"("block", "block_structure": [4, 16])", "float",
        R"({"num_bits": 8, "dynamic": true, "strategy": "group", "type": "float", "group_size": )" +
            std::to_string(size) + "}");
    EXPECT_EQ(input_of(blocks, "F8_E4M3", "weight_scale", {1, 2}), size == 16 ? kE4m3Blocks : kNotRounded);
  }
  const auto of_ints = [&](const std::string& activations) {
    return input_of(activations_config(R"("channel")", "int", activations), "I8", "weight_scale", {4, 1});
  };
  EXPECT_EQ(of_ints(tokens + R"("int"})").code, InputFormat::Code::kI8);
  EXPECT_EQ(of_ints(tokens + R"("int", "symmetric": false})"), kNotRounded);
  EXPECT_EQ(of_ints(tokens + R"("float"})"), kNotRounded);
}

TEST(QuantizedInputsTest, ModelOptSaysHowInputsAreRounded) {
  const std::string config = R"({"quant_method": "modelopt", "quant_algo": ")";
  EXPECT_EQ(input_of(config + R"(FP8"})", "F8_E4M3", "weight_scale", {}, 0.5F), kE4m3Static);
  EXPECT_EQ(input_of(config + R"(FP8"})", "F8_E4M3", "weight_scale", {}), kNotRounded);
  EXPECT_EQ(input_of(config + R"(FP8_PER_CHANNEL_PER_TOKEN"})", "F8_E4M3", "weight_scale", {4}), kE4m3Tokens);
  EXPECT_EQ(input_of(config + R"(FP8_PB_WO"})", "F8_E4M3", "weight_scale", {1, 1}), kNotRounded);
}

}  // namespace
}  // namespace quire
