#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "expect_error.h"
#include "hub/hub_cache.h"
#include "temp_dir.h"

namespace quire {
namespace {

// The environment holds only what a test sets.
class HubSettingsTest : public ::testing::Test {
 protected:
  HubSettingsTest() {
    for (const char* name :
         {"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_CACHE",
          "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
      ::unsetenv(name);
    set("HOME", directory_.path().string());
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  TempDir directory_;
};

TEST_F(HubSettingsTest, TheCacheIsWhereHuggingfaceHubHasIt) {
  const auto cache = [] { return hub_settings_from_environment().cache; };
  EXPECT_EQ(cache(), directory_.path() / ".cache/huggingface/hub");
  set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(cache(), "/x/huggingface/hub");
  set("HF_HOME", "/h");
  EXPECT_EQ(cache(), "/h/hub");
  set("HUGGINGFACE_HUB_CACHE", "/old");
  EXPECT_EQ(cache(), "/old");
  set("HF_HUB_CACHE", "~/c");
  EXPECT_EQ(cache(), directory_.path() / "c");
  set("HF_HUB_CACHE", "");  // as if it were not set
  EXPECT_EQ(cache(), "/old");
}

TEST_F(HubSettingsTest, WithoutAHomeTheCacheMustBeNamed) {
  ::unsetenv("HOME");
  expect_error([] { hub_settings_from_environment(); }, {"HF_HOME"});
  set("HF_HUB_CACHE", "relative");
  EXPECT_EQ(hub_settings_from_environment().cache, "relative");
}

TEST_F(HubSettingsTest, TheTokenIsThatOfTheVariableOrElseOfTheFile) {
  const auto token = [] { return hub_settings_from_environment().token; };
  EXPECT_EQ(token(), "");
  std::filesystem::create_directories(directory_.path() / ".cache/huggingface");
  directory_.write(".cache/huggingface/token", "hf_file\n");
  EXPECT_EQ(token(), "hf_file");
  set("HF_TOKEN_PATH", directory_.write("other", " hf_other\r\n").string());
  EXPECT_EQ(token(), "hf_other");
  set("HUGGING_FACE_HUB_TOKEN", "hf_old");
  EXPECT_EQ(token(), "hf_old");
  set("HF_TOKEN", " hf_variable\n");
  EXPECT_EQ(token(), "hf_variable");
  set("HF_TOKEN", "hf_\x01");
  expect_error(token, {"HF_TOKEN"});
}

TEST_F(HubSettingsTest, TheEndpointIsAnHttpUrl) {
  EXPECT_EQ(hub_settings_from_environment().endpoint, "https://huggingface.co");
  set("HF_ENDPOINT", "https://mirror.example/");
  EXPECT_EQ(hub_settings_from_environment().endpoint, "https://mirror.example");
  set("HF_ENDPOINT", "mirror.example");
  expect_error([] { hub_settings_from_environment(); }, {"HF_ENDPOINT", "mirror.example", "https://"});
}

TEST_F(HubSettingsTest, OfflineIsWhatPythonTakesForTrue) {
  EXPECT_FALSE(hub_settings_from_environment().offline);
  for (const char* yes : {"1", "true", "YES", "On"}) {
    set("HF_HUB_OFFLINE", yes);
    EXPECT_TRUE(hub_settings_from_environment().offline) << yes;
  }
  set("HF_HUB_OFFLINE", "0");
  EXPECT_FALSE(hub_settings_from_environment().offline);
}

TEST(HubIdTest, IsWhatHuggingfaceHubTakesForOne) {
  for (const char* id : {"Qwen/Qwen3-0.6B", "gpt2", "a/b", "org_1/x.y-z", "123"})
    EXPECT_TRUE(is_hub_id(id)) << id;
  for (const char* id : {"", "/", "/x", "x/", "a/b/c", "./a", "../a", "a/..", "a..b/c", "a--b/c", "-a/b",
                         "a/b.", "a b/c", "~/a", "a/b.git", "a/\xc3\xa4"})
    EXPECT_FALSE(is_hub_id(id)) << id;
  EXPECT_FALSE(is_hub_id(std::string(97, 'a')));
}

}  // namespace
}  // namespace quire
