#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/run_program.h"
#include "hub/fake_hub.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::AllOf;
using testing::FakeHub;
using ::testing::HasSubstr;
using testing::HubConnection;
using testing::HubRequest;
using ::testing::Not;
using testing::ProgramResult;
using testing::run_quire;
using testing::run_shell;

const std::string kToyFolder = std::string(QUIRE_SOURCE_DIR) + "/models/toy";
const std::string kGenerate = " -p 'What is Quire?' --chat --temperature 0 --max-tokens 12";

// A hub that has the bundled model as org/name.
class CliHubTest : public ::testing::Test {
 protected:
  CliHubTest() {
    for (const auto& item : std::filesystem::directory_iterator(kToyFolder)) {
      std::ostringstream text;
      text << std::ifstream(item.path(), std::ios::binary).rdbuf();
      hub_.files[item.path().filename().string()] = text.str();
    }
  }

  std::string environment() const {
    return "env -u HF_HUB_CACHE -u HF_HUB_OFFLINE HF_HOME=" + home_.path().string() +
           " HF_ENDPOINT=" + hub_.url() + " HF_TOKEN=hf_secret ";
  }
  std::string command(const std::string& arguments) const {
    return environment() + QUIRE_PROGRAM + " " + arguments;
  }
  ProgramResult run(const std::string& arguments, const std::string& input = "") const {
    return run_shell(command(arguments), input);
  }
  std::filesystem::path blobs() const { return home_.path() / "hub/models--org--name/blobs"; }

  TempDir home_;
  FakeHub hub_;
};

TEST_F(CliHubTest, AModelOfTheHubRunsLikeItsDirectory) {
  const ProgramResult expected = run_quire("generate " + kToyFolder + kGenerate);
  const ProgramResult first = run("generate org/name" + kGenerate);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, expected.out);
  EXPECT_THAT(first.err,
              AllOf(HasSubstr("downloading org/name to " + home_.path().string()), Not(HasSubstr("\r"))));
  for (const HubRequest& request : hub_.requests())
    EXPECT_EQ(request.header("authorization"), request.at_storage ? "" : "Bearer hf_secret");
  hub_.forget_requests();
  const ProgramResult offline = run("generate org/name --offline" + kGenerate);
  EXPECT_EQ(offline.code, 0) << offline.err;
  EXPECT_EQ(offline.out, expected.out);
  EXPECT_EQ(offline.err, "");
  EXPECT_EQ(hub_.requests().size(), 0U);
}

TEST_F(CliHubTest, WhatNeedsNoWeightsBringsNone) {
  const ProgramResult plan = run("plan org/name --memory 64GiB");
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.out, run_quire("plan " + kToyFolder + " --memory 64GiB").out);
  const ProgramResult tokens = run("tokenize org/name", "\"What is Quire?\"\n");
  EXPECT_EQ(tokens.code, 0) << tokens.err;
  EXPECT_EQ(tokens.out, run_quire("tokenize " + kToyFolder, "\"What is Quire?\"\n").out);
  EXPECT_EQ(run("detokenize org/name", tokens.out).out, "\"What is Quire?\"\n");
  const std::string context = R"({"messages":[{"role":"user","content":"Hi"}]})";
  EXPECT_EQ(run("render org/name", context).out, run_quire("render " + kToyFolder, context).out);
  EXPECT_EQ(hub_.count("GET", "model.safetensors"), 0);
}

TEST_F(CliHubTest, ADirectoryOfThatNameWins) {
  const std::string cd =
      "cd " + home_.path().string() + " && mkdir org && ln -s " + kToyFolder + " org/name && ";
  const ProgramResult result = run_shell(cd + command("plan org/name --memory 64GiB"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(hub_.requests().size(), 0U);
}

TEST_F(CliHubTest, MistakesAreOneLineAndCodeTwo) {
  const auto expect_mistake = [&](const std::string& arguments, std::initializer_list<std::string> parts) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_THAT(result.err, Not(HasSubstr("hf_secret")));
  };
  expect_mistake("generate org/name --offline -p hi", {"org/name", "offline"});
  expect_mistake("generate org/other -p hi", {"org/other", "HTTP 401"});
  expect_mistake("generate org/name --revision v9 -p hi", {"v9", "no such revision"});
  expect_mistake("generate ./org/name -p hi", {"./org/name", "no such directory"});
}

TEST_F(CliHubTest, TwoProgramsAtOnceBringTheWeightsOnce) {
  ProgramResult results[2];
  {
    std::jthread other([&] { results[1] = run("generate org/name" + kGenerate); });
    results[0] = run("generate org/name" + kGenerate);
  }
  for (const ProgramResult& result : results) EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(results[0].out, results[1].out);
  int at_storage = 0;
  for (const HubRequest& request : hub_.requests()) at_storage += request.at_storage ? 1 : 0;
  EXPECT_EQ(at_storage, 1);
}

TEST_F(CliHubTest, CtrlCEndsWith130AndTheNextRunGoesOn) {
  const std::string pid_file = (home_.path() / "pid").string();
  const std::string& weights = hub_.files["model.safetensors"];
  const std::filesystem::path part = blobs() / (testing::sha256_of(weights) + ".incomplete");
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!request.at_storage) return false;
    connection.head(200, "", weights.size());
    connection.send(std::string_view(weights).substr(0, 100'000));
    std::error_code ec;
    while (std::filesystem::file_size(part, ec) != 100'000) std::this_thread::yield();
    pid_t pid = 0;
    std::ifstream(pid_file) >> pid;
    if (pid > 1) ::kill(pid, SIGINT);
    connection.hold();
    return true;
  };
  const ProgramResult stopped =
      run_shell("sh -c 'echo $$ >" + pid_file + "; exec " + command("generate org/name -p hi") + "'");
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("is kept"));
  EXPECT_EQ(std::filesystem::file_size(part), 100'000U);
  hub_.settle();
  hub_.intercept = nullptr;
  const ProgramResult resumed = run("generate org/name" + kGenerate);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(hub_.requests().back().header("range"), "bytes=100000-");
}

}  // namespace
}  // namespace quire
