#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/run_program.h"
#include "cli/server/fake_openai_server.h"
#include "server/api_server_fixture.h"
#include "temp_dir.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::FakeOpenAiServer;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_quire;

const std::string kSmall =
    "--system-len 100 --turns 3 --input-len 20 40 --output-len 3 9 --conversations 4 --temperature 0 ";
const std::string kTwoAtOnce = kSmall + "--concurrency 2 ";

ProgramResult bench_agent(const std::string& url, const std::string& arguments = "",
                          const std::string& load = kTwoAtOnce) {
  return run_quire("bench agent --url " + url + " " + load + arguments);
}

using BenchAgentServerTest = server::ApiServerTest;

// The same conversations as in process, and so the same tokens.
TEST_F(BenchAgentServerTest, AServerOfOursIsMeasuredAsTheEngineInProcess) {
  start();
  const ProgramResult there = bench_agent("http://127.0.0.1:" + std::to_string(server_->port()), "--json");
  ASSERT_EQ(there.code, 0) << there.err;
  const ProgramResult here = run_quire("bench agent --cpu-threads 1 --json " + kTwoAtOnce);
  ASSERT_EQ(here.code, 0) << here.err;
  const json served = json::parse(there.out);
  const json measured = json::parse(here.out);
  EXPECT_EQ(served.at("completed"), 12);
  for (const char* figure : {"prompt_tokens", "output_tokens"})
    EXPECT_EQ(served.at(figure), measured.at(figure)) << figure;
  for (const std::size_t turn : {1, 2})
    for (const char* figure : {"reusable_tokens", "cached_share", "computed_again_share"})
      EXPECT_EQ(served.at("turns").at(turn).at(figure), measured.at("turns").at(turn).at(figure)) << figure;
  EXPECT_LT(served.at("computed_again_share"), 0.1);
  EXPECT_GT(served.at("ttft_ms").at("p50"), 0);
}

TEST(BenchAgentAgainstServersTest, PromptsAreIdsThatGoOnFromTurnToTurn) {
  FakeOpenAiServer server({});
  const ProgramResult result = bench_agent(server.url(), "--concurrency 1", kSmall);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> requests = server.requests();
  ASSERT_EQ(requests.size(), 8U + 12);  // the warm-up's first
  for (std::size_t i = 8; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].at("model"), "fake-model");
    EXPECT_EQ(requests[i].at("ignore_eos"), true);
    EXPECT_EQ(requests[i].at("return_token_ids"), true);
    EXPECT_EQ(requests[i].at("stream"), true);
    EXPECT_EQ(requests[i].at("temperature"), 0);
    const std::vector<int> prompt = requests[i].at("prompt");
    const std::vector<int> before = requests[(i - 8) % 3 == 0 ? 8 : i - 1].at("prompt");
    const std::size_t common = (i - 8) % 3 == 0 ? 100 : before.size();
    EXPECT_TRUE(
        std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(common), prompt.begin()));
  }
}

TEST(BenchAgentAgainstServersTest, WhatAServerDoesNotTellIsNotTold) {
  const FakeOpenAiServer server({});
  const ProgramResult table = bench_agent(server.url());
  EXPECT_THAT(table.out, HasSubstr("not told\n"));
  EXPECT_THAT(table.out, HasSubstr("again      not told of "));
  const json object = json::parse(bench_agent(server.url(), "--json").out);
  EXPECT_TRUE(object.at("computed_again_share").is_null());
  EXPECT_TRUE(object.at("turns").at(1).at("cached_share").is_null());
  EXPECT_GT(object.at("reusable_tokens"), 0);
}

TEST(BenchAgentAgainstServersTest, FailuresAreToldAndTheFirstOneIsAMistake) {
  const FakeOpenAiServer some({.refuses = [](int index) { return index == 8; }});
  const ProgramResult result = bench_agent(some.url(), "--json");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "quire: turn 1 of a conversation: HTTP 429: \"come back later\"\n");
  EXPECT_EQ(json::parse(result.out).at("failed"), 1);
  EXPECT_EQ(json::parse(result.out).at("completed"), 9);
  const FakeOpenAiServer all({.refuses = [](int) { return true; }});
  const ProgramResult refused = bench_agent(all.url());
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.err, "quire: the first request failed: HTTP 429: \"come back later\"\n");
  const FakeOpenAiServer most({.refuses = [](int index) { return index >= 8; }});
  EXPECT_EQ(bench_agent(most.url()).code, 1);
}

// Of two conversations at once, one waits for ever behind its second turn when the program is interrupted.
TEST(BenchAgentAgainstServersTest, AnInterruptionPrintsWhatThereIs) {
  const TempDir folder;
  const std::string pid_file = (folder.path() / "pid").string();
  const auto interrupt = [&] {
    pid_t pid = 0;
    std::ifstream(pid_file) >> pid;
    ASSERT_GT(pid, 1);
    ::kill(pid, SIGINT);
  };
  const FakeOpenAiServer server({.holds = [&](int index) {
    if (index == 8 + 5) interrupt();
    return index >= 8 + 4;
  }});
  const ProgramResult result =
      testing::run_shell("sh -c 'echo $$ >" + pid_file + "; exec " QUIRE_PROGRAM " bench agent --url " +
                         server.url() + " " + kTwoAtOnce + " --json'");
  EXPECT_EQ(result.code, 130) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object.at("completed"), 4);
  EXPECT_EQ(object.at("failed"), 0);
}

}  // namespace
}  // namespace quire
