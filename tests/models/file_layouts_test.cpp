#include "models/file_layouts.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "models/decoder.h"

namespace quire {
namespace {

// A matrix whose element (r, c) is 100 r + c, or a vector of 0, 1, 2, …
WeightTensorPtr counted(std::string name, std::vector<std::int64_t> shape) {
  return make_weight_tensor(
      std::move(name), DType::kF32, std::move(shape), [](std::int64_t row, const Tensor& dst) {
        const std::int64_t cols = dst.dim(1);
        for (std::int64_t i = 0; i < dst.numel(); ++i)
          dst.data_as<float>()[i] = static_cast<float>(100 * (row + i / cols) + i % cols);
      });
}

class CountedSource final : public WeightSource {
 public:
  explicit CountedSource(std::map<std::string, std::vector<std::int64_t>> shapes)
      : shapes_(std::move(shapes)) {}
  bool contains(std::string_view name) const override { return shapes_.contains(std::string(name)); }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    const auto found = shapes_.find(std::string(name));
    if (found == shapes_.end() || found->second != shape) fail("no tensor {}", name);
    return counted(found->first, shape);
  }

 private:
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

std::vector<float> values_of(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  tensor.read_rows(0, Tensor(values.data(), DType::kF32, {tensor.rows(), tensor.cols()}));
  return values;
}

TEST(FileLayoutsTest, ATextPartIsFoundUnderEachOfItsNames) {
  for (const char* name : {"model.language_model.embed_tokens.weight",
                           "language_model.model.embed_tokens.weight", "model.embed_tokens.weight"}) {
    CountedSource source({{name, {2, 2}}});
    EXPECT_EQ(read_layout({.text_part = true}, {}, source)->take("model.embed_tokens.weight", {2, 2})->name(),
              name);
  }
  CountedSource outer(
      {{"language_model.model.embed_tokens.weight", {1, 1}}, {"language_model.lm_head.weight", {1, 1}}});
  EXPECT_TRUE(read_layout({.text_part = true}, {}, outer)->contains("lm_head.weight"));
  EXPECT_FALSE(read_layout({}, {}, outer)->contains("lm_head.weight"));
}

DecoderConfig config_of_heads(int num_heads, int num_kv_heads, int head_dim) {
  DecoderConfig config;
  config.attention.num_heads = num_heads;
  config.attention.num_kv_heads = num_kv_heads;
  config.attention.head_dim = head_dim;
  return config;
}

// The first column of a matrix.
std::vector<float> rows_of(WeightSource& weights, const char* prefix, std::int64_t rows,
                           std::int64_t cols = 1) {
  const std::vector<float> values =
      values_of(*weights.take_linear(prefix, rows, cols).tensors.front().tensor);
  std::vector<float> first;
  for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(cols)) first.push_back(values[i]);
  return first;
}

TEST(FileLayoutsTest, FusedMatricesAndTheirBiasesComeApart) {
  CountedSource source({{"x.self_attn.qkv_proj.weight", {8, 1}},
                        {"x.self_attn.qkv_proj.bias", {8}},
                        {"x.self_attn.o_proj.weight", {1, 4}},
                        {"x.mlp.gate_up_proj.weight", {6, 1}}});
  DecoderConfig config = config_of_heads(2, 1, 2);
  config.mlp.intermediate_size = 3;
  const auto weights = read_layout({.qkv = "qkv_proj", .gate_up = "gate_up_proj"}, config, source);
  EXPECT_EQ(rows_of(*weights, "x.self_attn.q_proj", 4), (std::vector<float>{0, 100, 200, 300}));
  EXPECT_EQ(rows_of(*weights, "x.self_attn.k_proj", 2), (std::vector<float>{400, 500}));
  EXPECT_EQ(rows_of(*weights, "x.self_attn.v_proj", 2), (std::vector<float>{600, 700}));
  EXPECT_EQ(values_of(*weights->take("x.self_attn.v_proj.bias", {2})), (std::vector<float>{6, 7}));
  EXPECT_EQ(weights->take_linear("x.self_attn.o_proj", 1, 4).cols, 4);
  EXPECT_EQ(rows_of(*weights, "x.mlp.gate_proj", 3), (std::vector<float>{0, 100, 200}));
  EXPECT_EQ(rows_of(*weights, "x.mlp.up_proj", 3), (std::vector<float>{300, 400, 500}));
}

TEST(FileLayoutsTest, HeadsThatLieTogetherComeApart) {
  CountedSource source({{"x.attn.all.weight", {12, 1}}, {"x.attn.all.bias", {12}}});
  const auto weights = read_layout({.renames = {{"self_attn", "attn"}}, .qkv = "all", .qkv_by_head = true},
                                   config_of_heads(2, 2, 2), source);
  EXPECT_EQ(rows_of(*weights, "x.self_attn.q_proj", 4), (std::vector<float>{0, 100, 600, 700}));
  EXPECT_EQ(rows_of(*weights, "x.self_attn.k_proj", 4), (std::vector<float>{200, 300, 800, 900}));
  EXPECT_EQ(values_of(*weights->take("x.self_attn.v_proj.bias", {4})), (std::vector<float>{4, 5, 10, 11}));
}

TEST(FileLayoutsTest, ProjectionsMayLieTransposed) {
  CountedSource source(
      {{"x.self_attn.c_attn.weight", {2, 6}}, {"x.mlp.up_proj.weight", {2, 3}}, {"embed.weight", {3, 2}}});
  const auto weights = read_layout({.qkv = "c_attn", .transposed = true}, config_of_heads(1, 1, 2), source);
  EXPECT_EQ(rows_of(*weights, "x.self_attn.k_proj", 2, 2), (std::vector<float>{2, 3}));
  EXPECT_EQ(rows_of(*weights, "x.mlp.up_proj", 3, 2), (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(rows_of(*weights, "embed", 3, 2), (std::vector<float>{0, 100, 200}));
}

TEST(FileLayoutsTest, DimensionsThatRotateTogetherComeToLieHalfARotationApart) {
  CountedSource source({{"x.self_attn.q_proj.weight", {12, 1}},
                        {"x.self_attn.k_proj.bias", {6}},
                        {"x.self_attn.k_norm.weight", {6}},
                        {"x.self_attn.v_proj.weight", {6, 1}}});
  DecoderConfig config = config_of_heads(2, 1, 6);
  config.attention.rotary = ModelConfig::RotaryConfig::plain(10000);
  config.attention.rotary->partial_rotary_factor = 0.67;  // four of six dimensions rotate
  const auto weights = read_layout({.neighbour_rotary = true}, config, source);
  EXPECT_EQ(rows_of(*weights, "x.self_attn.q_proj", 12),
            (std::vector<float>{0, 200, 100, 300, 400, 500, 600, 800, 700, 900, 1000, 1100}));
  for (const char* name : {"x.self_attn.k_proj.bias", "x.self_attn.k_norm.weight"})
    EXPECT_EQ(values_of(*weights->take(name, {6})), (std::vector<float>{0, 2, 1, 3, 4, 5})) << name;
  EXPECT_EQ(rows_of(*weights, "x.self_attn.v_proj", 6), (std::vector<float>{0, 100, 200, 300, 400, 500}));
}

}  // namespace
}  // namespace quire
