#include "tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

std::string normalize(const Json& config, std::string_view text) {
  std::string buffer;
  return std::string(Normalizer(JsonView(config, "normalizer")).apply(text, buffer));
}
std::string normalize_as(std::string_view type, std::string_view text) {
  return normalize(Json{{"type", type}}, text);
}

TEST(NormalizerTest, UnicodeForms) {
  const std::string text = "ab e\u0301 \uFB01 \u212B \uD55C";
  EXPECT_EQ(normalize_as("NFC", text), "ab \u00E9 \uFB01 \u00C5 \uD55C");
  EXPECT_EQ(normalize_as("NFD", text), "ab e\u0301 \uFB01 A\u030A \u1112\u1161\u11AB");
  EXPECT_EQ(normalize_as("NFKC", text), "ab \u00E9 fi \u00C5 \uD55C");
  EXPECT_EQ(normalize_as("NFKD", text), "ab e\u0301 fi A\u030A \u1112\u1161\u11AB");
}

TEST(NormalizerTest, OrdersMarksByTheirClass) {
  EXPECT_EQ(normalize_as("NFD", "a\u0301\u0323"), "a\u0323\u0301");
  EXPECT_EQ(normalize_as("NFC", "a\u0301\u0323"), "\u1EA1\u0301");
}

// utf8proc's own ordering takes minutes for this.
TEST(NormalizerTest, ManyMarksInARowTakeLinearTime) {
  std::string text = "a", ordered = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0301\u0323";
  for (int i = 0; i < 200'000; ++i) ordered += "\u0323";
  for (int i = 0; i < 200'000; ++i) ordered += "\u0301";
  EXPECT_EQ(normalize_as("NFD", text), ordered);
}

TEST(NormalizerTest, LowercasesEachCharacterByItself) {
  EXPECT_EQ(normalize_as("Lowercase", "AÉΣ\u0130"), "aéσi\u0307");
}

TEST(NormalizerTest, StripsWhiteSpace) {
  const auto strip = [](bool left, bool right, std::string_view text) {
    return normalize(Json{{"type", "Strip"}, {"strip_left", left}, {"strip_right", right}}, text);
  };
  EXPECT_EQ(strip(true, true, "\u3000 a b\n"), "a b");
  EXPECT_EQ(strip(true, false, " a "), "a ");
  EXPECT_EQ(strip(false, true, " a "), " a");
  EXPECT_EQ(strip(false, false, "  "), "  ");
  EXPECT_EQ(strip(true, false, "  "), "");
}

TEST(NormalizerTest, ReplacesAndPrependsInSequence) {
  const Json config = Json::parse(R"({"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "> "},
    {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
    {"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": "x"}]})");
  EXPECT_EQ(normalize(config, "ab cab"), ">_x_cx");
  EXPECT_EQ(normalize(config, ""), "");
}

TEST(NormalizerTest, StripsAccentsThatStandByThemselves) {
  EXPECT_EQ(normalize_as("StripAccents", "e\u0301\u00E9\u20DD"), "e\u00E9");
}

TEST(NormalizerTest, NmtDropsControlsAndWritesPlainSpaces) {
  EXPECT_EQ(normalize_as("Nmt", "a\x07\tb\u200Bc\u2581\u3000"), "a b c \u3000");
}

TEST(NormalizerTest, WritesBytesAsCharacters) { EXPECT_EQ(normalize_as("ByteLevel", " \u00E9"), "\u0120Ã©"); }

TEST(NormalizerTest, BertCleansLowersAndSetsIdeographsApart) {
  Json config = {{"type", "BertNormalizer"}};
  EXPECT_EQ(normalize(config, "\u00C9a\x07\t\u2003\u6F22b\uFFFD"), "ea   \u6F22 b");
  config["lowercase"] = false;
  EXPECT_EQ(normalize(config, "\u00C9"), "\u00C9") << "accents go with the case by default";
  config["strip_accents"] = true;
  EXPECT_EQ(normalize(config, "\u00C9"), "E");
  config["handle_chinese_chars"] = config["clean_text"] = false;
  EXPECT_EQ(normalize(config, "\t\u6F22"), "\t\u6F22");
}

TEST(NormalizerTest, RefusesATextThatGrowsBeyondTheLimit) {
  const Json config = {{"type", "Replace"},
                       {"pattern", {{"String", "a"}}},
                       {"content", std::string(std::size_t{1} << 20, 'x')}};
  EXPECT_THROW(normalize(config, std::string(2000, 'a')), Error);
}

}  // namespace
}  // namespace quire
