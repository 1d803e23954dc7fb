#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/json.h"
#include "expect_error.h"
#include "load/load_generator.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = RequestTimeline::State;

TEST(ArrivalTimesTest, FollowTheSeedAndTheRate) {
  const std::vector<double> times = arrival_times(1000, 50, 7);
  EXPECT_EQ(times, arrival_times(1000, 50, 7));
  EXPECT_NE(times, arrival_times(1000, 50, 8));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GT(times.front(), 0);
  EXPECT_NEAR(times.back(), 1000.0 / 50, 1e-9);
}

// Of exponentially distributed intervals the deviation is the mean, and 1 / e are longer than that.
TEST(ArrivalTimesTest, AreAPoissonProcess) {
  const std::vector<double> times = arrival_times(20'000, 10, 1);
  double squares = 0;
  int longer = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double interval = times[i] - times[i - 1];
    squares += (interval - 0.1) * (interval - 0.1);
    longer += interval > 0.1 ? 1 : 0;
  }
  EXPECT_NEAR(std::sqrt(squares / 20'000), 0.1, 0.005);
  EXPECT_NEAR(longer / 20'000.0, std::exp(-1), 0.02);
}

TEST(ArrivalTimesTest, AnInfiniteRateIsAllAtOnce) {
  EXPECT_THAT(arrival_times(3, std::numeric_limits<double>::infinity(), 0), ElementsAre(0, 0, 0));
}

TEST(RandomRequestsTest, LengthsFillTheirRange) {
  std::set<int> input;
  std::set<int> output;
  for (const LoadRequest& request : random_requests({2000, 20, 10, 0.5}, 3)) {
    input.insert(request.size.prompt_tokens);
    output.insert(request.size.output_tokens);
  }
  EXPECT_EQ(*input.begin(), 10);
  EXPECT_EQ(*input.rbegin(), 30);
  EXPECT_EQ(*output.begin(), 5);
  EXPECT_EQ(*output.rbegin(), 15);
  for (const LoadRequest& request : random_requests({5, 20, 10, 0}, 3)) {
    EXPECT_EQ(request.size.prompt_tokens, 20);
    EXPECT_EQ(request.size.output_tokens, 10);
  }
}

TEST(FillPromptsTest, TokensAreInTheVocabularyAndFollowTheSeed) {
  const auto filled = [](std::uint64_t seed) {
    std::vector<LoadRequest> requests = random_requests({4, 500, 1, 0}, 0);
    fill_prompts(requests, false, 300, seed);
    return requests;
  };
  const std::vector<LoadRequest> requests = filled(1);
  std::set<TokenId> ids;
  for (const LoadRequest& request : requests) {
    EXPECT_EQ(request.token_ids.size(), 500U);
    ids.insert(request.token_ids.begin(), request.token_ids.end());
  }
  EXPECT_EQ(*ids.begin(), 256);
  EXPECT_EQ(*ids.rbegin(), 299);
  EXPECT_EQ(requests[2].token_ids, filled(1)[2].token_ids);
  EXPECT_NE(requests[2].token_ids, filled(2)[2].token_ids);
  EXPECT_NE(requests[2].token_ids, requests[3].token_ids);
}

TEST(FillPromptsTest, AChatHasWordsAndAGivenTextStays) {
  std::vector<LoadRequest> requests = random_requests({1, 7, 1, 0}, 0);
  requests.push_back({{0, 5}, "given", {}});
  fill_prompts(requests, true, 4096, 0);
  EXPECT_EQ(std::count(requests[0].text.begin(), requests[0].text.end(), ' '), 6);
  EXPECT_EQ(requests[1].text, "given");
}

TEST(DatasetTest, LinesHaveAPromptOrALength) {
  const TempDir folder;
  const auto file = folder.write(
      "a.jsonl", "{\"prompt\": \"Hello\", \"output_len\": 7}\n\n{\"input_len\": 3, \"output_len\": 9}");
  const std::vector<LoadRequest> requests = read_dataset(file);
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].text, "Hello");
  EXPECT_EQ(requests[0].size.output_tokens, 7);
  EXPECT_EQ(requests[1].text, "");
  EXPECT_EQ(requests[1].size.prompt_tokens, 3);
  EXPECT_EQ(requests[1].size.output_tokens, 9);
}

TEST(DatasetTest, ErrorsNameTheLine) {
  const TempDir folder;
  const auto expect = [&](std::string_view text, std::string_view message) {
    expect_error([&] { read_dataset(folder.write("a.jsonl", text)); }, {"a.jsonl", message});
  };
  expect("{\"prompt\": \"a\", \"output_len\": 1}\n{\"prompt\": \"a\"}\n", "line 2: output_len must be");
  expect("{\"prompt\": 3, \"output_len\": 1}", "line 1: prompt must be a text");
  expect("{\"input_len\": 0, \"output_len\": 1}", "line 1: input_len must be");
  expect("{\"input_len\": 1, \"output_len\": 1e99}", "line 1: output_len must be");
  expect("[]", "line 1: this is an array");
  expect("{", "line 1");
  expect("\n", "no requests");
}

TEST(RequestBodyTest, ACompletionHasWhatVllmsBenchmarkSends) {
  RequestForm form{"m", false, true, true, 0.5};
  const Json body = parse_json(request_body({{3, 9}, "", {256, 300, 299}}, form), "body");
  EXPECT_EQ(body, (Json{{"model", "m"},
                        {"prompt", {256, 300, 299}},
                        {"max_tokens", 9},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}},
                        {"ignore_eos", true},
                        {"temperature", 0.5}}));
}

TEST(RequestBodyTest, AChatHasOneTextPart) {
  const Json body = parse_json(request_body({{3, 9}, "a b", {}}, {"m", true, false, false, {}}), "body");
  const Json part = {{"type", "text"}, {"text", "a b"}};
  const Json message = {{"role", "user"}, {"content", Json::array({part})}};
  EXPECT_EQ(body, (Json{{"model", "m"},
                        {"messages", Json::array({message})},
                        {"max_completion_tokens", 9},
                        {"stream", false}}));
}

TEST(RequestBodyTest, ExtraFieldsGoBeforeTheOthers) {
  RequestForm form{"m"};
  form.extra_body = R"({"stream": false, "structured_outputs": {"regex": "a"}})";
  const Json body = parse_json(request_body({{3, 9}, "a", {}}, form), "body");
  EXPECT_EQ(body["stream"], false);
  EXPECT_EQ(body["structured_outputs"], (Json{{"regex", "a"}}));
  for (const char* wrong : {"[1]", "{", ""}) {
    form.extra_body = wrong;
    expect_error([&] { request_body({{3, 9}, "a", {}}, form); }, {"--extra-body"});
  }
}

constexpr const char* kToken = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
constexpr const char* kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\n";
constexpr const char* kDone = "data: [DONE]\n\n";

TEST(AnswerReaderTest, TakesTheTimesOfChunksWithChoices) {
  RequestTimeline timeline;
  timeline.prompt_tokens = 10;
  AnswerReader reader(timeline, true);
  reader.read(200, kToken, 1.0);
  reader.read(200, ": ping\n\n", 1.5);
  reader.read(200, std::string(kToken) + kToken, 2.0);
  reader.read(200, kUsage, 3.0);
  reader.read(200, kDone, 4.0);
  reader.end({200, ""}, 5.0);
  EXPECT_EQ(timeline.state, State::kDone) << timeline.error;
  EXPECT_THAT(timeline.chunks, ElementsAre(1.0, 2.0, 2.0));
  EXPECT_EQ(timeline.end, 2.0);
  EXPECT_TRUE(timeline.has_usage);
  EXPECT_EQ(timeline.prompt_tokens, 11);
  EXPECT_EQ(timeline.output_tokens, 5);
}

// Of a stream with these choices, one a chunk, and then this.
RequestTimeline read_stream(const std::vector<std::string>& choices, const std::string& last) {
  RequestTimeline timeline;
  AnswerReader reader(timeline, true);
  for (const std::string& choice : choices) reader.read(200, "data: {\"choices\":[" + choice + "]}\n\n", 1);
  reader.read(200, "data: " + last + "\n\n" + kDone, 1);
  reader.end({200, ""}, 2);
  return timeline;
}

TEST(AnswerReaderTest, TakesIdsAndCachedTokensAsQuireAndVllmTellThem) {
  const RequestTimeline timeline = read_stream(
      {R"({"text":"a","logprobs":null,"token_ids":[7,8]})", R"({"text":"b","token_ids":[9]})"},
      R"({"choices":[],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}})");
  EXPECT_THAT(timeline.token_ids, ElementsAre(7, 8, 9));
  EXPECT_EQ(timeline.cached_tokens, 4);
}

TEST(AnswerReaderTest, TakesIdsAndCachedTokensAsLlamaCppTellsThem) {
  const RequestTimeline timeline =
      read_stream({R"({"text":"a","logprobs":{"content":[{"id":7,"token":"a"}]}})", R"({"logprobs":null})"},
                  R"({"choices":[],"usage":{"prompt_tokens":5},"timings":{"cache_n":3}})");
  EXPECT_THAT(timeline.token_ids, ElementsAre(7));
  EXPECT_EQ(timeline.cached_tokens, 3);
}

TEST(AnswerReaderTest, WhatIsNotToldIsNotTaken) {
  const RequestTimeline timeline =
      read_stream({R"({"text":"a","token_ids":null,"logprobs":{"content":[{"token":"a"}]}})"},
                  R"({"choices":[],"usage":{"prompt_tokens":5,"prompt_tokens_details":null}})");
  EXPECT_EQ(timeline.state, State::kDone) << timeline.error;
  EXPECT_TRUE(timeline.token_ids.empty());
  EXPECT_FALSE(timeline.cached_tokens);
}

TEST(AnswerReaderTest, WithoutUsageChunksAreTokens) {
  RequestTimeline timeline;
  timeline.prompt_tokens = 10;
  AnswerReader reader(timeline, true);
  reader.read(200, std::string(kToken) + kToken + kDone, 1.0);
  reader.end({200, ""}, 2.0);
  EXPECT_EQ(timeline.state, State::kDone);
  EXPECT_FALSE(timeline.has_usage);
  EXPECT_EQ(timeline.prompt_tokens, 10);
  EXPECT_EQ(timeline.output_tokens, 2);
}

TEST(AnswerReaderTest, AWholeAnswerHasItsEndAlone) {
  RequestTimeline timeline;
  AnswerReader reader(timeline, false);
  reader.read(200, "{\"choices\":[{}],\"usage\":{\"prompt_tokens\":2,", 1.0);
  reader.read(200, "\"completion_tokens\":3}}", 2.0);
  reader.end({200, ""}, 3.0);
  EXPECT_EQ(timeline.state, State::kDone) << timeline.error;
  EXPECT_TRUE(timeline.chunks.empty());
  EXPECT_EQ(timeline.end, 3.0);
  EXPECT_EQ(timeline.output_tokens, 3);
}

struct BadAnswer {
  bool stream;
  int status;
  std::string bytes;
  std::string transport_error;
  std::string message;
};

class BadAnswerTest : public ::testing::TestWithParam<BadAnswer> {};

TEST_P(BadAnswerTest, FailsWithWhatWasWrong) {
  const BadAnswer& answer = GetParam();
  RequestTimeline timeline;
  AnswerReader reader(timeline, answer.stream);
  if (!answer.bytes.empty()) reader.read(answer.status, answer.bytes, 1.0);
  reader.end({answer.status, answer.transport_error}, 2.0);
  EXPECT_EQ(timeline.state, State::kFailed);
  EXPECT_THAT(timeline.error, HasSubstr(answer.message));
  EXPECT_EQ(timeline.error.find('\n'), std::string::npos) << timeline.error;
}

INSTANTIATE_TEST_SUITE_P(
    Every, BadAnswerTest,
    ::testing::Values(
        BadAnswer{true, 0, "", "connection refused", "connection refused"},
        BadAnswer{true, 200, kToken, "cut off", "cut off"},
        BadAnswer{true, 200, kToken, "", "ended before [DONE]"},
        BadAnswer{true, 200, std::string(kUsage) + kDone, "", "no chunk with choices"},
        BadAnswer{true, 200, "data: {\"error\":{\"message\":\"out of\\nluck\"}}\n\n", "", "out of\\nluck"},
        BadAnswer{true, 200, "data: {\n\n", "", "an event of the stream"},
        BadAnswer{true, 200, "data: 3\n\n", "", "expected an object"},
        BadAnswer{true, 200, "data: {\"choices\":[{\"logprobs\":[]}]}\n\n", "", "content"},
        BadAnswer{true, 401, "{\"error\":{\"message\":\"no key\"}}", "", "HTTP 401: \"no key\""},
        BadAnswer{true, 502, "<html>\n", "", "HTTP 502: \"<html>\\n\""},
        BadAnswer{false, 429, "{\"message\":\"full\"}", "", "HTTP 429: \"full\""},
        BadAnswer{false, 200, "{\"choices\":", "", "the answer"},
        BadAnswer{false, 200, "[]", "", "no completion"}));

RequestTimeline done(double sent, std::vector<double> chunks, int output_tokens) {
  RequestTimeline timeline;
  timeline.state = State::kDone;
  timeline.sent = sent;
  timeline.end = chunks.back();
  timeline.chunks = std::move(chunks);
  timeline.prompt_tokens = 100;
  timeline.output_tokens = output_tokens;
  timeline.has_usage = true;
  return timeline;
}

TEST(LoadFiguresTest, FollowFromTheTimelines) {
  LoadResult result;
  result.seconds = 4;
  result.timelines = {done(0, {0.5, 0.7, 1.0}, 3), done(0.5, {1.5, 2.5}, 5), done(1, {1.25}, 1)};
  result.timelines[2].has_usage = false;
  const LoadFigures figures = load_figures(result);
  EXPECT_EQ(figures.num_done, 3U);
  EXPECT_EQ(figures.num_without_usage, 1U);
  EXPECT_EQ(figures.peak_concurrency, 2U);  // the third is sent when the first has ended
  EXPECT_EQ(figures.prompt_tokens, 300);
  EXPECT_EQ(figures.output_tokens, 9);
  EXPECT_DOUBLE_EQ(figures.per_s(figures.num_done), 0.75);
  EXPECT_DOUBLE_EQ(figures.per_s(figures.prompt_tokens), 75);
  EXPECT_DOUBLE_EQ(figures.per_s(figures.output_tokens), 2.25);
  EXPECT_DOUBLE_EQ(figures.per_s(figures.prompt_tokens + figures.output_tokens), 77.25);
  const auto near = [](double value) { return DoubleNear(value, 1e-9); };
  EXPECT_THAT(figures.ttft_ms, ElementsAre(near(500), near(1000), near(250)));
  EXPECT_THAT(figures.tpot_ms, ElementsAre(near(250), near(250)));
  EXPECT_THAT(figures.itl_ms, ElementsAre(near(200), near(300), near(1000)));
  EXPECT_THAT(figures.e2e_ms, ElementsAre(near(1000), near(2000), near(250)));
}

TEST(LoadFiguresTest, FailedAndCancelledRequestsCountForThemselves) {
  LoadResult result;
  result.seconds = 2;
  result.timelines = {done(0, {1}, 1), done(0, {1}, 1), done(0, {1}, 1), done(0, {1}, 1), {}};
  result.timelines[1].state = State::kFailed;
  result.timelines[1].error = "first";
  result.timelines[2].state = State::kFailed;
  result.timelines[2].error = "second";
  result.timelines[3].state = State::kUnderWay;
  const LoadFigures figures = load_figures(result);
  EXPECT_EQ(figures.num_done, 1U);
  EXPECT_EQ(figures.num_failed, 2U);
  EXPECT_EQ(figures.num_cancelled, 1U);
  EXPECT_EQ(figures.peak_concurrency, 4U);
  EXPECT_EQ(figures.first_error, "first");
  EXPECT_EQ(figures.output_tokens, 1);
  EXPECT_EQ(figures.e2e_ms.size(), 1U);
}

TEST(LoadFiguresTest, NothingDoneIsNotMeasured) {
  const LoadFigures figures = load_figures({{RequestTimeline{}}, 1});
  EXPECT_TRUE(std::isnan(figures.per_s(figures.num_done)));
  EXPECT_TRUE(std::isnan(mean(figures.ttft_ms)));
  EXPECT_EQ(figures.peak_concurrency, 0U);
}

}  // namespace
}  // namespace quire
