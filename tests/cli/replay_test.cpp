#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "cli/run_program.h"
#include "record/recording.h"
#include "temp_dir.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ProgramResult;
using testing::run_quire;

class ReplayCommandTest : public ::testing::Test {
 protected:
  // Of a cache in which not all can run at once.
  void record(const std::string& flags = "") {
    const ProgramResult result = run_quire(
        "bench throughput --workload random --requests 6 --input-len 60 --output-len 40 --max-num-seqs 4 "
        "--kv-cache-memory 1MiB --record " +
        file_ + " " + flags);
    ASSERT_EQ(result.code, 0) << result.err;
  }

  TempDir directory_;
  std::string file_ = (directory_.path() / "bench.rec").string();
};

TEST_F(ReplayCommandTest, MakesEveryPlanOfARecordingAgain) {
  for (const char* flags : {"", "--record-tokens", "--swap-space 0.01 --preemption-mode swap"}) {
    record(flags);
    const ProgramResult result = run_quire("replay " + file_ + " --json");
    ASSERT_EQ(result.code, 0) << result.out << result.err;
    const json object = json::parse(result.out);
    EXPECT_GE(object.at("requests"), 6);
    EXPECT_GE(object.at("steps"), 80);
    EXPECT_EQ(object.at("whole"), true);
    EXPECT_EQ(object.at("differs_at"), nullptr);
    const ProgramResult text = run_quire("replay " + file_);
    EXPECT_NE(text.out.find("every plan was made again"), std::string::npos) << text.out;
  }
}

TEST_F(ReplayCommandTest, ShowsAStepWithItsReasonsAndTheStateBehindIt) {
  record();
  const ProgramResult result = run_quire("replay " + file_ + " --at 25");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find("step 25: "), 0U) << result.out;
  EXPECT_NE(result.out.find(" waits for: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("blocks free"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("running, "), std::string::npos) << result.out;
  const ProgramResult late = run_quire("replay " + file_ + " --at 100000");
  EXPECT_EQ(late.code, 2);
  EXPECT_NE(late.err.find("steps, not 100000"), std::string::npos) << late.err;
}

TEST_F(ReplayCommandTest, WhatIsNotPrintedAsJsonIsRefusedWithIt) {
  record();
  const auto expect_refused = [&](const std::string& flags, const std::string& message) {
    const ProgramResult result = run_quire("replay " + file_ + " --json " + flags);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  };
  expect_refused("--at 25", "--at excludes --json");
  RecordingInfo info = Recording(file_).info();
  info.from_start = false;
  const std::vector<std::byte> header = write_header(info);
  std::ofstream(file_, std::ios::binary)
      .write(reinterpret_cast<const char*>(header.data()), static_cast<std::streamsize>(header.size()));
  expect_refused("", "the last part of what was");
  EXPECT_EQ(run_quire("replay " + file_).code, 0);
}

TEST_F(ReplayCommandTest, ReadsARecordingUpToWhereItWasCutOff) {
  record();
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 5);
  const ProgramResult result = run_quire("replay " + file_ + " --json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("whole"), false);
}

TEST_F(ReplayCommandTest, RefusesInOneLineWhatIsNoRecording) {
  std::ofstream(file_) << "something else";
  for (const auto& [arguments, message] :
       {std::pair(file_, "no recording"), std::pair(file_ + "x", "no such file")}) {
    const ProgramResult result = run_quire("replay " + arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
  const ProgramResult result = run_quire("bench throughput --requests 1 --record /no/such/folder/x");
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("/no/such/folder/x"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace quire
