#include "models/file_layouts.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "models/decoder.h"

namespace quire {
namespace {

// A matrix whose element (r, c) is 100 r + c, or a vector of 0, 1, 2, …
class Counted final : public WeightTensor {
 public:
  Counted(std::string name, std::vector<std::int64_t> shape)
      : name_(std::move(name)), shape_(std::move(shape)) {}
  const std::string& name() const override { return name_; }
  DType dtype() const override { return DType::kF32; }
  const std::vector<std::int64_t>& shape() const override { return shape_; }
  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    for (std::int64_t i = 0; i < dst.numel(); ++i)
      dst.data_as<float>()[i] = static_cast<float>(100 * (row + i / cols()) + i % cols());
  }

 private:
  std::string name_;
  std::vector<std::int64_t> shape_;
};

class CountedSource final : public WeightSource {
 public:
  explicit CountedSource(std::map<std::string, std::vector<std::int64_t>> shapes)
      : shapes_(std::move(shapes)) {}
  bool contains(std::string_view name) const override { return shapes_.contains(std::string(name)); }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    const auto found = shapes_.find(std::string(name));
    if (found == shapes_.end() || found->second != shape) fail("no tensor {}", name);
    return std::make_shared<Counted>(found->first, shape);
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
    EXPECT_EQ(text_part({}, source)->take("model.embed_tokens.weight", {2, 2})->name(), name);
  }
  CountedSource outer(
      {{"language_model.model.embed_tokens.weight", {1, 1}}, {"language_model.lm_head.weight", {1, 1}}});
  EXPECT_TRUE(text_part({}, outer)->contains("lm_head.weight"));
}

TEST(FileLayoutsTest, FusedMatricesAndTheirBiasesComeApart) {
  CountedSource source({{"x.self_attn.qkv_proj.weight", {8, 1}},
                        {"x.self_attn.qkv_proj.bias", {8}},
                        {"x.self_attn.o_proj.weight", {1, 4}}});
  DecoderConfig config;
  config.attention.num_heads = 2;
  config.attention.num_kv_heads = 1;
  config.attention.head_dim = 2;
  FusedWeights weights(source, {}, fused_qkv(config));
  const auto rows_of = [&](const char* prefix, std::int64_t rows) {
    return values_of(*weights.take_linear(prefix, rows, 1).tensors.front().tensor);
  };
  EXPECT_EQ(rows_of("x.self_attn.q_proj", 4), (std::vector<float>{0, 100, 200, 300}));
  EXPECT_EQ(rows_of("x.self_attn.k_proj", 2), (std::vector<float>{400, 500}));
  EXPECT_EQ(rows_of("x.self_attn.v_proj", 2), (std::vector<float>{600, 700}));
  EXPECT_EQ(values_of(*weights.take("x.self_attn.v_proj.bias", {2})), (std::vector<float>{6, 7}));
  EXPECT_EQ(weights.take_linear("x.self_attn.o_proj", 1, 4).cols, 4);
}

TEST(FileLayoutsTest, DimensionsThatRotateTogetherComeToLieHalfARotationApart) {
  CountedSource source({{"x.self_attn.q_proj.weight", {12, 1}},
                        {"x.self_attn.k_proj.bias", {6}},
                        {"x.self_attn.v_proj.weight", {6, 1}}});
  NeighbourRotary weights(source, 6, 4);  // four of six dimensions rotate
  const auto rows_of = [&](const char* prefix, std::int64_t rows) {
    return values_of(*weights.take_linear(prefix, rows, 1).tensors.front().tensor);
  };
  EXPECT_EQ(rows_of("x.self_attn.q_proj", 12),
            (std::vector<float>{0, 200, 100, 300, 400, 500, 600, 800, 700, 900, 1000, 1100}));
  EXPECT_EQ(values_of(*weights.take("x.self_attn.k_proj.bias", {6})), (std::vector<float>{0, 2, 1, 3, 4, 5}));
  EXPECT_EQ(rows_of("x.self_attn.v_proj", 6), (std::vector<float>{0, 100, 200, 300, 400, 500}));
}

}  // namespace
}  // namespace quire
