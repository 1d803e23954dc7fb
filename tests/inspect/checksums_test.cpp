#include "inspect/checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class ChecksumsTest : public ::testing::Test {
 protected:
  ChecksumsTest() {
    for (const auto& file : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/golden/qwen3"))
      if (file.is_regular_file()) std::filesystem::copy(file.path(), model_.path());
    std::filesystem::create_directory(model_.path() / "folder");
    model_.write("empty", "");
    model_.write(".hidden", "x");
    num_files_ = write_checksums(model_.path());
  }

  TempDir model_;
  std::size_t num_files_ = 0;
};

TEST_F(ChecksumsTest, AFlippedBitOfAnyFileIsFound) {
  EXPECT_THAT(check_checksums(model_.path()), IsEmpty());
  ASSERT_GE(num_files_, 3U);
  std::size_t flipped = 0;
  for (const auto& file : std::filesystem::directory_iterator(model_.path())) {
    const std::string whole = file.is_regular_file() ? read(file.path()) : "";
    if (whole.empty() || file.path().filename() == kManifestName || file.path().filename() == ".hidden")
      continue;
    ++flipped;
    for (const std::size_t at : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
      std::string broken = whole;
      broken[at] = static_cast<char>(broken[at] ^ 1 << at % 8);
      std::ofstream(file.path(), std::ios::binary) << broken;
      EXPECT_THAT(check_checksums(model_.path()),
                  ElementsAre(HasSubstr(file.path().string() + ": its SHA-256 is")));
    }
    std::ofstream(file.path(), std::ios::binary) << whole;
  }
  EXPECT_EQ(flipped, num_files_ - 1);  // all but the empty one
  EXPECT_THAT(check_checksums(model_.path()), IsEmpty());
}

TEST_F(ChecksumsTest, WhatIsGoneCutShortOrNewIsFound) {
  std::filesystem::resize_file(model_.path() / "config.json", 10);
  std::filesystem::remove(model_.path() / "empty");
  model_.write("more.safetensors", "x");
  EXPECT_THAT(check_checksums(model_.path()),
              ElementsAre(HasSubstr("config.json: its SHA-256 is"), HasSubstr("empty: it is gone"),
                          HasSubstr("more.safetensors: the manifest has no such file")));
}

TEST_F(ChecksumsTest, ASingleFileHasAManifestBesideIt) {
  const std::filesystem::path file = model_.write("a.gguf", "weights");
  EXPECT_EQ(write_checksums(file), 1U);
  EXPECT_EQ(read(model_.path() / "a.gguf.sha256"),
            "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c  a.gguf\n");
  EXPECT_THAT(check_checksums(file), IsEmpty());
  model_.write("a.gguf", "weightt");
  EXPECT_THAT(check_checksums(file), ElementsAre(HasSubstr("a.gguf: its SHA-256 is")));
}

TEST_F(ChecksumsTest, AManifestIsNotTrusted) {
  const std::string sum(64, 'a');
  for (const std::string& wrong : {std::string("x"), sum, sum + "  ", sum + "  ../config.json", sum + "  ..",
                                   sum + " *a", std::string(64, 'g') + "  a", sum.substr(1) + "  a",
                                   sum + "  a\n" + sum + "  a\n", std::string("\n"), std::string()}) {
    model_.write(kManifestName, wrong);
    expect_error([&] { check_checksums(model_.path()); }, {kManifestName});
  }
  std::filesystem::remove(model_.path() / kManifestName);
  expect_error([&] { check_checksums(model_.path()); }, {kManifestName, "quire checksum"});
}

}  // namespace
}  // namespace quire
