#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/run_program.h"
#include "simulate/step_costs.h"
#include "temp_dir.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ProgramResult;
using testing::run_quire;

// A millisecond a token, and ten a step.
class SimulateCommandTest : public ::testing::Test {
 protected:
  SimulateCommandTest() {
    machine_.model = "a model";
    machine_.device = "a device";
    machine_.costs.each = {0.01, 0, 0, 0, 0, 0.001};
    machine_.scheduler.max_num_seqs = 8;
    machine_.scheduler.max_model_len = 4096;
    machine_.scheduler.num_blocks = 1000;
    machine_.block_bytes = 1 << 20;
    write();
  }

  void write() { costs_ = directory_.write("costs.json", to_json(machine_)).string(); }
  ProgramResult run(const std::string& arguments) const {
    return run_quire("simulate --costs " + costs_ + " " + arguments);
  }
  json report(const std::string& arguments) const {
    const ProgramResult result = run("--json " + arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }
  // One line that has these words.
  void expect_mistake(const std::string& arguments, const std::string& words) const {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  TempDir directory_;
  MachineCosts machine_;
  std::string costs_;
};

TEST_F(SimulateCommandTest, JsonHasWhatTheCostsMake) {
  const json all =
      report("--num-prompts 1e1 --random-input-len 20 --random-output-len 3 --max-concurrency 1");
  EXPECT_EQ(all.at("model"), "a model");
  ASSERT_EQ(all.at("runs").size(), 1U);
  const json& run = all["runs"][0];
  EXPECT_EQ(run.at("completed"), 10);
  EXPECT_EQ(run.at("output_tokens"), 30);
  EXPECT_EQ(run.at("steps"), 30);
  EXPECT_NEAR(run.at("ttft_ms").at("p99"), 10 + 20, 1e-9);
  EXPECT_NEAR(run.at("itl_ms").at("mean"), 10 + 1, 1e-9);
  EXPECT_NEAR(run.at("duration_s"), 10 * (0.03 + 2 * 0.011), 1e-9);
  EXPECT_NEAR(run.at("output_tokens_per_s"), 30 / 0.52, 1e-6);
  EXPECT_EQ(run.at("cache_hit_rate"), 0);
  EXPECT_EQ(run.at("scheduler").at("max_num_seqs"), 8);
}

TEST_F(SimulateCommandTest, ASweepRunsEachValue) {
  const std::string svg = directory_.path() / "sweep.svg";
  const json all = report("--num-prompts 40 --sweep max-num-seqs=1,4,16 --svg " + svg);
  ASSERT_EQ(all.at("runs").size(), 3U);
  double before = 0;
  for (const json& run : all["runs"]) {
    EXPECT_GT(run.at("output_tokens_per_s"), before);
    before = run.at("output_tokens_per_s");
  }
  EXPECT_EQ(all["runs"][2].at("--max-num-seqs"), "16");
  EXPECT_EQ(all["runs"][2].at("scheduler").at("max_num_seqs"), 16);
  std::ostringstream text;
  text << std::ifstream(svg).rdbuf();
  const std::string drawing = text.str();
  EXPECT_TRUE(drawing.starts_with("<svg") && drawing.ends_with("</svg>\n"));
  EXPECT_NE(drawing.find("a model on a device, simulated max-num-seqs"), std::string::npos);
  EXPECT_NE(drawing.find(">16<"), std::string::npos);
}

TEST_F(SimulateCommandTest, SweepsAreOfAnySettingOrLoad) {
  for (const char* sweep :
       {"kv-cache-memory=64MiB,1GiB", "enable-prefix-caching=true,false", "request-rate=1,100",
        "scheduling-policy=fcfs,priority", "n=1,3", "random-prefix-len=0,64"}) {
    const json runs = report(std::string("--num-prompts 20 --sweep ") + sweep).at("runs");
    ASSERT_EQ(runs.size(), 2U) << sweep;
    EXPECT_NE(runs[0].at("scheduler").dump() + runs[0].at("duration_s").dump() +
                  runs[0].at("cache_hit_rate").dump(),
              runs[1].at("scheduler").dump() + runs[1].at("duration_s").dump() +
                  runs[1].at("cache_hit_rate").dump())
        << sweep;
  }
}

TEST_F(SimulateCommandTest, TheTableHasARowEach) {
  const ProgramResult result = run("--num-prompts 5 --sweep max-num-batched-tokens=64,512");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4) << result.out;
  EXPECT_NE(result.out.find("\n              64 "), std::string::npos) << result.out;
}

TEST_F(SimulateCommandTest, SmallCachesPreemptAndSwapSpaceSaves) {
  const std::string load = "--num-prompts 30 --random-output-len 400 --num-blocks 100 ";
  const json runs = report(load + "--preemption-mode swap --sweep swap-space=0,1").at("runs");
  EXPECT_GT(runs[0].at("preemptions"), 0);
  EXPECT_EQ(runs[0].at("saved_blocks"), 0);
  EXPECT_GT(runs[1].at("restored_blocks"), 0);
}

TEST_F(SimulateCommandTest, MistakesAreOneLine) {
  expect_mistake("--sweep x=1", "is no setting or load");
  expect_mistake("--sweep costs=1", "is no setting or load");
  expect_mistake("--sweep max-num-seqs", "has no values");
  for (const std::string sweep : {"max-num-seqs=", "max-num-seqs=4,", "max-num-seqs=,4"})
    expect_mistake("--sweep " + sweep, "or an empty one");
  expect_mistake("--sweep max-num-seqs=4,x", "max-num-seqs");
  expect_mistake("--sweep max-num-seqs=0", "max-num-seqs is 0");
  expect_mistake("--sweep request-rate=inf,nan --num-prompts 1", "--request-rate: nan is not a number");
  expect_mistake("--random-range-ratio nan", "--random-range-ratio: nan is not a number");
  expect_mistake("--num-prompts 1.5", "--num-prompts");
  expect_mistake("--num-blocks 5 --kv-cache-memory 1GiB", "exclude each other");
  expect_mistake("--workload standard --num-prompts 257", "has 256");
  expect_mistake("--trace " + costs_, "no recording");
  expect_mistake("--svg /no/such/folder/x.svg --num-prompts 1", "cannot write");
  EXPECT_EQ(run("--svg /no/such/folder/x.svg --num-prompts 1").out, "");  // told before anything runs
  machine_.block_bytes = 0;
  write();
  expect_mistake("--kv-cache-memory 1GiB", "give --num-blocks");
  EXPECT_EQ(run_quire("simulate").code, 2);
  EXPECT_EQ(run_quire("simulate --costs /no/such/file").code, 2);
}

TEST(BenchCostsTest, WhatAnEngineRecordsIsFittedAndSimulated) {
  const TempDir directory;
  const std::string costs = directory.path() / "costs.json", trace = directory.path() / "trace";
  const ProgramResult measured =
      run_quire("bench costs --cpu-threads 1 --max-num-seqs 8 --max-model-len 256 " +
                ("--seconds 3 --output " + costs));
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_NE(measured.out.find(" steps, "), std::string::npos);
  const ProgramResult recorded = run_quire(
      "bench throughput --workload random --requests 6 --input-len 40 --output-len 6 --cpu-threads 1 "
      "--record " +
      trace);
  ASSERT_EQ(recorded.code, 0) << recorded.err;
  const ProgramResult simulated = run_quire("simulate --json --costs " + costs + " --trace " + trace);
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  const json run = json::parse(simulated.out).at("runs").at(0);
  EXPECT_EQ(run.at("completed"), 12);  // with those that warm up
  EXPECT_EQ(run.at("output_tokens"), 6 * 6 + 6 * 4);
  EXPECT_EQ(run.at("prompt_tokens"), 2 * 6 * 40);
  const ProgramResult mixed = run_quire("simulate --num-prompts 5 --costs " + costs + " --trace " + trace);
  EXPECT_EQ(mixed.code, 2);
  EXPECT_NE(mixed.err.find("--num-prompts is of generated loads"), std::string::npos) << mixed.err;
  // Some of these steps are too alike.
  const ProgramResult again = run_quire("bench costs --recording " + trace + " --output " + costs);
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("too few to fit costs to"), std::string::npos) << again.err;
}

}  // namespace
}  // namespace quire
