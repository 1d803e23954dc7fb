#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "checkpoint/gguf/gguf_weights.h"
#include "checkpoint/gguf_builder.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

class GgufTest : public ::testing::Test {
 protected:
  GgufModel open(const GgufBuilder& builder, std::string_view name = "model.gguf") const {
    return GgufModel(folder_.write(name, builder.bytes()));
  }
  void expect_refused(const GgufBuilder& builder, std::initializer_list<std::string_view> parts) const {
    expect_error([&] { open(builder); }, parts);
  }

  // A model of one layer, of 4 heads of 8 dimensions, without its weights.
  static GgufBuilder sizes(const std::string& architecture) {
    GgufBuilder builder;
    builder.add("general.architecture", architecture);
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, std::uint32_t>>{{"block_count", 1},
                                                            {"context_length", 64},
                                                            {"embedding_length", 32},
                                                            {"feed_forward_length", 64},
                                                            {"attention.head_count", 4},
                                                            {"attention.head_count_kv", 2}})
      builder.add(architecture + "." + key, value);
    builder.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-5F);
    return builder.tensor("token_embd.weight", {3, 32}, counted(96));
  }

  static std::vector<float> counted(std::size_t n) {
    std::vector<float> values(n);
    std::iota(values.begin(), values.end(), 1.0F);
    return values;
  }

  TempDir folder_;
};

std::vector<float> read_all(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  tensor.read_rows(0, Tensor(values.data(), DType::kF32, {tensor.rows(), tensor.cols()}));
  return values;
}

TEST_F(GgufTest, KeysHaveTheirValues) {
  GgufBuilder builder;
  builder.version = 2;
  builder.add("a", std::uint32_t{7}).add("b", 0.5F).add("c", true).add("d", "text");
  builder.add("e", std::vector<std::string>{"x", ""}).add("f", std::vector<std::int32_t>{3, 3, 3});
  builder.add("g", std::vector<std::int32_t>{3, 4});
  const GgufModel model = open(builder);
  const GgufKeys& keys = model.keys();
  EXPECT_EQ(keys.find_int("a"), 7);
  EXPECT_EQ(keys.find_double("a"), 7.0);
  EXPECT_EQ(keys.find_double("b"), 0.5);
  EXPECT_EQ(keys.find_bool("c"), true);
  EXPECT_EQ(keys.find_string("d"), "text");
  EXPECT_EQ(keys.get_strings("e"), (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(keys.get_doubles("f"), (std::vector<double>{3, 3, 3}));
  EXPECT_EQ(keys.find_int("f"), 3);
  EXPECT_EQ(keys.find_int("z"), std::nullopt);
  expect_error([&] { keys.find_int("g"); }, {"\"g\"", "differs by layer"});
  expect_error([&] { keys.find_int("d"); }, {"model.gguf", "\"d\"", "whole number"});
  expect_error([&] { keys.find_int("a", {.min = 8, .max = 9}); }, {"not 7", "from 8 to 9"});
  expect_error([&] { keys.find_string("a"); }, {"must be a string"});
  expect_error([&] { keys.require_double("z"); }, {"\"z\"", "is missing"});
}

TEST_F(GgufTest, WhatStandsTwiceIsRefused) {
  expect_refused(GgufBuilder().add("a", true).add("a", true), {"\"a\"", "twice"});
  const std::vector<float> one = {1};
  expect_refused(GgufBuilder().tensor("t", {1}, one).tensor("t", {1}, one), {"\"t\"", "twice"});
}

TEST_F(GgufTest, AlignmentIsAPowerOfTwo) {
  expect_refused(GgufBuilder().add("general.alignment", std::uint32_t{24}), {"general.alignment", "24"});
  expect_refused(GgufBuilder()
                     .add("general.alignment", std::uint32_t{64})
                     .tensor("s", {1}, counted(1))
                     .tensor("t", {1}, counted(1)),
                 {"\"t\"", "byte 32"});
}

TEST_F(GgufTest, AFileThatIsCutAnywhereIsRefused) {
  const std::string bytes = sizes("llama").add("list", std::vector<std::string>{"a", "b"}).bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(GgufModel(folder_.write("cut.gguf", bytes.substr(0, size))), Error) << size;
}

TEST_F(GgufTest, ASplitModelIsOneModel) {
  const auto part = [](int number, const char* tensor) {
    GgufBuilder builder;
    builder.add("split.no", static_cast<std::uint32_t>(number)).add("split.count", std::uint32_t{2});
    if (number == 0) builder.add("name", "first");
    return builder.tensor(tensor, {2}, counted(2)).bytes();
  };
  folder_.write("m-00001-of-00002.gguf", part(0, "a"));
  const auto second = folder_.write("m-00002-of-00002.gguf", part(1, "b"));
  const GgufModel model(second);
  EXPECT_EQ(model.keys().find_string("name"), "first");
  ASSERT_TRUE(model.find("a") != nullptr && model.find("b") != nullptr);
  EXPECT_EQ(model.find("a")->bytes + model.find("b")->bytes, 16);
  folder_.write("m-00002-of-00002.gguf", part(1, "a"));
  expect_error([&] { GgufModel{second}; }, {"\"a\"", "is also in"});
  folder_.write("m-00002-of-00002.gguf", part(0, "b"));
  expect_error([&] { GgufModel{second}; }, {"split.no"});
  std::filesystem::remove(second);
  expect_error([&] { GgufModel{folder_.path() / "m-00001-of-00002.gguf"}; }, {"m-00002-of-00002.gguf"});
}

TEST_F(GgufTest, RowsOfHeadsAreInOrderAgain) {
  GgufBuilder builder = sizes("llama");
  // As the file has them: of each head rows 0, 4, 1, 5, 2, 6, 3, 7.
  std::vector<float> bias;
  for (int head = 0; head < 4; ++head)
    for (int i = 0; i < 4; ++i)
      for (int part = 0; part < 2; ++part) bias.push_back(static_cast<float>(8 * head + 4 * part + i + 1));
  std::vector<float> weight;
  for (const float value : bias) weight.insert(weight.end(), 32, value);
  builder.tensor("blk.0.attn_q.bias", {32}, bias).tensor("blk.0.attn_q.weight", {32, 32}, weight);
  const auto model = std::make_shared<const GgufModel>(open(builder));
  GgufWeights weights(model, read_gguf_config(*model).layout);
  const std::string prefix = "model.layers.0.self_attn.q_proj";
  EXPECT_EQ(read_all(*weights.take(prefix + ".bias", {32})), counted(32));
  const WeightGroup group = weights.take_linear(prefix, 32, 32);
  const std::vector<float> rows = read_all(*group.tensors.front().tensor);
  for (std::size_t row = 0; row < 32; ++row) EXPECT_EQ(rows[32 * row], static_cast<float>(row + 1));
  EXPECT_EQ(weights.unclaimed(), std::vector<std::string>{"token_embd.weight"});
  EXPECT_FALSE(weights.contains(prefix + ".scale"));
  expect_error([&] { weights.take_linear("model.layers.0.mlp.up_proj", 64, 32); }, {"blk.0.ffn_up.weight"});
  expect_error([&] { weights.take_linear("lm_head", 3, 32); }, {"output.weight"});
}

TEST_F(GgufTest, RowsThatAreNoPairsInEachHeadAreRefused) {
  GgufBuilder builder = sizes("llama");
  builder.tensor("blk.0.attn_q.bias", {12}, counted(12));
  const auto model = std::make_shared<const GgufModel>(open(builder));
  GgufWeights weights(model, read_gguf_config(*model).layout);
  expect_error([&] { weights.take("model.layers.0.self_attn.q_proj.bias", {12}); },
               {"blk.0.attn_q.bias", "12 rows", "4 heads"});
}

TEST_F(GgufTest, ExpertsAreRowsOfOneTensor) {
  GgufBuilder builder = sizes("qwen3moe");
  for (const char* key : {"expert_count", "expert_used_count", "expert_feed_forward_length"})
    builder.add(std::string("qwen3moe.") + key, std::uint32_t{2});
  builder.tensor("blk.0.ffn_gate_exps.weight", {2, 2, 32}, counted(128));
  const auto model = std::make_shared<const GgufModel>(open(builder));
  GgufWeights weights(model, read_gguf_config(*model).layout);
  const auto expert = [&](const char* number) {
    return weights.take_linear(std::string("model.layers.0.mlp.experts.") + number + ".gate_proj", 2, 32);
  };
  EXPECT_EQ(read_all(*expert("1").tensors.front().tensor).front(), 65);
  expect_error([&] { expert("2"); }, {"blk.0.ffn_gate_exps.weight", "expert 2"});
}

// MXFP4 (OCP Microscaling Formats, 1.0, as ggml lays it out): a scale 2^(byte - 127), then the codes of 16
// elements in low nibbles, of 16 further ones in the high.
TEST_F(GgufTest, HalvesAndMxfp4StandAsTheyDo) {
  GgufBuilder builder = sizes("qwen3");
  std::string blocks;
  std::vector<float> expected;
  constexpr float kMagnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int row = 0; row < 64; ++row) {
    blocks.push_back(static_cast<char>(120 + row % 9));
    for (int i = 0; i < 16; ++i)
      blocks.push_back(static_cast<char>((row + 5 * i) % 16 | (row * 3 + i) % 16 << 4));
    for (int i = 0; i < 32; ++i) {
      const int code = i < 16 ? (row + 5 * i) % 16 : (row * 3 + i - 16) % 16;
      expected.push_back((code < 8 ? 1.0F : -1.0F) * kMagnitudes[code % 8] *
                         std::exp2(static_cast<float>(row % 9 - 7)));
    }
  }
  const std::vector<Float16> halves(64 * 32, from_float<Float16>(-1.5F));
  builder.tensor("blk.0.ffn_up.weight", {64, 32}, GgufType::kMxfp4, blocks);
  builder.tensor("blk.0.ffn_gate.weight", {64, 32}, GgufType::kF16,
                 {reinterpret_cast<const char*>(halves.data()), 2 * halves.size()});
  const auto model = std::make_shared<const GgufModel>(open(builder));
  GgufWeights weights(model, read_gguf_config(*model).layout);
  const WeightGroup gate = weights.take_linear("model.layers.0.mlp.gate_proj", 64, 32);
  EXPECT_EQ(gate.tensors.front().tensor->dtype(), DType::kF16);
  EXPECT_EQ(read_all(*gate.tensors.front().tensor), std::vector<float>(64 * 32, -1.5F));
  const WeightGroup up = weights.take_linear("model.layers.0.mlp.up_proj", 64, 32);
  const auto part = [&](std::size_t i) {
    const WeightTensor& tensor = *up.tensors.at(i).tensor;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
    tensor.read_rows(0, Tensor(bytes.data(), tensor.dtype(), {tensor.rows(), tensor.cols()}));
    return bytes;
  };
  const std::vector<std::uint8_t> codes = part(0), scales = part(1);
  EXPECT_EQ(up.format.bits, 4);
  ASSERT_EQ(codes.size(), expected.size());
  ASSERT_EQ(scales.size(), 64);
  std::vector<float> values;
  for (std::size_t i = 0; i < codes.size(); ++i)
    values.push_back(up.format.table.at(codes[i]) * std::exp2(static_cast<float>(scales[i / 32]) - 127));
  EXPECT_EQ(values, expected);
}

TEST_F(GgufTest, BiasesAreReadWhereAFamilyMayHaveThem) {
  for (const char* architecture : {"granite", "llama", "qwen3", "smollm3", "seed_oss"}) {
    GgufBuilder builder = sizes(architecture);
    builder.add(std::string(architecture) + ".attention.scale", 1.0F);  // granite's
    EXPECT_FALSE(read_gguf_config(open(builder)).config.get_bool("attention_bias", true)) << architecture;
    builder.tensor("blk.0.attn_q.bias", {32}, counted(32)).tensor("blk.0.ffn_down.bias", {32}, counted(32));
    const ModelConfig config = read_gguf_config(open(builder)).config;
    EXPECT_TRUE(config.get_bool("attention_bias", false)) << architecture;
    EXPECT_TRUE(config.get_bool("mlp_bias", false)) << architecture;
    EXPECT_FALSE(config.get_bool("attention_out_bias", true)) << architecture;
  }
}

TEST_F(GgufTest, AStretchedGemma3HasTheContextOfItsFile) {
  GgufBuilder builder = sizes("gemma3");
  builder.add("gemma3.attention.sliding_window", std::uint32_t{8});
  builder.add("gemma3.rope.scaling.type", "linear").add("gemma3.rope.scaling.factor", 8.0F);
  EXPECT_EQ(read_gguf_config(open(builder)).config.get_int("max_position_embeddings", 0), 64);
}

TEST_F(GgufTest, AWindowOf0IsNoneForPhi4) {
  GgufBuilder builder = sizes("phi3");
  builder.add("phi3.attention.sliding_window", std::uint32_t{0});
  EXPECT_FALSE(read_gguf_config(open(builder)).config.contains("sliding_window"));
}

TEST_F(GgufTest, YarnHasTheRampOfTheFile) {
  GgufBuilder builder = sizes("qwen2");
  builder.add("qwen2.rope.scaling.type", "yarn").add("qwen2.rope.scaling.factor", 4.0F);
  builder.add("qwen2.rope.scaling.original_context_length", std::uint32_t{16});
  builder.add("qwen2.rope.scaling.yarn_beta_fast", 16.0F).add("qwen2.rope.scaling.yarn_beta_slow", 2.0F);
  const auto rotary = read_gguf_config(open(builder)).config.rotary(1e4);
  EXPECT_EQ(rotary.beta_fast, 16);
  EXPECT_EQ(rotary.beta_slow, 2);
}

TEST_F(GgufTest, WhatAFamilyCannotDoIsRefusedByItsKey) {
  const auto expect_key = [&](GgufBuilder builder, std::initializer_list<std::string_view> parts) {
    const GgufModel model = open(builder);
    expect_error([&] { read_gguf_config(model); }, parts);
  };
  expect_key(GgufBuilder(), {"general.architecture", "is missing"});
  expect_key(sizes("qwen2").add("qwen2.expert_count", std::uint32_t{4}), {"qwen2.expert_count"});
  expect_key(sizes("olmo2").add("olmo2.attention.sliding_window", std::uint32_t{4}),
             {"olmo2.attention.sliding_window"});
  expect_key(sizes("llama").add("llama.attention.value_length", std::uint32_t{4}),
             {"llama.attention.value_length", "8"});
  expect_key(sizes("llama").add("llama.rope.dimension_count", std::uint32_t{4}),
             {"llama.rope.dimension_count"});
  expect_key(sizes("llama").add("llama.rope.scaling.type", "ntk"), {"llama.rope.scaling.type", "ntk"});
  expect_key(sizes("llama").tensor("rope_freqs.weight", {3}, counted(3)), {"rope_freqs.weight", "4 numbers"});
  expect_key(sizes("granite"), {"granite.attention.scale", "is missing"});
}

}  // namespace
}  // namespace quire
