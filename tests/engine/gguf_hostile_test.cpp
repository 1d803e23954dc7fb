// Every whole number among the keys of a GGUF file at its extremes.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "engine/engine.h"
#include "engine/gguf_converter.h"
#include "temp_dir.h"

namespace quire {
namespace {

// The keys whose values are whole numbers of 32 bits, and where these stand in the file; of a list the first.
std::map<std::string, std::size_t> whole_numbers(const std::string& bytes) {
  std::size_t at = 16;
  const auto number = [&]<typename T>(T value) {
    std::memcpy(&value, &bytes[at], sizeof value);
    at += sizeof value;
    return value;
  };
  const auto text = [&] {
    const auto size = number(std::uint64_t{});
    at += size;
    return bytes.substr(at - size, size);
  };
  std::map<std::string, std::size_t> found;
  for (auto num_keys = number(std::uint64_t{}); num_keys > 0; --num_keys) {
    const std::string key = text();
    auto type = number(std::uint32_t{});
    const bool is_list = type == 9;
    if (is_list) type = number(std::uint32_t{});
    const std::uint64_t count = is_list ? number(std::uint64_t{}) : 1;
    if ((type == 4 || type == 5) && count > 0) found.emplace(key, at);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (type == 8)
        text();
      else
        at += type == 7 ? 1 : 4;
    }
  }
  return found;
}

class HostileGgufTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// It is an error that names the file, or it does no harm; and where a number is a size of what is in the
// file, it is an error.
TEST_P(HostileGgufTest, EveryWholeNumberAtItsExtremesIsRefusedOrHasNoEffect) {
  const auto& [model, architecture] = GetParam();
  if (!std::filesystem::exists(testing::golden_directory(model))) GTEST_SKIP() << model << " is not there";
  const TempDir folder;
  testing::GgufConverter converter(model, architecture);
  converter.add_tokens({"<|end|>"});
  const std::string whole = converter.convert();
  EngineConfig config = testing::golden_config(model);
  config.model = (folder.path() / "model.gguf").string();
  const auto is_refused = [&](const std::string& bytes) {
    folder.write("model.gguf", bytes);
    try {
      const Engine engine(config);
      return false;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("model.gguf"), std::string::npos) << e.what();
      return true;
    }
  };
  EXPECT_FALSE(is_refused(whole));
  const auto numbers = whole_numbers(whole);
  EXPECT_GT(numbers.size(), 6U);
  std::set<std::string> taken;
  for (const auto& [key, at] : numbers) {
    for (const std::uint32_t value : {0U, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFFU}) {
      SCOPED_TRACE(key + " is " + std::to_string(value));
      std::string bytes = whole;
      std::memcpy(&bytes[at], &value, sizeof value);
      if (bytes != whole && !is_refused(bytes)) taken.insert(key);
    }
  }
  for (const char* size : {"block_count", "embedding_length", "attention.head_count",
                           "attention.head_count_kv", "feed_forward_length", "context_length"})
    EXPECT_FALSE(taken.contains(std::string(architecture) + "." + size)) << size;
}

INSTANTIATE_TEST_SUITE_P(Families, HostileGgufTest,
                         ::testing::Values(std::pair("llama3", "llama"), std::pair("mixtral", "llama"),
                                           std::pair("gemma3", "gemma3"), std::pair("qwen3-yarn", "qwen3"),
                                           std::pair("qwen3_5-moe", "qwen35moe"),
                                           std::pair("lfm2-moe", "lfm2moe"), std::pair("gpt-oss", "gpt-oss")),
                         [](const auto& test) { return testing::test_name({test.param.first}); });

}  // namespace
}  // namespace quire
