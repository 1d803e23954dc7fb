#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

const std::filesystem::path kModels = QUIRE_SOURCE_DIR "/tests/golden";

ModelConfig config_of(std::string_view text) { return ModelConfig::from_json(text, "config.json"); }

TEST(ConfigObjectTest, ReadsEveryType) {
  const ModelConfig config = config_of(
      R"({"i": 7, "d": 1e-06, "whole": 3, "b": true, "s": "x", "l": ["p", "q"], "n": [1, 2.5], "none": null})");
  EXPECT_EQ(config.require_int("i"), 7);
  EXPECT_EQ(config.require_double("d"), 1e-6);
  EXPECT_EQ(config.require_double("whole"), 3.0);
  EXPECT_EQ(config.get_strings("l"), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(config.get_doubles("n"), (std::vector<double>{1.0, 2.5}));
  EXPECT_EQ(config.find_float("d"), 1e-6F);
  for (const char* absent : {"none", "other"}) {
    EXPECT_FALSE(config.contains(absent));
    EXPECT_EQ(config.get_int(absent, 5), 5);
    EXPECT_EQ(config.get_double(absent, 0.5), 0.5);
    EXPECT_TRUE(config.get_bool(absent, true));
    EXPECT_EQ(config.get_string(absent, "y"), "y");
    EXPECT_EQ(config.find_int(absent), std::nullopt);
    EXPECT_TRUE(config.get_strings(absent).empty());
    EXPECT_TRUE(config.get_token_ids(absent).empty());
    expect_error([&] { config.require_int(absent); },
                 {"config.json", "\"" + std::string(absent) + "\" is missing"});
    expect_error([&] { config.require_double(absent); }, {"is missing"});
  }
}

TEST(ConfigObjectTest, TakesTheFirstSpellingThatIsThere) {
  const ModelConfig config = config_of(R"({"hidden_size": 2, "n_embd": null, "x": 3})");
  EXPECT_EQ(config.require_int({"n_embd", "hidden_size", "x"}), 2);
  expect_error(
      [&] {
        config.require_int({"n_layer", "num_hidden_layers"});
      },
      {"\"n_layer\" is missing (also known as num_hidden_layers)"});
  expect_error(
      [&] {
        config.require_int({"n_embd", "hidden_size"}, {.min = 4});
      },
      {"\"hidden_size\" must be"});
}

TEST(ConfigObjectTest, RefusesValuesOfTheWrongTypeOrRange) {
  for (const char* value : {"0", "-1", "2147483648", "9223372036854775808", "18446744073709551615",
                            "-9223372036854775808", "7.0", "1e3", "\"7\"", "true", "[7]", "{}"}) {
    SCOPED_TRACE(value);
    const ModelConfig config = config_of(R"({"k": )" + std::string(value) + "}");
    expect_error([&] { config.find_int("k"); },
                 {"config.json: \"k\" must be a whole number from 1 to 2147483647, not "});
  }
  EXPECT_EQ(config_of(R"({"k": 2147483647})").find_int("k"), 2147483647);
  EXPECT_EQ(config_of(R"({"k": -1})").find_int("k", {.min = -1}), -1);

  for (const char* value : {"\"1\"", "true", "[1]", "{}"}) {
    expect_error([&] { config_of(R"({"k": )" + std::string(value) + "}").find_double("k"); },
                 {"\"k\" must be a number, not "});
  }
  expect_error([] { config_of(R"({"k": 0})").find_double("k", kPositive); },
               {"must be a positive number, not 0"});
  expect_error([] { config_of(R"({"k": -1})").find_double("k", kNonNegative); }, {"not below 0, not -1"});
  expect_error([] { config_of(R"({"k": 1.5})").find_double("k", kFraction); },
               {"above 0 and at most 1, not 1.5"});
  expect_error([] { config_of(R"({"k": 1e300})").find_float("k"); }, {"\"k\" must be a number"});
  expect_error([] { config_of(R"({"k": 1})").find_bool("k"); }, {"\"k\" must be true or false, not 1"});
  expect_error([] { config_of(R"({"k": 1})").find_string("k"); }, {"\"k\" must be a string, not 1"});
  expect_error([] { config_of(R"({"k": 1})").find_object("k"); }, {"\"k\" must be an object, not 1"});
  expect_error([] { config_of(R"({"k": ["a", 1]})").get_strings("k"); }, {"list of strings, not 1"});
  expect_error([] { config_of(R"({"k": "a"})").get_doubles("k"); }, {"list of numbers, not \"a\""});
}

TEST(ConfigObjectTest, RefusesWhatIsNoObject) {
  expect_error([] { config_of("[]"); }, {"config.json: must hold a JSON object, not an array"});
  expect_error([] { config_of("{"); }, {"config.json: not valid JSON"});
  expect_error([] { config_of(R"({"a":1,"a":1})"); }, {"config.json", "stands twice"});
  expect_error([] { ModelConfig::from_file("/none/config.json"); }, {"/none/config.json: no such file"});
}

TEST(ModelConfigTest, NamesTheArchitecture) {
  EXPECT_EQ(config_of(R"({"architectures": ["A", "B"]})").architecture(), "A");
  for (const char* text : {"{}", R"({"architectures": []})", R"({"architectures": null})"}) {
    expect_error([&] { config_of(text).architecture(); }, {"config.json: \"architectures\" must name"});
  }
  expect_error([] { config_of(R"({"architectures": "A"})"); },
               {"\"architectures\" must be a list of strings"});
}

TEST(ModelConfigTest, ReadsTheDTypeInBothSpellings) {
  EXPECT_EQ(config_of(R"({"torch_dtype": "bfloat16"})").dtype(), DType::kBF16);
  EXPECT_EQ(config_of(R"({"dtype": "float16"})").dtype(), DType::kF16);
  EXPECT_EQ(config_of(R"({"dtype": "float32", "torch_dtype": "float16"})").dtype(), DType::kF32);
  EXPECT_EQ(config_of("{}").dtype(), std::nullopt);
  for (const char* text : {R"({"torch_dtype": "float8_e4m3fn"})", R"({"torch_dtype": "int8"})"}) {
    expect_error([&] { config_of(text).dtype(); },
                 {"\"torch_dtype\" must be float32, bfloat16 or float16, not"});
  }
}

TEST(ModelConfigTest, HasTheQuantizationOfTheWholeOrOfItsText) {
  EXPECT_FALSE(config_of("{}").quantization_config());
  EXPECT_FALSE(config_of(R"({"quantization_config": null})").quantization_config());
  const std::string quantization = R"("quantization_config": {"quant_method": "awq", "bits": 4})";
  for (const std::string& text : {"{" + quantization + "}", R"({"text_config": {}, )" + quantization + "}",
                                  R"({"text_config": {)" + quantization + "}}"}) {
    const auto config = config_of(text).quantization_config();
    ASSERT_TRUE(config) << text;
    EXPECT_EQ(config->find_string("quant_method"), "awq");
    EXPECT_EQ(config->keys(), (std::vector<std::string>{"bits", "quant_method"}));
  }
}

TEST(ModelConfigTest, QuantizationHadAnotherNameInCompressedTensors) {
  const auto found = [](const std::string& object) {
    return config_of(R"({"compression_config": {)" + object + "}}").quantization_config().has_value();
  };
  EXPECT_TRUE(found(R"("quant_method": "compressed-tensors", "config_groups": {"group_0": {}})"));
  EXPECT_FALSE(found(R"("sparsity_config": {"format": "dense"})"));
}

TEST(ModelConfigTest, EndOfSequenceIsAnIdOrAList) {
  EXPECT_EQ(config_of(R"({"eos_token_id": 5})").eos_token_ids(), std::vector<std::int32_t>{5});
  EXPECT_EQ(config_of(R"({"eos_token_id": [5, 0]})").eos_token_ids(), (std::vector<std::int32_t>{5, 0}));
  EXPECT_TRUE(config_of(R"({"eos_token_id": null})").eos_token_ids().empty());
  for (const char* id : {"-1", "\"5\"", "[5, -1]", "4294967296", "[[5]]", "1.5"}) {
    expect_error([&] { config_of(R"({"eos_token_id": )" + std::string(id) + "}").eos_token_ids(); },
                 {"\"eos_token_id\" must be a whole number from 0"});
  }
}

TEST(RotaryConfigTest, PlainInEverySpelling) {
  for (const char* text : {R"({"rope_theta": 5000})", R"({"rope_theta": 5000, "rope_scaling": null})",
                           R"({"rope_theta": 5000, "rope_scaling": {}})",
                           R"({"rope_parameters": {"rope_theta": 5000, "rope_type": "default"}})",
                           R"({"rope_parameters": {"rope_theta": 5000}, "rope_theta": 7})",
                           R"({"rope_theta": 5000, "rope_scaling": {"type": "default"}})"}) {
    const ModelConfig::RotaryConfig rotary = config_of(text).rotary(1e4);
    EXPECT_EQ(rotary.type, "default") << text;
    EXPECT_EQ(rotary.theta, 5000.0) << text;
    EXPECT_EQ(rotary.factor, 1.0) << text;
    EXPECT_EQ(rotary.partial_rotary_factor, 1.0) << text;
  }
  EXPECT_EQ(config_of("{}").rotary(1e4).theta, 1e4);
  EXPECT_EQ(config_of(R"({"rope_parameters": {"rope_type": "default"}})").rotary(1e4).theta, 1e4);
}

TEST(RotaryConfigTest, ScalingWinsOverParametersAsInTransformers) {
  const auto rotary = config_of(R"({"rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "linear", "factor": 4}})")
                          .rotary(1e4);
  EXPECT_EQ(rotary.factor, 2.0);
}

TEST(RotaryConfigTest, Linear) {
  const auto rotary = config_of(R"({"rope_scaling": {"type": "linear", "factor": 2.5}})").rotary(1e4);
  EXPECT_EQ(rotary.type, "linear");
  EXPECT_EQ(rotary.factor, 2.5);
  expect_error([] { config_of(R"({"rope_scaling": {"type": "linear"}})").rotary(1e4); },
               {"config.json: \"rope_scaling.factor\" is missing"});
  expect_error([] { config_of(R"({"rope_parameters": {"rope_type": "linear", "factor": 0}})").rotary(1e4); },
               {"\"rope_parameters.factor\" must be a positive number, not 0"});
}

TEST(RotaryConfigTest, YarnHasTheDefaultsOfTransformers) {
  const auto rotary =
      config_of(R"({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "yarn", "factor": 4}})")
          .rotary(1e4);
  EXPECT_EQ(rotary.type, "yarn");
  EXPECT_EQ(rotary.factor, 4.0);
  EXPECT_EQ(rotary.original_max_position_embeddings, 512);
  EXPECT_EQ(rotary.attention_factor, std::nullopt);
  EXPECT_EQ(rotary.beta_fast, 32.0);
  EXPECT_EQ(rotary.beta_slow, 1.0);
  EXPECT_EQ(rotary.mscale, std::nullopt);
  EXPECT_EQ(rotary.mscale_all_dim, std::nullopt);
  EXPECT_TRUE(rotary.truncate);
}

TEST(RotaryConfigTest, YarnReadsEveryKey) {
  const auto rotary =
      config_of(R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 150000, "factor": 32,
      "original_max_position_embeddings": 4096, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2,
      "mscale": 0.7, "mscale_all_dim": 0, "truncate": false, "partial_rotary_factor": 0.5}})")
          .rotary(1e4);
  EXPECT_EQ(rotary.theta, 150000.0);
  EXPECT_EQ(rotary.original_max_position_embeddings, 4096);
  EXPECT_EQ(rotary.attention_factor, 1.5);
  EXPECT_EQ(rotary.beta_fast, 16.0);
  EXPECT_EQ(rotary.beta_slow, 2.0);
  EXPECT_EQ(rotary.mscale, 0.7);
  EXPECT_EQ(rotary.mscale_all_dim, std::nullopt);
  EXPECT_FALSE(rotary.truncate);
  EXPECT_EQ(rotary.partial_rotary_factor, 0.5);
}

TEST(RotaryConfigTest, Llama3NeedsItsFactors) {
  const auto rotary = config_of(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192}})")
                          .rotary(5e5);
  EXPECT_EQ(rotary.factor, 8.0);
  EXPECT_EQ(rotary.low_freq_factor, 1.0);
  EXPECT_EQ(rotary.high_freq_factor, 4.0);
  EXPECT_EQ(rotary.original_max_position_embeddings, 8192);
  expect_error(
      [] {
        config_of(R"({"max_position_embeddings": 8, "rope_scaling": {"rope_type": "llama3",
      "factor": 8, "low_freq_factor": 1}})")
            .rotary(5e5);
      },
      {"\"rope_scaling.high_freq_factor\" is missing"});
  expect_error(
      [] {
        config_of(R"({"max_position_embeddings": 8, "rope_scaling": {"rope_type": "llama3",
      "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})")
            .rotary(5e5);
      },
      {"\"rope_scaling.high_freq_factor\" must be greater"});
}

TEST(RotaryConfigTest, LongropeDerivesItsFactorFromTheLengths) {
  const auto rotary =
      config_of(R"({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
      "rope_scaling": {"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 3],
      "original_max_position_embeddings": 1}})")
          .rotary(1e4);
  EXPECT_EQ(rotary.original_max_position_embeddings, 4096);
  EXPECT_EQ(rotary.factor, 32.0);
  EXPECT_EQ(rotary.short_factor, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(rotary.long_factor, (std::vector<double>{2, 3}));
  expect_error(
      [] {
        config_of(R"({"max_position_embeddings": 8, "rope_scaling": {"type": "longrope",
      "short_factor": [1], "long_factor": []}})")
            .rotary(1e4);
      },
      {"\"rope_scaling.long_factor\" must be"});
  expect_error(
      [] {
        config_of(R"({"max_position_embeddings": 8, "rope_scaling": {"type": "longrope",
      "long_factor": [1]}})")
            .rotary(1e4);
      },
      {"\"rope_scaling.short_factor\" must be"});
}

TEST(RotaryConfigTest, OtherTypesComeThroughByName) {
  EXPECT_EQ(config_of(R"({"rope_scaling": {"type": "of-tomorrow"}})").rotary(1e4).type, "of-tomorrow");
  EXPECT_EQ(config_of(R"({"rope_scaling": {"type": "dynamic", "factor": 2}})").rotary(1e4).type, "dynamic");
}

TEST(RotaryConfigTest, OldAndOtherNamesOfTypesAreKnown) {
  EXPECT_EQ(config_of(R"({"rope_scaling": {"type": "mrope", "mrope_section": [1]}})").rotary(1e4).type,
            "default");
  EXPECT_EQ(config_of(R"({"max_position_embeddings": 8, "rope_scaling": {"type": "su", "short_factor": [1],
      "long_factor": [1]}})")
                .rotary(1e4)
                .type,
            "longrope");
}

TEST(RotaryConfigTest, RefusesParametersOfEachLayerType) {
  expect_error(
      [] { config_of(R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})").rotary(1e4); },
      {"\"rope_parameters.full_attention\"", "of each layer type are not supported"});
}

TEST(RotaryConfigTest, RefusesImpossibleValues) {
  for (
      const char* text :
      {R"({"rope_theta": 0})", R"({"rope_theta": "10000"})", R"({"rope_scaling": "linear"})",
       R"({"rope_scaling": {"type": 1}})", R"({"partial_rotary_factor": 1.5})",
       R"({"rope_scaling": {"type": "yarn", "factor": 2}})",
       R"({"max_position_embeddings": 8, "rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0.5}})"}) {
    expect_error([&] { config_of(text).rotary(1e4); }, {"config.json: \""});
  }
}

TEST(GoldenConfigTest, BothSpellingsReadTheSame) {
  const ModelConfig old_keys = ModelConfig::from_file(kModels / "qwen3/config.json");
  const ModelConfig new_keys = ModelConfig::from_file(kModels / "qwen3-hub/config.json");
  for (const ModelConfig& config : {old_keys, new_keys}) {
    EXPECT_EQ(config.require_int("hidden_size"), 64);
    EXPECT_EQ(config.require_double("rms_norm_eps", kPositive), 1e-6);
    EXPECT_EQ(config.rotary(1e4).theta, 1e6);
    EXPECT_EQ(config.rotary(1e4).type, "default");
    EXPECT_EQ(config.dtype(), DType::kF32);
    EXPECT_EQ(config.eos_token_ids(), std::vector<std::int32_t>{1});
    EXPECT_EQ(config.find_int("sliding_window"), std::nullopt);
  }
  EXPECT_EQ(
      ModelConfig::from_file(kModels / "qwen3-yarn/config.json").rotary(1e4).original_max_position_embeddings,
      128);
}

}  // namespace
}  // namespace quire
