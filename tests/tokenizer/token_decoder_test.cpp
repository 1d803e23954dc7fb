#include "tokenizer/token_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

using Tokens = std::vector<std::string>;

TokenDecoder decoder(std::string_view steps) {
  const Json config = Json::parse(R"({"type": "Sequence", "decoders": )" + std::string(steps) + "}");
  return TokenDecoder(JsonView(config, "decoder"));
}

// What each token yields, and then the end.
Tokens stream(std::string_view steps, const Tokens& tokens) {
  const TokenDecoder parts = decoder(steps);
  TokenDecoderStream stream(parts);
  Tokens texts;
  for (const std::string& token : tokens) texts.push_back(stream.push(token));
  texts.push_back(stream.finish());
  return texts;
}

constexpr std::string_view kByteFallback = R"([{"type": "ByteFallback"}])";

TEST(DecoderTest, ARunOfByteTokensIsTextOrOneReplacementAByte) {
  EXPECT_EQ(stream(kByteFallback, {"<0xC3>", "<0xa9>", "b"}), (Tokens{"", "", "\u00E9b", ""}));
  EXPECT_EQ(stream(kByteFallback, {"<0xC3>", "<0xA9>"}), (Tokens{"", "", "\u00E9"}));
  EXPECT_EQ(stream(kByteFallback, {"<0x41>", "<0xC3>", "b"}), (Tokens{"", "", "\uFFFD\uFFFDb", ""}));
  EXPECT_EQ(stream(kByteFallback, {"<0xE2>", "<0x82>"}), (Tokens{"", "", "\uFFFD\uFFFD"}));
  EXPECT_EQ(stream(kByteFallback, {"<0xZZ>", "<0x4>", "<0x041>"}),
            (Tokens{"<0xZZ>", "<0x4>", "<0x041>", ""}));
}

TEST(DecoderTest, StripsEachTokenOrTheJoinedText) {
  EXPECT_EQ(stream(R"([{"type": "Strip", "content": " ", "start": 1, "stop": 1}])", {"  a ", " ", ""}),
            (Tokens{" a", "", "", ""}));
  constexpr std::string_view kJoined =
      R"([{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 1}])";
  EXPECT_EQ(stream(kJoined, {" ", "  a", " b", " ", " "}), (Tokens{"", " a", " b", "", " ", ""}));
  EXPECT_EQ(stream(kJoined, {"a ", "b"}), (Tokens{"a", " b", ""}));
}

TEST(DecoderTest, MetaspaceTakesTheSpacesOfTheFirstToken) {
  constexpr std::string_view kAlways = R"([{"type": "Metaspace", "replacement": "_"}])";
  EXPECT_EQ(stream(kAlways, {"__a_b", "_c"}), (Tokens{"ab", " c", ""}));
  constexpr std::string_view kNever =
      R"([{"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"}])";
  EXPECT_EQ(stream(kNever, {"_a", "_b"}), (Tokens{" a", " b", ""}));
}

TEST(DecoderTest, AWordsEndIsASpaceUnlessItEndsTheText) {
  EXPECT_EQ(stream(R"([{"type": "BPEDecoder", "suffix": "</w>"}])", {"a", "b</w>", "c</w>"}),
            (Tokens{"a", "", "b ", "c"}));
}

TEST(DecoderTest, AStreamBeginsAnewBehindTheEnd) {
  const TokenDecoder parts = decoder(R"([{"type": "Metaspace", "replacement": "_"}])");
  TokenDecoderStream stream(parts);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(stream.push("_a"), "a");
    EXPECT_EQ(stream.push("_a"), " a");
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(DecoderTest, BytesAreThoseOfATokenWithinAText) {
  const TokenDecoder llama = decoder(
      R"([{"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"},
          {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}])");
  EXPECT_EQ(llama.bytes("_a"), " a");
  EXPECT_EQ(llama.bytes("<0xC3>"), "\xC3");
  EXPECT_EQ(decoder(R"([{"type": "ByteLevel"}])").bytes("\u0120a"), " a");
}

TEST(DecoderTest, RefusesWhatCannotBeStreamed) {
  for (const char* steps :
       {R"([{"type": "Fuse"}, {"type": "ByteLevel"}])",
        R"([{"type": "ByteLevel"}, {"type": "ByteFallback"}])",
        R"([{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}])",
        R"([{"type": "BPEDecoder", "suffix": ""}])",
        R"([{"type": "Strip", "content": "ab", "start": 1, "stop": 0}])",
        R"([{"type": "Strip", "content": " ", "start": -1, "stop": 0}])"}) {
    EXPECT_THROW(decoder(steps), Error) << steps;
  }
}

}  // namespace
}  // namespace quire
