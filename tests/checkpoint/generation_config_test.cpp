#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

TEST(GenerationConfigTest, ReadsEosAndSamplingDefaults) {
  const TempDir dir;
  dir.write("generation_config.json", R"({"eos_token_id": [151645, 151643], "temperature": 0.6, "top_k": 20,
      "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.05, "max_new_tokens": 512, "do_sample": true,
      "transformers_version": "5.0"})");
  const GenerationConfig config = read_generation_config(dir.path());
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int32_t>{151645, 151643}));
  EXPECT_EQ(config.temperature, 0.6F);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.95F);
  EXPECT_EQ(config.min_p, 0.0F);
  EXPECT_EQ(config.repetition_penalty, 1.05F);
  EXPECT_EQ(config.max_new_tokens, 512);
}

TEST(GenerationConfigTest, AbsentFileAndNullsLeaveEverythingOpen) {
  const TempDir dir;
  for (int i = 0; i < 2; ++i) {
    const GenerationConfig config = read_generation_config(dir.path());
    EXPECT_TRUE(config.eos_token_ids.empty());
    EXPECT_EQ(config.temperature, std::nullopt);
    EXPECT_EQ(config.top_k, std::nullopt);
    dir.write("generation_config.json", R"({"eos_token_id": null, "temperature": null, "top_k": null})");
  }
}

TEST(GenerationConfigTest, NotSamplingDoesNotChangeTheTemperature) {
  EXPECT_EQ(parse_generation_config({R"({"do_sample": false})", "g"}).temperature, std::nullopt);
}

TEST(GenerationConfigTest, RefusesValuesNoSamplerTakes) {
  for (const char* entry :
       {"\"temperature\": -0.1", "\"temperature\": \"1\"", "\"top_p\": 0", "\"top_p\": 1.1", "\"min_p\": -1",
        "\"min_p\": 2", "\"repetition_penalty\": 0", "\"top_k\": -2", "\"top_k\": 0.5",
        "\"max_new_tokens\": 0", "\"eos_token_id\": -5"}) {
    SCOPED_TRACE(entry);
    const std::string_view key = std::string_view(entry).substr(0, std::string_view(entry).find(':'));
    expect_error(
        [&] {
          parse_generation_config({"{" + std::string(entry) + "}", "generation_config.json"});
        },
        {"generation_config.json: " + std::string(key) + " must be"});
  }
}

}  // namespace
}  // namespace quire
