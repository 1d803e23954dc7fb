#include "tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

std::string normalize(const Json& config, std::string_view text) {
  std::string buffer;
  return std::string(Normalizer::from_json(JsonView(config, "normalizer")).apply(text, buffer));
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

TEST(NormalizerTest, RefusesATextThatGrowsBeyondTheLimit) {
  const Json config = {{"type", "Replace"},
                       {"pattern", {{"String", "a"}}},
                       {"content", std::string(std::size_t{1} << 20, 'x')}};
  EXPECT_THROW(normalize(config, std::string(2000, 'a')), Error);
}

}  // namespace
}  // namespace quire
