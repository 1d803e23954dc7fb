// Quantised checkpoints on two ranks, and broken ones.
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "expect_error.h"
#include "inspect/verify.h"

namespace quire {
namespace {

std::vector<std::string> broken_checkpoints() {
  std::vector<std::string> names;
  if (!std::filesystem::exists(testing::quantized_folder())) return names;
  for (const auto& entry : std::filesystem::directory_iterator(testing::quantized_folder())) {
    const std::string name = entry.path().filename();
    if (name.starts_with("bad-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

EngineConfig quantized_config(const std::string& name) {
  EngineConfig config;
  config.model = (testing::quantized_folder() / name).string();
  config.dtype = "float32";
  config.device = "cpu";
  config.cpu_isa = "reference";
  config.max_num_seqs = 8;
  return config;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    const std::size_t begin = part.find_first_not_of(' ');
    if (begin != part.npos) parts.push_back(part.substr(begin, part.find_last_not_of(' ') + 1 - begin));
  }
  return parts;
}

class BrokenCheckpointTest : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BrokenCheckpointTest);

// Every line of expect.txt has one of its words in the error.
TEST_P(BrokenCheckpointTest, IsRefusedAndSaysWhatIsWrong) {
  std::ifstream expected(testing::quantized_folder() / GetParam() / "expect.txt");
  std::string message;
  try {
    Engine engine(quantized_config(GetParam()));
    FAIL() << "not refused";
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_EQ(message.find('\n'), message.npos) << message;
  int lines = 0;
  for (std::string line; std::getline(expected, line); ++lines) {
    const std::vector<std::string> words = split(line, '|');
    EXPECT_TRUE(std::any_of(
        words.begin(), words.end(),
        [&](const std::string& word) { return lower(message).find(lower(word)) != message.npos; }))
        << line << " is not in: " << message;
  }
  EXPECT_GT(lines, 0);
}

INSTANTIATE_TEST_SUITE_P(Quantized, BrokenCheckpointTest, ::testing::ValuesIn(broken_checkpoints()),
                         [](const auto& test) { return testing::test_name({test.param}); });

class QuantizedRanksTest : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QuantizedRanksTest);

// What two ranks refuse, by words of the error.
const std::map<std::string, std::string> kNotForTwoRanks = {
    {"q-fp8-block-odd", "attention heads"},
    {"q-gguf-bf16", "attention heads"},
    {"q-gguf-f16", "attention heads"},
    {"q-gptq-int4-g32-desc_act", "an order of their own"},
    {"q-ct-int4-pack-actorder", "an order of their own"},
};

TEST_P(QuantizedRanksTest, TwoRanksComputeTheSame) {
  EngineConfig config = quantized_config(GetParam());
  config.tensor_parallel_size = 2;
  const auto run = [&] {
    EXPECT_TRUE(verify(config, [](const VerifyResult& result) { EXPECT_LE(result.error, result.limit); }));
  };
  const auto refused = kNotForTwoRanks.find(GetParam());
  if (refused == kNotForTwoRanks.end()) return run();
  expect_error(run, {refused->second});
}

INSTANTIATE_TEST_SUITE_P(Quantized, QuantizedRanksTest, ::testing::ValuesIn(testing::quantized_models()),
                         [](const auto& test) { return testing::test_name({test.param}); });

}  // namespace
}  // namespace quire
