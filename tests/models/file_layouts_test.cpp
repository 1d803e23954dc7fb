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

class OneSource final : public WeightSource {
 public:
  bool contains(std::string_view name) const override { return name == "h.0.w"; }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return counted(std::string(name), shape);
  }
};

TEST(FileLayoutsTest, APrefixIsSpelledAsItStandsBeforeAName) {
  OneSource source;
  const auto renamed = read_layout({.renames = {{"model.layers", "h"}, {"q_proj", "c_attn"}}}, {}, source);
  const WeightGroup group = renamed->take_linear("model.layers.3.q_proj", 4, 2);
  EXPECT_EQ(group.tensors.front().tensor->name(), "h.3.c_attn.weight");
  EXPECT_EQ(group.rows, 4);
  EXPECT_EQ(group.cols, 2);
  EXPECT_TRUE(renamed->contains("model.layers.0.w"));
  EXPECT_FALSE(renamed->contains("model.layers.1.w"));
  EXPECT_TRUE(renamed->unclaimed().empty());
}

TEST(FileLayoutsTest, NoRenameSeesTheResultOfAnother) {
  OneSource source;
  const auto renamed =
      read_layout({.renames = {{"first", "second"}, {"second", "third"}, {"a.b", "c"}}}, {}, source);
  const auto name_of = [&](const char* name) { return renamed->take(name, {1, 1})->name(); };
  EXPECT_EQ(name_of("x.first.weight"), "x.second.weight");
  EXPECT_EQ(name_of("x.second.weight"), "x.third.weight");
  EXPECT_EQ(name_of("first.second.first"), "second.third.second");
  EXPECT_EQ(name_of("x.firsts.weight"), "x.firsts.weight");  // whole components only
  EXPECT_EQ(name_of("x.a.b.weight"), "x.c.weight");
  EXPECT_EQ(name_of("x.a.bb.weight"), "x.a.bb.weight");
  EXPECT_EQ(name_of("a.b"), "c");
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

TEST(FileLayoutsTest, QueriesAndTheirGatesComeApart) {
  CountedSource source({{"x.self_attn.q_proj.weight", {8, 1}}, {"x.self_attn.q_proj.bias", {8}}});
  DecoderConfig config = config_of_heads(2, 1, 2);
  config.attention.output_gate = true;
  const auto weights = read_layout({}, config, source);
  EXPECT_EQ(rows_of(*weights, "x.self_attn.q_proj", 4), (std::vector<float>{0, 100, 400, 500}));
  EXPECT_EQ(rows_of(*weights, "x.self_attn.q_gate", 4), (std::vector<float>{200, 300, 600, 700}));
  EXPECT_EQ(values_of(*weights->take("x.self_attn.q_gate.bias", {4})), (std::vector<float>{2, 3, 6, 7}));
}

// Two key heads of one column, four value heads of two.
TEST(FileLayoutsTest, ProjectionsOfADeltaNetComeApartByPartOrByKeyHead) {
  DecoderConfig config = config_of_heads(1, 1, 1);
  config.delta_net = {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 1, .value_dim = 2};
  CountedSource parts({{"x.in_proj_qkv.weight", {12, 1}}, {"x.in_proj_a.weight", {4, 1}}});
  const auto by_part = read_layout({}, config, parts);
  EXPECT_EQ(rows_of(*by_part, "x.in_proj_k", 2), (std::vector<float>{200, 300}));
  EXPECT_EQ(rows_of(*by_part, "x.in_proj_v", 8),
            (std::vector<float>{400, 500, 600, 700, 800, 900, 1000, 1100}));
  EXPECT_EQ(rows_of(*by_part, "x.in_proj_a", 4), (std::vector<float>{0, 100, 200, 300}));
  CountedSource heads({{"x.in_proj_qkvz.weight", {20, 1}}, {"x.in_proj_ba.weight", {8, 1}}});
  const auto by_head = read_layout({.delta_net_by_head = true}, config, heads);
  EXPECT_EQ(rows_of(*by_head, "x.in_proj_q", 2), (std::vector<float>{0, 1000}));
  EXPECT_EQ(rows_of(*by_head, "x.in_proj_k", 2), (std::vector<float>{100, 1100}));
  EXPECT_EQ(rows_of(*by_head, "x.in_proj_v", 8),
            (std::vector<float>{200, 300, 400, 500, 1200, 1300, 1400, 1500}));
  EXPECT_EQ(rows_of(*by_head, "x.in_proj_z", 8),
            (std::vector<float>{600, 700, 800, 900, 1600, 1700, 1800, 1900}));
  EXPECT_EQ(rows_of(*by_head, "x.in_proj_b", 4), (std::vector<float>{0, 100, 400, 500}));
  EXPECT_EQ(rows_of(*by_head, "x.in_proj_a", 4), (std::vector<float>{200, 300, 600, 700}));
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
  config.attention.rotary = {.theta = 10000};
  config.attention.rotary->partial_rotary_factor = 0.67;  // four of six dimensions rotate
  const auto weights = read_layout({.neighbour_rotary = true}, config, source);
  EXPECT_EQ(rows_of(*weights, "x.self_attn.q_proj", 12),
            (std::vector<float>{0, 200, 100, 300, 400, 500, 600, 800, 700, 900, 1000, 1100}));
  for (const char* name : {"x.self_attn.k_proj.bias", "x.self_attn.k_norm.weight"})
    EXPECT_EQ(values_of(*weights->take(name, {6})), (std::vector<float>{0, 2, 1, 3, 4, 5})) << name;
  EXPECT_EQ(rows_of(*weights, "x.self_attn.v_proj", 6), (std::vector<float>{0, 100, 200, 300, 400, 500}));
}

TEST(FileLayoutsTest, ExpertsOfOneTensorComeApart) {
  // Two experts of two rows, hidden size 3: element i of an expert e is 100 e + i.
  CountedSource source({{"x.mlp.experts.gate_up_proj", {2, 3, 4}},
                        {"x.mlp.experts.gate_up_proj_bias", {2, 4}},
                        {"x.mlp.experts.down_proj", {2, 2, 3}},
                        {"x.mlp.experts.down_proj_bias", {2, 3}}});
  DecoderConfig config = config_of_heads(1, 1, 2);
  config.experts = {.num_experts = 2};
  const auto weights = read_layout({.experts = FileLayout::Experts::kByTurns}, config, source);
  const auto matrix = [&](const char* prefix, std::int64_t rows, std::int64_t cols) {
    return values_of(*weights->take_linear(prefix, rows, cols).tensors.front().tensor);
  };
  EXPECT_EQ(matrix("x.mlp.experts.0.gate_proj", 2, 3), (std::vector<float>{0, 4, 8, 2, 6, 10}));
  EXPECT_EQ(matrix("x.mlp.experts.1.up_proj", 2, 3), (std::vector<float>{101, 105, 109, 103, 107, 111}));
  EXPECT_EQ(matrix("x.mlp.experts.1.down_proj", 3, 2), (std::vector<float>{100, 103, 101, 104, 102, 105}));
  EXPECT_EQ(values_of(*weights->take("x.mlp.experts.1.up_proj.bias", {2})), (std::vector<float>{101, 103}));
  EXPECT_EQ(values_of(*weights->take("x.mlp.experts.0.down_proj.bias", {3})), (std::vector<float>{0, 1, 2}));
  CountedSource separate({{"x.mlp.experts.1.up_proj.weight", {1, 2}}});
  EXPECT_EQ(rows_of(*read_layout({.experts = FileLayout::Experts::kByTurns}, config, separate),
                    "x.mlp.experts.1.up_proj", 1, 2),
            std::vector<float>{0});
}

}  // namespace
}  // namespace quire
