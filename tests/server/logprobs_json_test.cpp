#include <cmath>
#include <limits>

#include "protocol_fixtures.h"
#include "server/api_response.h"

namespace quire::server {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const TokenNames kNames{&test::byte_tokenizer(), false};

PositionLogprobs position(TokenLogprob token, std::vector<TokenLogprob> top = {}) {
  return {token, std::move(top)};
}

TEST(TokenNamesTest, APartOfACharacterIsNamedByItsBytes) {
  EXPECT_EQ(kNames('a'), "a");
  EXPECT_EQ(kNames('\n'), "\n");
  EXPECT_EQ(kNames(0xE2), "bytes:\\xe2");
  EXPECT_EQ(kNames(0x0F), "\x0F");
  EXPECT_EQ(kNames(257), "<|end|>");
  EXPECT_EQ((TokenNames{&test::byte_tokenizer(), true})('a'), "token_id:97");
  EXPECT_EQ((TokenNames{})('a'), "token_id:97");
}

TEST(CompletionLogprobsTest, AreFourParallelLists) {
  CompletionLogprobs logprobs(kNames, true);
  const std::vector<PositionLogprobs> positions = {
      position({'a', -0.5F, 1}, {{'a', -0.5F, 1}, {'b', -1.5F, 2}}),
      position({'c', -4.0F, 9}, {{'a', -0.25F, 1}, {'b', -1.5F, 2}}),
  };
  logprobs.add(positions);
  EXPECT_EQ(logprobs.take().dump(), R"({"text_offset":[0,1],"token_logprobs":[-0.5,-4.0],"tokens":["a","c"],)"
                                    R"("top_logprobs":[{"a":-0.5,"b":-1.5},{"c":-4.0,"a":-0.25,"b":-1.5}]})");
}

TEST(CompletionLogprobsTest, WithoutTopOnesTheTokenItselfIsThere) {
  CompletionLogprobs logprobs(kNames, true);
  logprobs.add(std::vector{position({'a', -0.5F, 1})});
  EXPECT_EQ(logprobs.take()["top_logprobs"].dump(), R"([{"a":-0.5}])");
}

TEST(CompletionLogprobsTest, ThePromptsFirstTokenHasNone) {
  CompletionLogprobs logprobs(kNames, true);
  logprobs.add_first_of_prompt('x');
  logprobs.add(std::vector{position({'a', -0.5F, 1})});
  const OrderedJson json = logprobs.take();
  EXPECT_EQ(json["token_logprobs"].dump(), "[null,-0.5]");
  EXPECT_EQ(json["top_logprobs"].dump(), R"([null,{"a":-0.5}])");
  EXPECT_EQ(json["tokens"].dump(), R"(["x","a"])");
}

TEST(CompletionLogprobsTest, OffsetsCountCharactersOfTheTextAndGoOn) {
  CompletionLogprobs logprobs(kNames, true);
  std::vector<PositionLogprobs> positions;
  for (const TokenId id : {0xE2, 0x82, 0xAC, 257, int{'a'}}) positions.push_back(position({id, -1, 1}));
  logprobs.add(positions);  // the euro sign, a special token that is not shown, a
  EXPECT_EQ(logprobs.take()["text_offset"].dump(), "[0,1,1,1,1]");
  logprobs.add(std::vector{position({'b', -1, 1})});
  EXPECT_EQ(logprobs.take()["text_offset"].dump(), "[2]");
  CompletionLogprobs shown(kNames, false);
  shown.add(positions);
  EXPECT_EQ(shown.take()["text_offset"].dump(), "[0,1,1,1,8]");
}

TEST(CompletionLogprobsTest, OfTokensOfOneNameTheMoreLikelyCounts) {
  // Two ids without a token: both have the empty text.
  CompletionLogprobs logprobs(kNames, true);
  logprobs.add(std::vector{position({1000, -3.0F, 2}, {{1001, -0.5F, 1}}),
                           position({1001, -0.5F, 1}, {{1000, -3.0F, 2}})});
  EXPECT_EQ(logprobs.take()["top_logprobs"].dump(), R"([{"":-0.5},{"":-0.5}])");
}

TEST(CompletionLogprobsTest, ThereIsNoInfinityInJson) {
  CompletionLogprobs logprobs(kNames, true);
  logprobs.add(std::vector{position({'a', -kInfinity, 5}, {{'b', -1e30F, 1}})});
  const OrderedJson json = logprobs.take();
  EXPECT_EQ(json["token_logprobs"].dump(), "[-9999.0]");
  EXPECT_EQ(json["top_logprobs"].dump(), R"([{"a":-9999.0,"b":-9999.0}])");
}

// lm-evaluation-harness decides by equality whether a token was the most likely one.
TEST(CompletionLogprobsTest, AFloatIsPrintedTheSameEverywhere) {
  CompletionLogprobs logprobs(kNames, true);
  float value = -0.1F;
  for (int i = 0; i < 1000; ++i) {
    logprobs.add(std::vector{position({'a', value, 1}, {{'a', value, 1}, {'b', value - 1, 2}})});
    value = std::nextafter(value * 1.01F, -kInfinity);
  }
  const OrderedJson json = OrderedJson::parse(logprobs.take().dump());
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(json["token_logprobs"][i].get<double>(), json["top_logprobs"][i]["a"].get<double>());
    EXPECT_EQ(json["token_logprobs"][i].dump(), json["top_logprobs"][i]["a"].dump());
  }
}

TEST(ChatLogprobsTest, HaveBytes) {
  const std::vector<PositionLogprobs> positions = {
      position({0xE2, -0.5F, 1}, {{0xE2, -0.5F, 1}, {'b', -kInfinity, 2}})};
  EXPECT_EQ(
      chat_logprobs(positions, kNames).dump(),
      R"({"content":[{"token":"bytes:\\xe2","logprob":-0.5,"bytes":[226],"top_logprobs":[)"
      R"({"token":"bytes:\\xe2","logprob":-0.5,"bytes":[226]},{"token":"b","logprob":-9999.0,"bytes":[98]}]}]})");
  EXPECT_EQ(chat_logprobs(std::vector{position({'a', -0.5F, 1})}, kNames).dump(),
            R"({"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}]})");
}

TEST(PromptLogprobsTest, AreMapsById) {
  EXPECT_EQ(
      prompt_logprobs_json(std::vector{position({'c', -4.0F, 9}, {{'a', -0.25F, 1}})}, kNames).dump(),
      R"([null,{"99":{"logprob":-4.0,"rank":9,"decoded_token":"c"},"97":{"logprob":-0.25,"rank":1,"decoded_token":"a"}}])");
}

}  // namespace
}  // namespace quire::server
