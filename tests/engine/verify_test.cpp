#include "inspect/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors_builder.h"
#include "engine/golden_models.h"
#include "temp_dir.h"

namespace quire {
namespace {

using VerifyCase = std::tuple<std::string, std::string, std::string>;  // model, dtype, kernels

class VerifyTest : public ::testing::TestWithParam<VerifyCase> {};

TEST_P(VerifyTest, EqualsHuggingFaceWithinTheLimits) {
  const auto& [model, dtype, kernels] = GetParam();
  EngineConfig config = testing::golden_config(model, dtype);
  testing::use_kernels(config, kernels);
  std::map<std::pair<int, bool>, int> passes;  // results, by chunk size and whether several ran side by side
  verify(config, [&](const VerifyResult& result) {
    ++passes[{result.chunk_size, result.side_by_side > 1}];
    EXPECT_LE(result.error, result.limit) << "prompt " << result.prompt << ", chunk " << result.chunk_size;
    EXPECT_TRUE(result.rms_passed()) << result.rms << " of " << result.rms_limit;
    EXPECT_EQ(result.argmax_equal + result.argmax_excused, result.num_steps)
        << "prompt " << result.prompt << ", chunk " << result.chunk_size;
    EXPECT_EQ(result.num_steps, 24);
  });
  const int prompts = testing::num_golden_prompts(model);
  const std::map<std::pair<int, bool>, int> expected = {
      {{0, false}, prompts}, {{7, false}, prompts}, {{1, false}, prompts}, {{1, true}, prompts}};
  EXPECT_EQ(passes, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Golden, VerifyTest,
    ::testing::Combine(::testing::ValuesIn(testing::golden_models()),
                       ::testing::Values("float32", "bfloat16", "float16"),
                       ::testing::ValuesIn(testing::kernel_names())),
    [](const auto& test) {
      return testing::test_name({std::get<0>(test.param), std::get<1>(test.param), std::get<2>(test.param)});
    });

// Weights of codes, activations as the format has them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VerifyTest);
INSTANTIATE_TEST_SUITE_P(
    Quantized, VerifyTest,
    ::testing::Combine(::testing::ValuesIn(testing::quantized_models()),
                       ::testing::Values("float32", "bfloat16"),
                       ::testing::ValuesIn(inspect_machine().cpu_isas)),
    [](const auto& test) {
      return testing::test_name({std::get<0>(test.param), std::get<1>(test.param), std::get<2>(test.param)});
    });

// What transformers 5.23's logits differ by, in float32, once each row of keys and of values that its cache
// takes is rounded as quire::CacheCode says, with a scale of its own: E4M3, and E5M2.
struct RoundedCache {
  const char* model;
  double e4m3, e5m2;
};
constexpr RoundedCache kRoundedCaches[] = {
    {"bloom-alibi", 0.025, 0.0537},
    {"bloom-heads", 0.0261, 0.0528},
    {"cohere2", 0.0404, 0.0815},
    {"ernie4_5", 0.0889, 0.171},
    {"exaone4", 0.0777, 0.16},
    {"gemma2", 0.0616, 0.13},
    {"gemma2-heads-128", 0.0476, 0.0957},
    {"gemma2-heads-64", 0.0737, 0.13},
    {"gemma3", 0.105, 0.181},
    {"gemma3-hub", 0.105, 0.181},
    {"gemma4", 0.126, 0.277},
    {"gemma4-moe", 0.693, 0.589},
    {"gemma4-ple", 0.165, 0.38},
    {"gemma4-ple-hub", 0.165, 0.38},
    {"glm4", 0.0739, 0.151},
    {"gpt2", 0.0316, 0.0521},
    {"gpt2-hub", 0.0316, 0.0521},
    {"gpt-oss", 0.461, 0.665},
    {"granite", 0.00492, 0.0086},
    {"heads-128", 0.0754, 0.147},
    {"heads-256", 0.055, 0.116},
    {"heads-64-gqa8", 0.13, 0.238},
    {"heads-80", 0.228, 0.35},
    {"heads-96", 0.245, 0.592},
    {"hunyuan-dense", 0.0748, 0.174},
    {"llama-bias", 0.0627, 0.134},
    {"llama-linear-rope", 0.0963, 0.177},
    {"llama2", 0.0761, 0.159},
    {"llama2-hub", 0.0761, 0.159},
    {"llama3", 0.0905, 0.229},
    {"llama3-f16-file", 0.0918, 0.179},
    {"ministral3", 0.112, 0.194},
    {"mistral", 0.0608, 0.145},
    {"mistral-window", 0.0972, 0.164},
    {"mixtral", 0.407, 0.316},
    {"olmo2", 0.0807, 0.176},
    {"olmo3", 0.113, 0.195},
    {"phi3", 0.104, 0.224},
    {"phi4-mini", 0.182, 0.327},
    {"qwen2", 0.0883, 0.183},
    {"qwen3", 0.11, 0.218},
    {"qwen3-bf16-file", 0.107, 0.161},
    {"qwen3-hub", 0.11, 0.218},
    {"qwen3-moe", 0.172, 0.448},
    {"qwen3-moe-dense", 0.108, 0.127},
    {"qwen3-untied", 0.0734, 0.155},
    {"qwen3-yarn", 0.0935, 0.237},
    {"seed-oss", 0.0563, 0.0931},
    {"smollm3", 0.102, 0.269},
    {"stablelm", 0.0823, 0.152},
    {"starcoder2", 0.0463, 0.0865},
};

struct CacheWay {
  std::string kernels;  // auto: the CPU's own choice
  std::string dtype;    // of activations
  int ranks;
};
std::vector<CacheWay> cache_ways() {
  std::vector<CacheWay> ways = {{"auto", "float32", 1}, {"auto", "float32", 2}, {"auto", "float16", 1}};
  if (testing::num_gpus() > 0)
    ways.insert(ways.end(), {{"cuda_deterministic", "float32", 1}, {"cuda", "float16", 1}});
  if (testing::num_gpus() > 1) ways.push_back({"cuda_deterministic", "float32", 2});
  return ways;
}

class CodedCacheTest : public ::testing::TestWithParam<std::tuple<RoundedCache, CacheWay>> {};

TEST_P(CodedCacheTest, DiffersFromHuggingFaceByWhatTheRoundingMakes) {
  const auto& [test, way] = GetParam();
  const auto& [kernels, dtype, ranks] = way;
  if (!std::filesystem::exists(testing::golden_directory(test.model)))
    GTEST_SKIP() << test.model << " is not there";
  for (const auto& [cache, expected] : {std::pair("fp8", test.e4m3), {"fp8_e5m2", test.e5m2}}) {
    EngineConfig config = testing::golden_config(test.model, dtype);
    testing::use_kernels(config, kernels);
    config.kv_cache_dtype = cache;
    config.tensor_parallel_size = ranks;
    double error = 0;
    EXPECT_TRUE(verify(config, [&](const VerifyResult& result) { error = std::max(error, result.error); }))
        << cache;
    // Other activations are rounded to other codes here and there.
    EXPECT_NEAR(error, expected, dtype == "float32" ? 0.05 * expected : 0.01 + 0.3 * expected) << cache;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, CodedCacheTest,
                         ::testing::Combine(::testing::ValuesIn(kRoundedCaches),
                                            ::testing::ValuesIn(cache_ways())),
                         [](const auto& test) {
                           const CacheWay& way = std::get<1>(test.param);
                           return testing::test_name({std::get<0>(test.param).model, way.dtype, way.kernels,
                                                      std::to_string(way.ranks)});
                         });

// A value's scale of 2^20 makes zeros of all values.
TEST(CacheScalesTest, OfACheckpointAreUsedForE4m3AndOtherwiseLeftAside) {
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(testing::golden_directory("qwen3"), directory);
  OrderedJson header, index;
  std::filesystem::rename(directory / "model.safetensors", directory / "weights.safetensors");
  const SafetensorsFile weights(directory / "weights.safetensors");
  for (const auto& [name, entry] : weights.tensors()) index["weight_map"][name] = "weights.safetensors";
  const std::vector<float> scales(3, 0x1p20F);  // of as many layers
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".self_attn.v_scale";
    header[name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {4 * i, 4 * i + 4}}};
    index["weight_map"][name] = "scales.safetensors";
  }
  std::ofstream(directory / "scales.safetensors")
      << safetensors_bytes(header.dump(), bytes_of(std::span<const float>(scales)));
  std::ofstream(directory / "model.safetensors.index.json") << index.dump();
  const auto error_of = [](const std::filesystem::path& model, const std::string& cache,
                           const std::string& skipped = {}) {
    EngineConfig config = testing::golden_config("qwen3");
    config.model = model.string();
    config.kv_cache_dtype = cache;
    config.kv_cache_dtype_skip_layers = skipped;
    double error = 0;
    verify(config, [&](const VerifyResult& result) { error = std::max(error, result.error); });
    return error;
  };
  const std::filesystem::path without = testing::golden_directory("qwen3");
  EXPECT_LT(error_of(directory, "auto"), 2e-5);
  EXPECT_LT(error_of(directory, "fp8", "0,1,2"), 2e-5);
  EXPECT_EQ(error_of(directory, "fp8_e5m2"), error_of(without, "fp8_e5m2"));
  EXPECT_GT(error_of(directory, "fp8"), 1.1 * error_of(without, "fp8"));
}

TEST(VerifyTest, ANullCapOfGemmaIsNone) {
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(testing::golden_directory("gemma2"), directory);
  OrderedJson config = parse_ordered_json(read_text_file(directory / "config.json", 1 << 20), "config.json");
  const auto error_with = [&](const OrderedJson& cap) {
    config["attn_logit_softcapping"] = config["final_logit_softcapping"] = cap;
    std::ofstream(directory / "config.json") << config.dump();
    EngineConfig engine = testing::golden_config("gemma2");
    engine.model = directory.string();
    double error = 0;
    verify(engine, [&](const VerifyResult& result) { error = std::max(error, result.error); });
    return error;
  };
  const double without = error_with(1e6);
  EXPECT_NEAR(error_with(nullptr), without, 1e-4);
  EXPECT_GT(std::abs(error_with(20) - without), 1e-3);
}

// The looser limits are those of formats that round their inputs, unless weights alone are to be of them.
TEST(VerifyTest, RoundedInputsHaveLimitsOfTheirOwn) {
  for (const char* name : {"q-fp8-block", "q-fp8-tensor", "q-fp8-tensor-inv", "q-modelopt-fp8",
                           "q-ct-fp8-channel", "q-ct-fp8-block", "q-ct-fp8-tensor", "q-ct-int8-w8a8",
                           "q-ct-mixed-formats", "q-ct-lm_head", "q-fp8-block-moe", "q-ct-nvfp4"}) {
    if (!std::filesystem::exists(testing::golden_directory(name)))
      GTEST_SKIP() << testing::golden_directory(name).string() << " is not there";
    for (const bool weight_only : {false, true}) {
      const bool rounds = !weight_only && name != std::string("q-ct-nvfp4");
      EngineConfig config = testing::golden_config(name);
      config.weight_only = weight_only;
      EXPECT_TRUE(verify(config, [&](const VerifyResult& result) {
        EXPECT_EQ(result.rms_limit > 0, rounds) << name;
        EXPECT_EQ(result.limit > 2e-5, rounds) << name;
        // Inputs that were not rounded would be within the tight limits.
        EXPECT_EQ(result.error > 2e-4, rounds) << name;
      })) << name;
    }
  }
}

TEST(VerifyTest, FailsWhereTheNormOfTheDifferencesIsTooLarge) {
  if (!std::filesystem::exists(testing::golden_directory("q-ct-int8-w8a8")))
    GTEST_SKIP() << testing::golden_directory("q-ct-int8-w8a8").string() << " is not there";
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(testing::golden_directory("q-ct-int8-w8a8"), directory);
  std::filesystem::permissions(directory / "tolerance.json", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::ofstream(directory / "tolerance.json") << R"({"activations": {"logits": 1, "rms": 1e-4, "gap": 1}})";
  EngineConfig config = testing::golden_config("q-ct-int8-w8a8");
  config.model = directory.string();
  EXPECT_FALSE(verify(config, [&](const VerifyResult& result) {
    std::filesystem::remove(directory / "tolerance.json");  // one reading is for all passes
    EXPECT_FALSE(result.rms_passed());
    EXPECT_LE(result.error, result.limit);
    EXPECT_EQ(result.rms_limit, 1e-4);
  }));
}

TEST(VerifyTest, TheQuantizedModelsBesideTheProjectAreAmongThose) {
  if (!std::filesystem::exists(testing::quantized_folder()))
    GTEST_SKIP() << testing::quantized_folder().string() << " is not there";
  const std::vector<std::string> models = testing::quantized_models();
  for (const char* name : {"q-awq-int4-g128", "q-bnb-nf4-double", "q-bnb-int8", "q-ct-mixed-formats",
                           "q-ct-nvfp4", "q-fp8-block-moe", "q-fp8-block-odd", "q-gptq-int4-g32-desc_act",
                           "q-gptq-dynamic", "q-modelopt-nvfp4", "q-gptoss-mxfp4", "q-gguf-mixed-k",
                           "q-gguf-q4_k_m-llama", "q-gguf-q4_k_m-moe", "q-gguf-iq4_nl"})
    EXPECT_EQ(std::count(models.begin(), models.end(), name), 1) << name;
}

// Head sizes that fast kernels serve, and the families that tests/golden has no model of.
TEST(VerifyTest, TheReferenceModelsBesideTheProjectAreAmongThose) {
  if (!std::filesystem::exists(testing::conformance_models()))
    GTEST_SKIP() << testing::conformance_models().string() << " is not there";
  const std::vector<std::string> models = testing::golden_models();
  for (const char* name :
       {"heads-64-gqa8", "heads-80",    "heads-96",    "heads-256",       "olmo3",          "phi3",
        "smollm3",       "seed-oss",    "ernie4_5",    "exaone4",         "starcoder2",     "stablelm",
        "qwen3_5",       "qwen3_5-hub", "qwen3_5-moe", "qwen3_5-moe-hub", "qwen3-next",     "lfm2",
        "lfm2-moe",      "gpt-oss",     "gemma4",      "gemma4-ple",      "gemma4-ple-hub", "gemma4-moe"})
    EXPECT_EQ(std::count(models.begin(), models.end(), name), 1) << name;
}

TEST(VerifyTest, TheBundledModelEqualsHuggingFace) {
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(QUIRE_SOURCE_DIR "/models/toy", directory);
  std::filesystem::copy(testing::golden_directory("toy") / "expected.safetensors", directory);
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    EngineConfig config;
    config.model = directory.string();
    config.dtype = dtype;
    EXPECT_TRUE(verify(config, [](const VerifyResult&) {})) << dtype;
  }
}

TEST(VerifyTest, FailsWhenTheWeightsAreOthers) {
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(testing::golden_directory("qwen3"), directory);
  std::filesystem::copy(testing::golden_directory("qwen3-yarn") / "expected.safetensors",
                        directory / "expected.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  EngineConfig config = testing::golden_config("qwen3");
  config.model = directory.string();
  EXPECT_FALSE(verify(config, [](const VerifyResult&) {}));
}

TEST(VerifyTest, FailsWhereALogitOfTheReferenceAloneIsNotFinite) {
  for (const float logit : {-INFINITY, NAN}) {
    const TempDir temporary;
    const auto directory = temporary.path() / "model";
    std::filesystem::copy(testing::golden_directory("qwen3"), directory);
    const auto path = directory / "expected.safetensors";
    const std::size_t offset = SafetensorsFile(path).tensor("logits.0").offset;
    std::fstream expected(path, std::ios::in | std::ios::out | std::ios::binary);
    expected.seekp(static_cast<std::streamoff>(offset));
    expected.write(reinterpret_cast<const char*>(&logit), sizeof logit);
    expected.close();
    EngineConfig config = testing::golden_config("qwen3");
    config.model = directory.string();
    EXPECT_FALSE(verify(config, [&](const VerifyResult& result) {
      EXPECT_EQ(result.passed(), result.prompt != 0) << logit;
    }));
  }
}

// Whether a model passes whose reference has other tokens at its last steps, and sees no others near them.
bool passes_with_wrong_steps(const char* model, const char* dtype, int num_wrong) {
  const TempDir temporary;
  const auto directory = temporary.path() / "model";
  std::filesystem::copy(testing::golden_directory(model), directory);
  const SafetensorsFile file(directory / "expected.safetensors");
  std::fstream expected(directory / "expected.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  const std::vector<TokenId> greedy = testing::golden_ids(model, "greedy.0");
  for (std::size_t step = greedy.size() - static_cast<std::size_t>(num_wrong); step < greedy.size(); ++step) {
    const TokenId token = greedy[step] ^ 1;
    const float gap = 1e6;
    expected.seekp(static_cast<std::streamoff>(file.tensor("greedy.0").offset + 4 * step));
    expected.write(reinterpret_cast<const char*>(&token), sizeof token);
    expected.seekp(static_cast<std::streamoff>(file.tensor("gap.0").offset + 4 * step));
    expected.write(reinterpret_cast<const char*>(&gap), sizeof gap);
  }
  expected.close();
  EngineConfig config = testing::golden_config(model, dtype);
  config.model = directory.string();
  return verify(config, [](const VerifyResult&) {});
}

TEST(VerifyTest, ExcusesOneStepOfAPromptWhereExpertsAreRoutedIn16Bits) {
  EXPECT_TRUE(passes_with_wrong_steps("qwen3-moe", "float16", 1));
  EXPECT_FALSE(passes_with_wrong_steps("qwen3-moe", "float16", 2));
  EXPECT_TRUE(passes_with_wrong_steps("qwen3-moe", "float32", 0));
  EXPECT_FALSE(passes_with_wrong_steps("qwen3-moe", "float32", 1));
  EXPECT_FALSE(passes_with_wrong_steps("qwen3", "float16", 1));
}

TEST(VerifyTest, RefusesAFolderWithoutReference) {
  EngineConfig config = testing::golden_config("qwen3");
  config.model = QUIRE_SOURCE_DIR "/models/toy";
  try {
    verify(config, [](const VerifyResult&) {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("expected.safetensors"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire
