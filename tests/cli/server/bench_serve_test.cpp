#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/run_program.h"
#include "cli/server/fake_openai_server.h"
#include "temp_dir.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::FakeOpenAiServer;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_quire;
using namespace std::chrono_literals;

ProgramResult bench(const FakeOpenAiServer& server, const std::string& arguments) {
  return run_quire("bench serve --url " + server.url() + " " + arguments);
}

// The only run of a bench that has to succeed.
json bench_json(const FakeOpenAiServer& server, const std::string& arguments) {
  const ProgramResult result = bench(server, arguments + " --json");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // no progress bar: it is no terminal
  return json::parse(result.out).at("runs").at(0);
}

TEST(BenchServeTest, CountsTokensAndTimesThem) {
  const FakeOpenAiServer server({.first_delay = 60ms, .gap = 10ms});
  const json run = bench_json(server,
                              "--num-prompts 6 --max-concurrency 3 --random-input-len 40 "
                              "--random-output-len 5 --percentiles 0,50,99.9");
  EXPECT_EQ(run.at("completed"), 6);
  EXPECT_EQ(run.at("failed"), 0);
  EXPECT_EQ(run.at("max_concurrency"), 3);
  EXPECT_EQ(run.at("peak_concurrency"), 3);
  EXPECT_EQ(run.at("prompt_tokens"), 6 * 40);
  EXPECT_EQ(run.at("output_tokens"), 6 * 5);
  EXPECT_EQ(run.at("without_usage"), 0);
  EXPECT_GE(run.at("ttft_ms").at("p0"), 60);
  EXPECT_GE(run.at("e2e_ms").at("p0"), 60 + 4 * 10);
  EXPECT_GE(run.at("duration_s"), 2 * 0.1);  // two after each other
  EXPECT_GT(run.at("tpot_ms").at("mean"), 0);
  EXPECT_GE(run.at("itl_ms").at("p99.9"), run.at("itl_ms").at("p50"));
  const double seconds = run.at("duration_s");
  EXPECT_NEAR(run.at("output_tokens_per_s").get<double>(), 30 / seconds, 1e-6);
  EXPECT_NEAR(run.at("total_tokens_per_s").get<double>(), 270 / seconds, 1e-6);
  EXPECT_NEAR(run.at("requests_per_s").get<double>(), 6 / seconds, 1e-6);
}

TEST(BenchServeTest, SendsWhatTheFlagsSay) {
  FakeOpenAiServer server({.api_key = "secret"});
  bench_json(server,
             "--api-key secret --num-prompts 3 --num-warmups 2 --random-input-len 7 --random-output-len 2 "
             "--ignore-eos --temperature 0 --vocab-size 260");
  const std::vector<json> requests = server.requests();
  ASSERT_EQ(requests.size(), 6U);  // the first one and two to warm up
  for (const json& request : requests) {
    EXPECT_EQ(request.at("model"), "fake-model");
    EXPECT_EQ(request.at("prompt").size(), 7U);
    for (const int id : request.at("prompt")) EXPECT_TRUE(id >= 256 && id < 260) << id;
    EXPECT_EQ(request.at("max_tokens"), 2);
    EXPECT_EQ(request.at("ignore_eos"), true);
    EXPECT_EQ(request.at("temperature"), 0);
    EXPECT_EQ(request.at("stream_options").at("include_usage"), true);
  }
}

TEST(BenchServeTest, ChatsWithTextOfTheServersOwnCount) {
  FakeOpenAiServer server({});
  const json run = bench_json(server,
                              "--endpoint /v1/chat/completions --model other --num-prompts 2 "
                              "--random-input-len 3 --random-output-len 4");
  EXPECT_EQ(run.at("prompt_tokens"), 2 * 77);
  EXPECT_EQ(run.at("output_tokens"), 2 * 4);
  const json request = server.requests().back();
  EXPECT_EQ(request.at("model"), "other");
  EXPECT_EQ(request.at("messages").at(0).at("content").at(0).at("type"), "text");
}

TEST(BenchServeTest, DatasetsAreTakenInTurn) {
  FakeOpenAiServer server({});
  const TempDir folder;
  const auto file = folder.write(
      "a.jsonl", "{\"prompt\": \"Hello\", \"output_len\": 2}\n{\"input_len\": 5, \"output_len\": 1}\n");
  bench_json(server, "--num-prompts 3 --max-concurrency 1 --dataset " + file.string());
  const std::vector<json> requests = server.requests();
  ASSERT_EQ(requests.size(), 4U);
  EXPECT_EQ(requests[1].at("prompt"), "Hello");
  EXPECT_EQ(requests[2].at("prompt").size(), 5U);
  EXPECT_EQ(requests[3].at("prompt"), "Hello");
  bench_json(server, "--dataset " + file.string());
  EXPECT_EQ(server.requests().size(), 4U + 3U);
}

TEST(BenchServeTest, StreamsInOddPiecesCountTheSame) {
  for (const char* line_end : {"\n", "\r\n"}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}}) {
      const FakeOpenAiServer server({.line_end = line_end, .piece = piece});
      const json run = bench_json(server, "--num-prompts 4 --random-input-len 8 --random-output-len 9");
      EXPECT_EQ(run.at("completed"), 4);
      EXPECT_EQ(run.at("output_tokens"), 4 * 9);
    }
  }
}

TEST(BenchServeTest, ChunksAreTokensWhereThereIsNoUsage) {
  const FakeOpenAiServer server({.usage = false});
  const json run = bench_json(server, "--num-prompts 2 --random-input-len 8 --random-output-len 9");
  EXPECT_EQ(run.at("without_usage"), 2);
  EXPECT_EQ(run.at("prompt_tokens"), 2 * 8);
  EXPECT_EQ(run.at("output_tokens"), 2 * 9);
}

TEST(BenchServeTest, WithoutStreamsThereIsEndToEndAlone) {
  const FakeOpenAiServer server({.first_delay = 20ms});
  const json run = bench_json(server, "--no-stream --num-prompts 2 --random-output-len 3");
  EXPECT_EQ(run.at("output_tokens"), 2 * 3);
  EXPECT_GE(run.at("e2e_ms").at("p50"), 20);
  EXPECT_TRUE(run.at("ttft_ms").at("p50").is_null());
}

TEST(BenchServeTest, RatesSpreadTheRequests) {
  const FakeOpenAiServer server({});
  const json run = bench_json(server, "--request-rate 50 --num-prompts 20 --random-output-len 1");
  EXPECT_EQ(run.at("completed"), 20);
  EXPECT_EQ(run.at("request_rate"), 50);
  EXPECT_GE(run.at("duration_s"), 20 / 50.0);
}

TEST(BenchServeTest, HundredsOfStreamsAtOnce) {
  const FakeOpenAiServer server({.first_delay = 300ms});
  const json run = bench_json(server, "--num-prompts 256 --random-input-len 8 --random-output-len 20");
  EXPECT_EQ(run.at("completed"), 256);
  EXPECT_EQ(run.at("output_tokens"), 256 * 20);
  EXPECT_GT(server.max_at_once(), 100);
}

TEST(BenchServeTest, AListIsASweepWithAPlot) {
  const FakeOpenAiServer server({.first_delay = 5ms});
  const TempDir folder;
  const std::string plot = (folder.path() / "a.svg").string();
  const ProgramResult result =
      bench(server, "--max-concurrency 1,2,4 --num-prompts 8 --random-output-len 2 --plot " + plot);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* label : {"1 at once\n", "2 at once\n", "4 at once\n"})
    EXPECT_THAT(result.out, HasSubstr(label));
  for (const char* latency : {"TTFT ", "TPOT ", "ITL ", "E2E "}) EXPECT_THAT(result.out, HasSubstr(latency));
  std::ostringstream svg;
  svg << std::ifstream(plot).rdbuf();
  int points = 0;
  for (auto at = svg.str().find("<circle"); at != std::string::npos; at = svg.str().find("<circle", at + 1))
    ++points;
  EXPECT_EQ(points, 3 * 3 * 2);  // loads, latencies, median and 99th percentile
  EXPECT_THAT(svg.str(), HasSubstr("fake-model at " + server.url() + ", by requests at once"));
}

TEST(BenchServeTest, FailuresAreCountedAndTheFirstIsTold) {
  const FakeOpenAiServer server({.refuses = [](int index) { return index % 2 == 1; }});
  const ProgramResult result = bench(server, "--num-prompts 6 --random-output-len 2 --json");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("3 of 6 requests failed, the first with: HTTP 429: \"come back later\""));
  const json run = json::parse(result.out).at("runs").at(0);
  EXPECT_EQ(run.at("completed"), 3);
  EXPECT_EQ(run.at("failed"), 3);
  EXPECT_EQ(run.at("output_tokens"), 3 * 2);
}

TEST(BenchServeTest, AllFailingIsAFailure) {
  const FakeOpenAiServer server({.refuses = [](int index) { return index > 0; }});
  const ProgramResult result = bench(server, "--num-prompts 4 --max-concurrency 1,2");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("4 of 4 requests failed"));
  EXPECT_EQ(result.out.find("2 at once"), std::string::npos) << result.out;
}

void expect_bench_mistake(const ProgramResult& result, const std::string& message) {
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr(message));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(BenchServeTest, AServerThatDoesNotServeIsNamedInOneLine) {
  const FakeOpenAiServer locked({.api_key = "secret"});
  expect_bench_mistake(bench(locked, ""), "/v1/models: HTTP 401: \"wrong key\"");
  expect_bench_mistake(bench(locked, "--model m --api-key other"),
                       "/v1/completions: the first request failed: HTTP 401: \"wrong key\"");
  const FakeOpenAiServer nameless({.lists_models = false});
  expect_bench_mistake(bench(nameless, ""), "/v1/models: HTTP 404: \"no such path\"");
  expect_bench_mistake(bench(nameless, "--model m --endpoint /v2/completions"), "HTTP 404: \"no such path\"");
  const FakeOpenAiServer cut({.cut_after = 2});
  expect_bench_mistake(bench(cut, ""), "/v1/completions: the first request failed: ");
  std::string nowhere;
  {
    const FakeOpenAiServer gone({});
    nowhere = gone.url();
  }
  expect_bench_mistake(run_quire("bench serve --url " + nowhere), nowhere + "/v1/models: Failed to connect");
  expect_bench_mistake(run_quire("bench serve --url ftp://127.0.0.1"), "ftp");
}

TEST(BenchServeTest, WrongFlagsAreMistakes) {
  const std::string start = "bench serve --url http://127.0.0.1:9 ";
  expect_bench_mistake(run_quire("bench serve"), "--url is required");
  expect_bench_mistake(run_quire(start + "--endpoint /v1/embeddings"), "--endpoint is \"/v1/embeddings\"");
  expect_bench_mistake(run_quire(start + "--request-rate 1,2 --max-concurrency 1,2"), "both are lists");
  expect_bench_mistake(run_quire(start + "--request-rate 0"), "--request-rate");
  expect_bench_mistake(run_quire(start + "--max-concurrency 0"), "--max-concurrency");
  expect_bench_mistake(run_quire(start + "--request-rate 1,nan"), "--request-rate: nan is not a number");
  expect_bench_mistake(run_quire(start + "--request-rate 1,inf"), "Failed to connect");  // which is a rate
  expect_bench_mistake(run_quire(start + "--percentiles 101"), "--percentiles");
  expect_bench_mistake(run_quire(start + "--percentiles nan"), "--percentiles: nan is not a number");
  expect_bench_mistake(run_quire(start + "--plot /nowhere/a.svg"), "--plot: cannot write \"/nowhere/a.svg\"");
}

// Of six requests under way at most, the first two are answered; the sixth that is not interrupts the
// program.
TEST(BenchServeTest, AnInterruptionPrintsWhatThereIs) {
  const TempDir folder;
  const std::string pid_file = (folder.path() / "pid").string();
  const auto interrupt = [&] {
    pid_t pid = 0;
    std::ifstream(pid_file) >> pid;
    ASSERT_GT(pid, 1);
    ::kill(pid, SIGINT);
  };
  const FakeOpenAiServer server({.holds = [&](int index) {
    if (index == 2 + 6) interrupt();
    return index > 2;
  }});
  const ProgramResult result = testing::run_shell(
      "sh -c 'echo $$ >" + pid_file + "; exec " QUIRE_PROGRAM " bench serve --url " + server.url() +
      " --num-prompts 50 --max-concurrency 6 --random-output-len 3 --json'");
  EXPECT_EQ(result.code, 130) << result.err;
  const json run = json::parse(result.out).at("runs").at(0);
  EXPECT_EQ(run.at("completed"), 2);
  EXPECT_EQ(run.at("cancelled"), 6);
  EXPECT_EQ(run.at("failed"), 0);
}

}  // namespace
}  // namespace quire
