#include "engine/model_files.h"

#include <gtest/gtest.h>

#include "checkpoint/safetensors_builder.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

// What an author recommends, as `config` leaves it.
GenerationConfig left_by(const EngineConfig& config) {
  GenerationConfig authors;
  authors.eos_token_ids = {7};
  authors.temperature = 0.6F;
  authors.top_k = 20;
  return given_defaults(authors, config).generation;
}

TEST(GivenDefaultsTest, TheAuthorsDefaultsHoldUnlessSaidOtherwise) {
  const GenerationConfig left = left_by({});
  EXPECT_EQ(left.temperature, 0.6F);
  EXPECT_EQ(left.top_k, 20);
}

TEST(GivenDefaultsTest, VllmMeansNobodysDefaultsButTheModelsEnd) {
  EngineConfig config;
  config.generation_config = "vllm";
  const GenerationConfig left = left_by(config);
  EXPECT_FALSE(left.temperature || left.top_k);
  EXPECT_EQ(left.eos_token_ids, std::vector<std::int32_t>{7});
}

TEST(GivenDefaultsTest, AFoldersDefaultsReplaceTheModels) {
  const TempDir folder;
  EngineConfig config;
  config.generation_config = folder.path();
  expect_error([&] { left_by(config); }, {"generation_config is", folder.path().string(), "vllm"});
  folder.write("generation_config.json", R"({"temperature": 0.25, "eos_token_id": [1, 2]})");
  const GenerationConfig left = left_by(config);
  EXPECT_EQ(left.temperature, 0.25F);
  EXPECT_FALSE(left.top_k);
  EXPECT_EQ(left.eos_token_ids, (std::vector<std::int32_t>{1, 2}));
}

TEST(GivenDefaultsTest, OverridesHoldOverWhatTheyName) {
  EngineConfig config;
  config.override_generation_config = R"({"temperature": 0, "max_new_tokens": 9, "min_p": 0.5})";
  const GenerationConfig left = left_by(config);
  EXPECT_EQ(left.temperature, 0.0F);
  EXPECT_EQ(left.max_new_tokens, 9);
  EXPECT_EQ(left.min_p, 0.5F);
  EXPECT_EQ(left.top_k, 20);
}

TEST(GivenDefaultsTest, WrongOverridesAreNamed) {
  EngineConfig config;
  for (const auto& [json, what] : {std::pair{"{", "override_generation_config"},
                                   {"[]", "override_generation_config"},
                                   {R"({"temperature": -1})", "temperature"},
                                   {R"({"temprature": 1})", "temprature"},
                                   {R"({"top_k": "many"})", "top_k"}}) {
    config.override_generation_config = json;
    expect_error([&] { left_by(config); }, {what});
  }
}

TEST(GivenDefaultsTest, ATemplateThatIsWrongIsAnErrorBeforeAnyModelIsThere) {
  EngineConfig config;
  config.chat_template = "{% for %}";
  expect_error([&] { given_defaults({}, config); }, {"chat_template", "line 1"});
}

TEST(ReadConfigTest, ATypeThatTheFileDoesNotSayIsThatOfTheWeights) {
  const TempDir folder;
  folder.write("config.json", R"({"architectures": ["X"]})");
  EXPECT_EQ(read_config(folder.path()).dtype(), std::nullopt);
  folder.write("model.safetensors",
               safetensors_bytes(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", "xxxx"));
  EXPECT_EQ(read_config(folder.path()).dtype(), DType::kBF16);
  folder.write("config.json", R"({"architectures": ["X"], "dtype": "float16"})");
  EXPECT_EQ(read_config(folder.path()).dtype(), DType::kF16);
}

}  // namespace
}  // namespace quire
