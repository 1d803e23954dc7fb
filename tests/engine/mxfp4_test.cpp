// A gpt-oss whose experts are MXFP4 codes computes what the same values in bfloat16 do.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "checkpoint/quantized_file.h"
#include "engine/golden_models.h"
#include "inspect/forced_run.h"

namespace quire {
namespace {

constexpr int kHidden = 64, kExpertWidth = 32, kNumExperts = 4, kVocab = 96, kLayers = 2;
constexpr char kConfig[] = R"({"architectures": ["GptOssForCausalLM"], "hidden_size": 64,
  "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "sliding_window": 8,
  "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64,
                   "truncate": false}, "eos_token_id": 1)";

// The same model twice: with codes, and with what they stand for.
class Mxfp4Models {
 public:
  Mxfp4Models() {
    add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    add("lm_head.weight", {kVocab, kHidden}, 0.2F);
    add("model.norm.weight", {kHidden}, 1);
    for (int i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        add(layer + norm + ".weight", {kHidden}, 1);
      for (const auto& [part, rows] :
           {std::pair("q_proj", 64), {"k_proj", 32}, {"v_proj", 32}, {"o_proj", 64}}) {
        add(attention + part + ".weight", {rows, kHidden}, 0.2F);
        add(attention + part + ".bias", {rows}, 0.2F);
      }
      add(attention + "sinks", {4}, 1);
      add(layer + "mlp.router.weight", {kNumExperts, kHidden}, 0.5F);
      add(layer + "mlp.router.bias", {kNumExperts}, 0.5F);
      add_experts(layer + "mlp.experts.gate_up_proj", 2 * kExpertWidth, kHidden);
      add_experts(layer + "mlp.experts.down_proj", kHidden, kExpertWidth);
    }
    write(coded_, R"(, "quantization_config": {"quant_method": "mxfp4"}})");
    write(plain_, "}");
  }

  // [tokens, kVocab]
  std::vector<float> logits(bool coded, const std::string& isa, int ranks) const {
    EngineConfig config;
    config.model = (coded ? coded_ : plain_).dir().path().string();
    config.device = "cpu";
    config.cpu_isa = isa;
    config.dtype = "float32";
    config.tensor_parallel_size = ranks;
    config.max_num_seqs = 4;
    Engine engine(config);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 40; ++i) tokens.push_back(i * 37 % kVocab);
    return ForcedRun::start(engine, tokens)->take_all();
  }

 private:
  std::vector<BFloat16> draw(std::int64_t count, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<BFloat16> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(from_float<BFloat16>(normal(random_)));
    return values;
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape, float scale) {
    const std::vector<BFloat16> values = draw(shape[0] * (shape.size() == 2 ? shape[1] : 1), scale);
    for (QuantizedFile* file : {&coded_, &plain_}) file->add(name, "BF16", shape, values);
  }
  void add_experts(const std::string& name, int rows, int cols) {
    add(name + "_bias", {kNumExperts, rows}, 3);
    const auto index = [](int e, int row, int of_rows, int col, int of_cols) {
      return static_cast<std::size_t>((e * of_rows + row) * of_cols + col);
    };
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(kNumExperts * rows * cols / 2)), scales;
    std::vector<BFloat16> values(codes.size() * 2);
    for (int i = 0; i < kNumExperts * rows * cols / 32; ++i)
      scales.push_back(static_cast<std::uint8_t>(123 + random_() % 4));
    for (int e = 0; e < kNumExperts; ++e) {
      for (int row = 0; row < rows; ++row) {
        for (int col = 0; col < cols; ++col) {
          const std::uint32_t code = random_() % 16;
          const std::size_t at = index(e, row, rows, col, cols);
          codes[at / 2] = static_cast<std::uint8_t>(codes[at / 2] | code << (at % 2 * 4));
          const float magnitude = std::array{0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F}[code % 8];
          const float value = std::ldexp(code < 8 ? magnitude : -magnitude, scales[at / 32] - 127);
          values[index(e, col, cols, row, rows)] = from_float<BFloat16>(value);
        }
      }
    }
    coded_.add(name + "_blocks", "U8", {kNumExperts, rows, cols / 32, 16}, codes);
    coded_.add(name + "_scales", "U8", {kNumExperts, rows, cols / 32}, scales);
    plain_.add(name, "BF16", {kNumExperts, cols, rows}, values);
  }
  static void write(const QuantizedFile& file, const std::string& end) {
    file.dir().write("config.json", kConfig + end);
    file.open("null");
  }

  std::mt19937 random_{5};
  QuantizedFile coded_, plain_;
};

TEST(Mxfp4Test, ExpertsOfCodesComputeWhatTheirValuesDo) {
  const Mxfp4Models models;
  const std::vector<float> expected = models.logits(false, "reference", 1);
  ASSERT_EQ(expected.size(), std::size_t{40 * kVocab});
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::abs(logit));
  const auto expect_equal = [&](const std::vector<float>& logits, const std::string& what) {
    ASSERT_EQ(logits.size(), expected.size()) << what;
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(logits[i], expected[i], 2e-5F * largest) << what << ", " << i;
  };
  for (const std::string& isa : inspect_machine().cpu_isas) {
    for (const bool coded : {false, true}) expect_equal(models.logits(coded, isa, 1), isa);
    expect_equal(models.logits(true, isa, 2), isa + " on two ranks");
  }
}

}  // namespace
}  // namespace quire
