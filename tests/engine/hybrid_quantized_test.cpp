// Quantised checkpoints of Qwen3.5, as its FP8 repositories have them and with codes in the MLP alone: they
// compute what the values of their codes do.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "checkpoint/quantized_file.h"
#include "engine/golden_models.h"
#include "inspect/forced_run.h"

namespace quire {
namespace {

constexpr std::int64_t kBlock = 32;  // rows and columns of fp8's scales
constexpr std::int64_t kGroup = 16;  // columns of gptq's and awq's
constexpr std::int64_t kWide = 64;   // of the MLP, whose columns two ranks can cut between groups

struct Method {
  const char *name, *config;
};
void PrintTo(const Method& method, std::ostream* out) { *out << method.name; }

constexpr Method kMethods[] = {
    {"fp8", R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
       "weight_block_size": [32, 32], "modules_to_not_convert": ["lm_head",
       "model.language_model.embed_tokens", "model.language_model.layers.0.linear_attn.conv1d",
       "model.language_model.layers.0.linear_attn.in_proj_a", "in_proj_a", "in_proj_b", "mtp.fc",
       "model.visual"]})"},
    {"compressed_tensors", R"({"quant_method": "compressed-tensors", "format": "int-quantized",
       "ignore": ["re:.*linear_attn.*", "re:.*self_attn.*", "lm_head"], "config_groups": {"group_0": {
         "targets": ["Linear"], "input_activations": null,
         "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true}}}})"},
    {"gptq", R"({"quant_method": "gptq", "bits": 8, "group_size": 16, "sym": true, "desc_act": false,
       "dynamic": {"-:.*linear_attn.*": {}, "-:.*self_attn.*": {}}})"},
    {"awq", R"({"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": true, "version": "gemm",
       "modules_to_not_convert": ["linear_attn", "self_attn"]})"}};

// A matrix [rows, cols], as it is and then as its codes have it.
struct Matrix {
  std::int64_t rows, cols;
  std::vector<float> values;

  float& at(std::int64_t row, std::int64_t col) { return values[static_cast<std::size_t>(row * cols + col)]; }
  float largest(std::int64_t row, std::int64_t num_rows, std::int64_t col, std::int64_t num_cols) {
    float result = 0;
    for (std::int64_t i = row; i < std::min(row + num_rows, rows); ++i)
      for (std::int64_t j = col; j < std::min(col + num_cols, cols); ++j)
        result = std::max(result, std::abs(at(i, j)));
    return result;
  }
};

// The golden model twice: with codes, and with what they stand for.
class Models {
 public:
  explicit Models(const Method& method) : method_(method.name) {
    const std::filesystem::path folder = testing::golden_directory("qwen3_5");
    const SafetensorsFile file(folder / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) {
      std::vector<std::byte> bytes(entry.bytes);
      file.read(name, 0, bytes);
      std::vector<float> values(entry.bytes / size_of(*entry.dtype));
      convert(*entry.dtype, bytes.data(), DType::kF32, values.data(), values.size());
      add("model.language_model" + name.substr(std::string("model").size()), entry.shape, std::move(values));
    }
    for (QuantizedFile* made : {&coded_, &plain_})
      made->add("mtp.fc.weight", "F32", {1}, std::vector<float>(1))
          .add("model.visual.merger.weight", "F32", {1}, std::vector<float>(1));
    Json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                   {"text_config", read_json_file(folder / "config.json")}};
    config["text_config"]["intermediate_size"] = kWide;
    write(plain_, config);
    config["quantization_config"] = Json::parse(method.config);
    write(coded_, config);
  }

  std::vector<float> logits(bool coded, bool weight_only, const std::string& isa, int ranks) const {
    EngineConfig config;
    config.model = (coded ? coded_ : plain_).dir().path().string();
    config.device = "cpu";
    config.cpu_isa = isa;
    config.dtype = "float32";
    config.weight_only = weight_only;
    config.tensor_parallel_size = ranks;
    config.max_num_seqs = 4;
    Engine engine(config);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 40; ++i) tokens.push_back(i * 37 % 320);
    return ForcedRun::start(engine, tokens)->take_all();
  }

 private:
  static void write(const QuantizedFile& file, const Json& config) {
    file.dir().write("config.json", config.dump());
    file.open("null");
  }
  bool has_codes(const std::string& name, const std::vector<std::int64_t>& shape) const {
    if (shape.size() != 2 || name.find("embed_tokens") != name.npos) return false;
    if (method_ != "fp8") return name.find(".mlp.") != name.npos;
    return name.find("in_proj_a") == name.npos && name.find("in_proj_b") == name.npos;
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape, std::vector<float> values) {
    if (!has_codes(name, shape)) {
      for (QuantizedFile* file : {&coded_, &plain_}) file->add(name, "F32", shape, values);
      return;
    }
    Matrix matrix{shape[0], shape[1], std::move(values)};
    if (name.find(".mlp.") != name.npos) matrix = widened(matrix);
    const std::string prefix = name.substr(0, name.rfind('.'));
    if (method_ == "fp8") add_fp8(prefix, matrix);
    if (method_ == "compressed_tensors") add_int8(prefix, matrix);
    if (method_ == "gptq") add_gptq(prefix, matrix);
    if (method_ == "awq") add_awq(prefix, matrix);
    plain_.add(name, "F32", {matrix.rows, matrix.cols}, matrix.values);
  }
  static Matrix widened(Matrix& narrow) {
    Matrix wide{narrow.rows == 48 ? kWide : narrow.rows, narrow.cols == 48 ? kWide : narrow.cols, {}};
    for (std::int64_t i = 0; i < wide.rows * wide.cols; ++i)
      wide.values.push_back(narrow.at(i / wide.cols % narrow.rows, i % wide.cols % narrow.cols));
    return wide;
  }

  void add_fp8(const std::string& prefix, Matrix& matrix) {
    const std::int64_t num_cols = (matrix.cols + kBlock - 1) / kBlock;
    std::vector<std::uint8_t> codes(matrix.values.size());
    std::vector<BFloat16> scales;
    for (std::int64_t row = 0; row < matrix.rows; row += kBlock)
      for (std::int64_t col = 0; col < matrix.cols; col += kBlock)
        scales.push_back(from_float<BFloat16>(
            std::exp2(std::ceil(std::log2(matrix.largest(row, kBlock, col, kBlock) / 448)))));
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      for (std::int64_t col = 0; col < matrix.cols; ++col) {
        const float scale =
            to_float(scales[static_cast<std::size_t>(row / kBlock * num_cols + col / kBlock)]);
        std::uint8_t& code = codes[static_cast<std::size_t>(row * matrix.cols + col)];
        code = to_e4m3(matrix.at(row, col) / scale);
        matrix.at(row, col) = from_e4m3(code) * scale;
      }
    }
    coded_.add(prefix + ".weight", "F8_E4M3", {matrix.rows, matrix.cols}, codes);
    coded_.add(prefix + ".weight_scale_inv", "BF16", {std::ssize(scales) / num_cols, num_cols}, scales);
  }

  void add_int8(const std::string& prefix, Matrix& matrix) {
    std::vector<std::int8_t> codes;
    std::vector<float> scales;
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      scales.push_back(matrix.largest(row, 1, 0, matrix.cols) / 127);
      for (std::int64_t col = 0; col < matrix.cols; ++col) {
        codes.push_back(static_cast<std::int8_t>(std::round(matrix.at(row, col) / scales.back())));
        matrix.at(row, col) = static_cast<float>(codes.back()) * scales.back();
      }
    }
    coded_.add(prefix + ".weight", "I8", {matrix.rows, matrix.cols}, codes);
    coded_.add(prefix + ".weight_scale", "F32", {matrix.rows, 1}, scales);
  }

  // Rounds groups of columns to codes less a zero point, and gives the scales [groups, rows] and calls
  // put(row, column, code).
  template <typename Put>
  static std::vector<Float16> round_groups(Matrix& matrix, int zero, int last_code, const Put& put) {
    std::vector<Float16> scales;
    for (std::int64_t group = 0; group < matrix.cols; group += kGroup) {
      for (std::int64_t row = 0; row < matrix.rows; ++row) {
        scales.push_back(
            from_float<Float16>(matrix.largest(row, 1, group, kGroup) / static_cast<float>(zero - 1)));
        const float scale = to_float(scales.back());
        for (std::int64_t col = group; col < group + kGroup; ++col) {
          const int code =
              std::clamp(zero + static_cast<int>(std::round(matrix.at(row, col) / scale)), 0, last_code);
          matrix.at(row, col) = static_cast<float>(code - zero) * scale;
          put(row, col, static_cast<std::uint32_t>(code));
        }
      }
    }
    return scales;
  }

  void add_gptq(const std::string& prefix, Matrix& matrix) {
    std::vector<std::uint32_t> words(matrix.values.size() / 4);
    const std::vector<Float16> scales =
        round_groups(matrix, 128, 255, [&](std::int64_t row, std::int64_t col, std::uint32_t code) {
          words[static_cast<std::size_t>(col / 4 * matrix.rows + row)] |= code << col % 4 * 8;
        });
    const std::int64_t groups = matrix.cols / kGroup;
    std::vector<std::int32_t> group_of;
    for (std::int64_t col = 0; col < matrix.cols; ++col)
      group_of.push_back(static_cast<std::int32_t>(col / kGroup));
    coded_.add(prefix + ".qweight", "I32", {matrix.cols / 4, matrix.rows}, words);
    coded_.add(prefix + ".qzeros", "I32", {groups, matrix.rows / 4},
               std::vector<std::uint32_t>(static_cast<std::size_t>(groups * matrix.rows / 4), 0x7F7F7F7FU));
    coded_.add(prefix + ".scales", "F16", {groups, matrix.rows}, scales);
    coded_.add(prefix + ".g_idx", "I32", {matrix.cols}, group_of);
  }

  void add_awq(const std::string& prefix, Matrix& matrix) {
    constexpr std::uint32_t kNibbleOf[] = {0, 4, 1, 5, 2, 6, 3, 7};
    std::vector<std::uint32_t> words(matrix.values.size() / 8);
    const std::vector<Float16> scales =
        round_groups(matrix, 7, 15, [&](std::int64_t row, std::int64_t col, std::uint32_t code) {
          words[static_cast<std::size_t>((col * matrix.rows + row) / 8)] |= code << 4 * kNibbleOf[row % 8];
        });
    const std::int64_t groups = matrix.cols / kGroup;
    coded_.add(prefix + ".qweight", "I32", {matrix.cols, matrix.rows / 8}, words);
    coded_.add(prefix + ".qzeros", "I32", {groups, matrix.rows / 8},
               std::vector<std::uint32_t>(static_cast<std::size_t>(groups * matrix.rows / 8), 0x77777777U));
    coded_.add(prefix + ".scales", "F16", {groups, matrix.rows}, scales);
  }

  std::string method_;
  QuantizedFile coded_, plain_;
};

class HybridQuantizedTest : public ::testing::TestWithParam<Method> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(testing::golden_directory("qwen3_5"))) GTEST_SKIP() << "no model";
  }
};

TEST_P(HybridQuantizedTest, CodesComputeWhatTheirValuesDo) {
  const Models models(GetParam());
  const std::vector<float> expected = models.logits(false, true, "reference", 1);
  ASSERT_EQ(expected.size(), std::size_t{40 * 320});
  const float largest = *std::max_element(expected.begin(), expected.end());
  for (const std::string& isa : inspect_machine().cpu_isas) {
    for (const int ranks : {1, 2}) {
      const std::vector<float> found = models.logits(true, true, isa, ranks);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 2e-5F * largest) << isa << ", " << ranks << " ranks, " << i;
    }
  }
}

// By E4M3's three bits in each product, which the recurrent states add up.
TEST(HybridFp8Test, RoundsItsInputs) {
  if (!std::filesystem::exists(testing::golden_directory("qwen3_5"))) GTEST_SKIP() << "no model";
  const Models models(kMethods[0]);
  const std::vector<float> plain = models.logits(false, false, "reference", 1);
  for (const int ranks : {1, 2}) {
    const std::vector<float> rounded = models.logits(true, false, "reference", ranks);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      difference += std::pow(rounded[i] - plain[i], 2);
      norm += std::pow(plain[i], 2);
    }
    EXPECT_GT(std::sqrt(difference / norm), 1e-3);
    EXPECT_LT(std::sqrt(difference / norm), 0.25);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, HybridQuantizedTest, ::testing::ValuesIn(kMethods),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
