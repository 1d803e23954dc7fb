// What quantised checkpoints hold, as values: small matrices whose values are known, and what is refused.
// Whole models are those of tests/engine/quantized_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantized_file.h"
#include "expect_error.h"

namespace quire {
namespace {

std::vector<float> dequantize(const WeightGroup& group) {
  const WeightTensorPtr values = dequantized(group);
  std::vector<float> out(static_cast<std::size_t>(values->rows() * values->cols()));
  values->read_rows(0, Tensor(out.data(), DType::kF32, {values->rows(), values->cols()}));
  return out;
}

// [rows, cols] of value(row, column).
std::vector<float> matrix_of(int rows, int cols, const std::function<float(int, int)>& value) {
  std::vector<float> values;
  for (int row = 0; row < rows; ++row)
    for (int col = 0; col < cols; ++col) values.push_back(value(row, col));
  return values;
}

template <typename T>
std::vector<T> filled(std::size_t n, const std::function<T(std::size_t)>& value) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = value(i);
  return values;
}

std::vector<Float16> halves(const std::vector<float>& values) {
  std::vector<Float16> result;
  for (const float value : values) result.push_back(from_float<Float16>(value));
  return result;
}

constexpr const char* kFp8 = R"({"quant_method": "fp8", "weight_block_size": [4, 16]})";

std::string gptq_config(const std::string& more = "") {
  return R"({"quant_method": "gptq", "bits": 4, "group_size": 16)" + more + "}";
}

std::string packed_config(const std::string& weights, const std::string& layout = "pack-quantized") {
  return R"({"quant_method": "compressed-tensors", "format": ")" + layout +
         R"(", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {)" + weights + "}}}}";
}

TEST(QuantizationTest, Fp8BlocksAreCutShortAtTheEdges) {
  QuantizedFile file;
  file.add("q.weight", "F8_E4M3", {6, 24}, std::string(6 * 24, '\x38'))  // ones
      .add("q.weight_scale_inv", "BF16", {2, 2}, std::vector<std::uint16_t>{0x3F80, 0x4000, 0x4040, 0x4080});
  QuantizedWeights weights = file.open(kFp8);
  const WeightGroup group = weights.take_linear("q", 6, 24);
  EXPECT_EQ(group.format.scale, ScaleType::kF32);
  EXPECT_EQ(dequantize(group), matrix_of(6, 24, [](int row, int col) {
              return static_cast<float>(1 + 2 * (row / 4) + col / 16);
            }));
  EXPECT_TRUE(weights.unclaimed().empty());
}

TEST(QuantizationTest, WhatIsNotConvertedIsPlain) {
  QuantizedFile file;
  const std::vector<float> ones(6 * 24, 1);
  file.add("model.a.weight", "F32", {6, 24}, ones)
      .add("b.weight", "F8_E4M3", {6, 24}, std::string(6 * 24, '\x38'))
      .add("b.weight_scale_inv", "F32", {2, 2}, std::vector<float>(4, 1))
      .add("b.input_scale", "F32", {}, std::vector<float>{2})
      .add("c.k_scale", "F32", {}, std::vector<float>{2});
  QuantizedWeights weights =
      file.open(R"({"quant_method": "fp8", "weight_block_size": [4, 16], "modules_to_not_convert": ["b"]})");
  EXPECT_TRUE(weights.take_linear("a", 6, 24).format.is_plain());
  // The list counts, with and without the outer name.
  expect_error([&] { weights.take_linear("model.b", 6, 24); }, {"\"b.weight\"", "F8_E4M3"});
  EXPECT_EQ(weights.unclaimed(), (std::vector<std::string>{"b.weight", "b.weight_scale_inv"}));
}

// Codes that count up, zero points 3, of which v1 stores 2; scales of a half and one.
QuantizedFile& add_gptq(QuantizedFile& file, std::uint32_t zeros) {
  std::vector<std::uint32_t> words;
  for (std::uint32_t word = 0; word < 4; ++word)
    for (std::uint32_t row = 0; row < 8; ++row) words.push_back(0x76543210U + 0x11111111U * (word + row));
  return file.add("q.qweight", "I32", {4, 8}, words)
      .add("q.qzeros", "I32", {2, 1}, std::vector<std::uint32_t>(2, zeros))
      .add("q.scales", "F16", {2, 8},
           halves(matrix_of(2, 8, [](int group, int) { return group == 0 ? 0.5F : 1; })));
}

// Of column c of row r; no carry reaches a code below 15.
float gptq_code(int row, int col) {
  const std::uint32_t word = 0x76543210U + 0x11111111U * static_cast<std::uint32_t>(col / 8 + row);
  return static_cast<float>(word >> (4 * (col % 8)) & 15U);
}

TEST(QuantizationTest, GptqTakesOneFromZeroPointsInVersionOneAlone) {
  for (const bool is_v1 : {true, false}) {
    QuantizedFile file;
    // The lowest zero point of 0 was stored as 15, with a borrow from the next.
    add_gptq(file, is_v1 ? 0x22222220U - 0x00000001U : 0x33333330U + 0x1U);
    const std::string version = is_v1 ? "" : R"(, "checkpoint_format": "gptq_v2")";
    const WeightGroup group = file.open(gptq_config(R"(, "sym": false)" + version)).take_linear("q", 8, 32);
    EXPECT_EQ(group.format.offset, OffsetType::kZero);
    const auto zero_of = [&](int row) {
      return is_v1      ? static_cast<float>((0x2222221FU + 0x11111111U) >> (4 * row) & 15U)
             : row == 0 ? 1.0F
                        : 3.0F;
    };
    EXPECT_EQ(dequantize(group), matrix_of(8, 32, [&](int row, int col) {
                return (gptq_code(row, col) - zero_of(row)) * (col < 16 ? 0.5F : 1);
              }));
  }
}

// AutoGPTQ writes biases that no layer asks for.
TEST(QuantizationTest, BiasesOfZerosThatNobodyTakesAreLeftOut) {
  QuantizedFile file;
  add_gptq(file, 0x22222222U)
      .add("q.bias", "F16", {8}, std::vector<std::uint16_t>(8, 0))
      .add("r.qweight", "I32", {1, 1}, std::vector<std::uint32_t>(1))
      .add("r.bias", "F16", {1}, std::vector<std::uint16_t>(1, 0x3C00))
      .add("s.bias", "F16", {1}, std::vector<std::uint16_t>(1, 0));
  QuantizedWeights weights = file.open(gptq_config(R"(, "sym": false)"));
  weights.take_linear("q", 8, 32);
  EXPECT_EQ(weights.unclaimed(), (std::vector<std::string>{"r.bias", "r.qweight", "s.bias"}));
}

TEST(QuantizationTest, GptqWithoutZeroPointsMustHaveThemInTheMiddle) {
  QuantizedFile file;
  add_gptq(file, 0x77777777U);
  const WeightGroup group = file.open(gptq_config()).take_linear("q", 8, 32);
  EXPECT_EQ(group.format.offset, OffsetType::kNone);
  EXPECT_EQ(dequantize(group)[1 * 32 + 17], gptq_code(1, 17) - 8);
  QuantizedFile other;
  add_gptq(other, 0x77777778U);
  expect_error([&] { dequantize(other.open(gptq_config()).take_linear("q", 8, 32)); },
               {"\"q.qzeros\"", "zero point 9", "8"});
}

TEST(QuantizationTest, GptqColumnsStandInTheOrderOfTheirGroups) {
  QuantizedFile file;
  const auto odd_first = [](std::size_t col) { return static_cast<std::int32_t>(col % 2 == 0); };
  add_gptq(file, 0x77777777U).add("q.g_idx", "I32", {32}, filled<std::int32_t>(32, odd_first));
  const WeightGroup group = file.open(gptq_config(R"(, "desc_act": true)")).take_linear("q", 8, 32);
  EXPECT_TRUE(group.format.is_ordered);
  EXPECT_EQ(dequantize(group), matrix_of(8, 32, [](int row, int col) {
              return (gptq_code(row, col) - 8) * (col % 2 == 1 ? 0.5F : 1);
            }));

  QuantizedFile uneven;
  add_gptq(uneven, 0x77777777U).add("q.g_idx", "I32", {32}, filled<std::int32_t>(32, [](std::size_t col) {
                                      return col < 15 ? 0 : 1;
                                    }));
  expect_error([&] { uneven.open(gptq_config()).take_linear("q", 8, 32); }, {"\"q.g_idx\"", "16 columns"});
  QuantizedFile negative;
  add_gptq(negative, 0x77777777U).add("q.g_idx", "I32", {32}, std::vector<std::int32_t>(32, -1));
  expect_error([&] { negative.open(gptq_config()).take_linear("q", 8, 32); }, {"\"q.g_idx\"", "-1"});
}

TEST(QuantizationTest, GptqModulesDifferByPatterns) {
  QuantizedFile file;
  add_gptq(file, 0x77777777U);
  file.add("p.weight", "F16", {8, 32}, halves(std::vector<float>(256, 2)));
  const auto open = [&](const std::string& dynamic) {
    return file.open(gptq_config(R"(, "dynamic": {)" + dynamic + "}"));
  };
  expect_error([&] { open(R"("-:q": {})").take_linear("q", 8, 32); }, {"q.weight"});
  EXPECT_TRUE(open(R"("-:.*p$": {})").take_linear("p", 8, 32).format.is_plain());
  for (const char* key : {"+:q", "q", "+:model\\\\.q"}) {
    expect_error([&] { open(R"(")" + std::string(key) + R"(": {"bits": 8})").take_linear("q", 8, 32); },
                 {"q.qweight", "[8, 8]"});
  }
  EXPECT_EQ(open(R"("+:.q": {"bits": 8})").take_linear("q", 8, 32).format.bits, 4);
  expect_error([&] { open(R"("+:q": {"bits": 8}, "-:.*": {})").take_linear("q", 8, 32); },
               {"dynamic", "\"q\""});
  expect_error([&] { open(R"("+:(": {})"); }, {"dynamic", "regular expression"});
}

TEST(QuantizationTest, AwqColumnsStandInTheirOrderInAWord) {
  // Nibble n of a word is output kOutputs[n].
  constexpr int kOutputs[] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto word_of = [&](const std::function<int(int)>& code) {
    std::uint32_t word = 0;
    for (int n = 0; n < 8; ++n) word |= static_cast<std::uint32_t>(code(kOutputs[n])) << (4 * n);
    return word;
  };
  QuantizedFile file;
  std::vector<std::uint32_t> words;
  for (int col = 0; col < 32; ++col) words.push_back(word_of([&](int row) { return (row + col) % 16; }));
  file.add("q.qweight", "I32", {32, 1}, words)
      .add("q.qzeros", "I32", {2, 1}, std::vector<std::uint32_t>(2, word_of([](int row) { return row; })))
      .add("q.scales", "F16", {2, 8},
           halves(matrix_of(2, 8, [](int group, int row) { return static_cast<float>(1 + group + row); })));
  const WeightGroup group =
      file.open(R"({"quant_method": "awq", "bits": 4, "group_size": 16})").take_linear("q", 8, 32);
  EXPECT_EQ(dequantize(group), matrix_of(8, 32, [](int row, int col) {
              return static_cast<float>(((row + col) % 16 - row) * (1 + col / 16 + row));
            }));
}

TEST(QuantizationTest, PackedIntegersOfTwoBitsWithZeroPoints) {
  QuantizedFile file;
  // Code of column c: c mod 4; zero point of row r: r mod 4.
  file.add("q.weight_packed", "I32", {4, 2}, std::vector<std::uint32_t>(8, 0xE4E4E4E4U))
      .add("q.weight_shape", "I64", {2}, std::vector<std::int64_t>{4, 32})
      .add("q.weight_scale", "BF16", {4, 2}, std::vector<std::uint16_t>(8, 0x4000))
      .add("q.weight_zero_point", "I32", {1, 2}, std::vector<std::uint32_t>(2, 0xE4U));
  QuantizedWeights weights = file.open(packed_config(
      R"("num_bits": 2, "type": "int", "strategy": "group", "group_size": 16, "symmetric": false)"));
  EXPECT_EQ(dequantize(weights.take_linear("q", 4, 32)),
            matrix_of(4, 32, [](int row, int col) { return 2.0F * static_cast<float>(col % 4 - row); }));
  EXPECT_TRUE(weights.unclaimed().empty());
}

TEST(QuantizationTest, Int8ChannelsWithZeroPoints) {
  QuantizedFile file;
  file.add("q.weight", "I8", {3, 20},
           filled<std::int8_t>(
               60, [](std::size_t i) { return static_cast<std::int8_t>(static_cast<int>(i) * 4 - 128); }))
      .add("q.weight_scale", "F32", {3, 1}, std::vector<float>{1, 2, 3})
      .add("q.weight_zero_point", "I8", {3, 1}, std::vector<std::int8_t>{-128, 0, 127})
      .add("q.input_scale", "F32", {1}, std::vector<float>{1})
      .add("q.input_zero_point", "I8", {1}, std::vector<std::int8_t>{1});
  QuantizedWeights weights = file.open(packed_config(
      R"("num_bits": 8, "type": "int", "strategy": "channel", "symmetric": false)", "int-quantized"));
  constexpr float kZeros[] = {-128, 0, 127};
  EXPECT_EQ(dequantize(weights.take_linear("q", 3, 20)), matrix_of(3, 20, [&](int row, int col) {
              const auto code = static_cast<float>((row * 20 + col) * 4 - 128);
              return static_cast<float>(row + 1) * code - static_cast<float>(row + 1) * kZeros[row];
            }));
  EXPECT_TRUE(weights.unclaimed().empty());
}

TEST(QuantizationTest, CompressedTensorsHaveEightBitsWhereNoneAreNamed) {
  QuantizedFile file;
  file.add("q.weight", "I8", {1, 16},
           filled<std::int8_t>(
               16, [](std::size_t i) { return static_cast<std::int8_t>(static_cast<int>(i) * 16 - 128); }))
      .add("q.weight_scale", "F32", {1, 1}, std::vector<float>{1});
  const WeightGroup group =
      file.open(packed_config(R"("type": "int", "strategy": "channel")", "int-quantized"))
          .take_linear("q", 1, 16);
  EXPECT_EQ(dequantize(group),
            matrix_of(1, 16, [](int, int col) { return static_cast<float>(col * 16 - 128); }));
}

TEST(QuantizationTest, ExpertsThatMxfp4LeavesOutArePlain) {
  const std::string expert = "model.layers.0.mlp.experts.0.down_proj";
  QuantizedFile file;
  file.add(expert + ".weight", "F32", {2, 32}, std::vector<float>(64, 3));
  const std::string left_out =
      R"({"quant_method": "mxfp4", "modules_to_not_convert": [")" + expert + R"("]})";
  EXPECT_TRUE(file.open(left_out).take_linear(expert, 2, 32).format.is_plain());
  expect_error([&] { file.open(R"({"quant_method": "mxfp4"})").take_linear(expert, 2, 32); },
               {"down_proj_blocks"});
}

TEST(QuantizationTest, Mxfp8HasAPowerOfTwoForEach32Columns) {
  QuantizedFile file;
  file.add("q.weight", "F8_E4M3", {1, 64}, std::string(64, '\x40'))  // twos
      .add("q.weight_scale", "U8", {1, 2}, std::vector<std::uint8_t>{126, 130});
  const WeightGroup group =
      file.open(packed_config(R"("num_bits": 8, "type": "float", "strategy": "group", "group_size": 32)",
                              "mxfp8-quantized"))
          .take_linear("q", 1, 64);
  EXPECT_EQ(dequantize(group), matrix_of(1, 64, [](int, int col) { return col < 32 ? 1.0F : 16.0F; }));
}

TEST(QuantizationTest, ModulesAreOfTheGroupThatNamesThem) {
  QuantizedFile file;
  for (const char* name : {"a.mlp.down", "a.mlp.up", "a.other"})
    file.add(std::string(name) + ".weight", "F8_E4M3", {2, 16}, std::string(32, '\x38'))
        .add(std::string(name) + ".weight_scale", "F32", {1}, std::vector<float>{1});
  const auto group = [](const std::string& targets, const std::string& strategy) {
    return R"({"targets": [")" + targets +
           R"("], "weights": {"num_bits": 8, "type": "float", "strategy": ")" + strategy + R"("}})";
  };
  QuantizedWeights weights = file.open(
      R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"a": )" +
      group("Linear", "channel") + R"(, "b": )" + group("a.mlp.down", "tensor") + R"(, "c": )" +
      group("re:.*mlp", "channel") + R"(, "d": )" + group("re:a\\\\.other", "tensor") + "}}");
  EXPECT_EQ(dequantize(weights.take_linear("a.mlp.down", 2, 16)), std::vector<float>(32, 1));
  EXPECT_EQ(dequantize(weights.take_linear("a.other", 2, 16)), std::vector<float>(32, 1));
  expect_error([&] { weights.take_linear("a.mlp.up", 2, 16); }, {"a.mlp.up.weight_scale", "[2, 1]"});
}

TEST(QuantizationTest, BitsAndBytesBlocksRunOverTheEndsOfRows) {
  QuantizedFile file;
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [3, 32]})";
  file.add("q.weight", "U8", {48, 1}, std::string(48, '\x12'))
      .add("q.weight.absmax", "F32", {2}, std::vector<float>{1, 10})
      .add("q.weight.quant_map", "F32", {16},
           filled<float>(16, [](std::size_t i) { return static_cast<float>(i); }))
      .add("q.weight.quant_state.bitsandbytes__nf4", "U8", {static_cast<std::int64_t>(state.size())}, state);
  QuantizedWeights weights = file.open(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})");
  EXPECT_EQ(dequantize(weights.take_linear("q", 3, 32)), matrix_of(3, 32, [](int row, int col) {
              return static_cast<float>(col % 2 == 0 ? 1 : 2) * (row < 2 ? 1.0F : 10.0F);
            }));
  EXPECT_TRUE(weights.unclaimed().empty());
  expect_error([&] { weights.take_linear("q", 32, 3); }, {"quant_state", "\"shape\""});
}

TEST(QuantizationTest, ModelOptIsFoundByItsOwnFile) {
  QuantizedFile file;
  file.add("q.weight", "U8", {2, 16}, std::string(32, '\x21'))  // 0.5, 1
      .add("q.weight_scale", "F8_E4M3", {2, 2}, std::string(4, '\x40'))
      .add("q.weight_scale_2", "F32", {}, std::vector<float>{3})
      .add("p.weight", "F8_E4M3", {2, 32}, std::string(64, '\x38'))
      .add("p.weight_scale", "F32", {2}, std::vector<float>{1, 2});
  file.dir().write("hf_quant_config.json", R"({"quantization": {"quant_algo": "MIXED_PRECISION",
      "quantized_layers": {"q": {"quant_algo": "W4A16_NVFP4"}, "p": {"quant_algo": "FP8"}}}})");
  QuantizedWeights weights = file.open("null");
  EXPECT_EQ(dequantize(weights.take_linear("q", 2, 32)),
            matrix_of(2, 32, [](int, int col) { return col % 2 == 0 ? 3.0F : 6.0F; }));
  EXPECT_EQ(dequantize(weights.take_linear("p", 2, 32)),
            matrix_of(2, 32, [](int row, int) { return static_cast<float>(1 + row); }));
  EXPECT_TRUE(weights.unclaimed().empty());
}

TEST(QuantizationTest, ModelOptsScaleOfAWholeMatrixMayHaveTwoDimensions) {
  QuantizedFile file;
  file.add("q.weight", "F8_E4M3", {2, 256}, std::string(512, '\x38'))
      .add("q.weight_scale", "F32", {1, 1}, std::vector<float>{3});
  QuantizedWeights weights = file.open(R"({"quant_method": "modelopt", "quant_algo": "FP8"})");
  EXPECT_EQ(dequantize(weights.take_linear("q", 2, 256)), matrix_of(2, 256, [](int, int) { return 3.0F; }));
}

TEST(QuantizationTest, WhereTheCacheAloneIsQuantisedWeightsArePlain) {
  QuantizedFile own;
  own.add("q.weight", "F32", {2, 16}, std::vector<float>(32, 1));
  own.dir().write("hf_quant_config.json",
                  R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})");
  EXPECT_EQ(find_quantization(ModelConfig::from_json("{}", "config.json"), own.dir().path()), nullptr);
  QuantizedFile file;
  file.add("q.weight", "F32", {2, 16}, std::vector<float>(32, 1));
  QuantizedWeights weights = file.open(R"({"quant_method": "compressed-tensors", "config_groups": {},
      "kv_cache_scheme": {"num_bits": 8, "type": "float"}})");
  EXPECT_TRUE(weights.take_linear("q", 2, 16).format.is_plain());
}

TEST(QuantizationTest, WeightsThatAreOnlySparseAndStoredInFullArePlain) {
  QuantizedFile file;
  file.add("q.weight", "F32", {2, 16}, std::vector<float>(32, 1));
  QuantizedWeights weights = file.open(R"({"quant_method": "compressed-tensors",
      "sparsity_config": {"format": "dense", "sparsity_structure": "2:4"}})");
  EXPECT_TRUE(weights.take_linear("q", 2, 16).format.is_plain());
}

TEST(QuantizationTest, ScalesThatAreNotFiniteAreRefusedAsTheyAreRead) {
  for (const auto& [dtype, scale] :
       {std::pair<std::string, std::string>{"F32", std::string("\0\0\x80\x7F", 4)},
        {"F16", std::string("\0\x7C", 2)},
        {"BF16", std::string("\xC0\x7F", 2)},
        {"F8_E8M0", "\xFF"}}) {
    QuantizedFile file;
    file.add("q.weight", "F8_E4M3", {1, 16}, std::string(16, '\x38'))
        .add("q.weight_scale_inv", dtype, {1, 1}, scale);
    QuantizedWeights weights = file.open(kFp8);
    const WeightGroup group = weights.take_linear("q", 1, 16);
    expect_error([&] { dequantize(group); }, {"q.weight_scale_inv", "not finite"});
  }
}

// The experts of gpt-oss against a decoding of the same bytes that shares no code.
TEST(QuantizationTest, GptOssExpertsAreThoseOfTheFile) {
  const std::filesystem::path directory = QUIRE_SOURCE_DIR "/../shared/conformance/quantised/q-gptoss-mxfp4";
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << directory.string() << " is not there";
  const ModelConfig config = ModelConfig::from_file(directory / "config.json");
  QuantizedWeights weights(directory, find_quantization(config, directory));
  const SafetensorsFile file(directory / "model.safetensors");
  const auto bytes_of_tensor = [&](const std::string& name) {
    std::vector<std::uint8_t> bytes(file.tensor(name).bytes);
    file.read(name, 0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  const std::string experts = "model.layers.1.mlp.experts.";
  const int hidden = 128, wide = 96;
  const auto expect_equal = [&](const std::string& tensor, const std::string& part, int rows, int cols,
                                const std::function<int(int)>& row_in_file) {
    const auto blocks = bytes_of_tensor(experts + tensor + "_blocks");
    const auto scales = bytes_of_tensor(experts + tensor + "_scales");
    EXPECT_EQ(dequantize(weights.take_linear(experts + part, rows, cols)),
              matrix_of(rows, cols,
                        [&](int row, int col) {
                          constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
                          const int at = row_in_file(row) * cols + col;
                          const int code = blocks[static_cast<std::size_t>(at / 2)] >> (at % 2 * 4) & 15;
                          const float value = kMagnitudes[code & 7] * (code < 8 ? 1.0F : -1.0F);
                          return std::ldexp(value, scales[static_cast<std::size_t>(at / 32)] - 127);
                        }))
        << part;
  };
  expect_equal("gate_up_proj", "3.gate_proj", wide, hidden, [&](int row) { return (3 * wide + row) * 2; });
  expect_equal("gate_up_proj", "2.up_proj", wide, hidden, [&](int row) { return (2 * wide + row) * 2 + 1; });
  expect_equal("down_proj", "1.down_proj", hidden, wide, [&](int row) { return hidden + row; });
  EXPECT_TRUE(weights.take_linear("model.layers.1.mlp.router", 4, hidden).format.is_plain());
  expect_error([&] { weights.take_linear(experts + "4.gate_proj", wide, hidden); },
               {"gate_up_proj_blocks", "4"});
}

TEST(QuantizationTest, NamesAreMatchedByComponentsOrByRegularExpressions) {
  const auto matches = [](const std::string& entry, std::string name) {
    const ConfigObject config(R"({"ignore": [")" + entry + R"("]})", "config.json");
    return ModuleList(config, "ignore").contains({&name, 1});
  };
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_TRUE(matches("lm_head", "model.lm_head"));
  EXPECT_TRUE(matches("layers.0.mlp", "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(matches("layers.0.mlp.gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(matches("ayers.0", "layers.0"));
  EXPECT_TRUE(matches("model.layers.*.self_attn", "model.layers.11.self_attn.q_proj"));
  EXPECT_TRUE(matches("*router*", "model.layers.0.router_1.x"));
  EXPECT_TRUE(matches("model.layers.1*", "model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(matches("model.layers.1", "model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_TRUE(matches("re:.*q_proj$", "model.q_proj"));
  EXPECT_FALSE(matches("re:q_proj", "model.q_proj"));
  EXPECT_TRUE(matches("re:model.q", "model.q_proj"));
  expect_error([&] { matches("re:(a|aa)+$", std::string(200, 'a') + "b"); }, {"cannot be matched"});
  expect_error([&] { matches("re:" + std::string(100, '(') + std::string(100, ')'), "a"); },
               {"config.json", "ignore", "regular expression"});
  expect_error([&] { matches("re:" + std::string(5000, 'a'), "a"); }, {"ignore", "4096"});
}

TEST(QuantizationTest, WhatCannotBeReadIsRefusedByName) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error(
        [&] {
          find_quantization(ModelConfig::from_json(R"({"quantization_config": )" + text + "}", "config.json"),
                            "");
        },
        parts);
  };
  refused(R"({"quant_method": "quip"})", {"config.json", "quant_method", "\"quip\"", "gptq", "mxfp4"});
  refused(R"({"bits": 4})", {"quant_method", "is missing"});
  refused(R"({"quant_method": "fp8", "fmt": "e5m2"})", {"fmt", "e4m3", "e5m2"});
  refused(R"({"quant_method": "fp8", "weight_block_size": [128]})", {"weight_block_size"});
  refused(R"({"quant_method": "gptq"})", {"bits"});
  refused(R"({"quant_method": "gptq", "bits": 3})", {"bits", "3", "2, 4 and 8"});
  refused(R"({"quant_method": "gptq", "bits": 4, "group_size": 0})", {"group_size"});
  refused(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})", {"marlin", "gptq_v2"});
  refused(R"({"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"})", {"pack_dtype", "int16"});
  refused(R"({"quant_method": "awq", "bits": 4, "version": "gemv"})", {"version", "gemv", "gemm"});
  refused(R"({"quant_method": "awq", "bits": 8})", {"bits", "4"});
  refused(R"({"quant_method": "awq", "bits": 4, "zero_point": false})", {"zero_point"});
  refused(R"({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})", {"quant_algo", "W4A8_AWQ", "NVFP4"});
  refused(R"({"quant_method": "compressed-tensors"})", {"config_groups"});
  refused(packed_config(R"("num_bits": 4, "strategy": "group", "group_size": 32)", "marlin-24"),
          {"marlin-24"});
  refused(packed_config(R"("num_bits": 3, "strategy": "channel")"), {"num_bits", "3", "pack-quantized"});
  refused(packed_config(R"("num_bits": 4, "strategy": "group")"), {"group_size"});
  refused(packed_config(R"("num_bits": 4, "strategy": "attn_head")"), {"strategy", "attn_head"});
  refused(packed_config(R"("num_bits": 8, "type": "int")", "float-quantized"), {"type", "float"});
  refused(packed_config(R"("num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 32)",
                        "nvfp4-pack-quantized"),
          {"group_size", "16"});
  for (const char* key : {"sparsity_config", "transform_config"})
    refused(R"({"quant_method": "compressed-tensors", ")" + std::string(key) + R"(": {"format": "x"}})",
            {key});
}

}  // namespace
}  // namespace quire
