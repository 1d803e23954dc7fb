#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "cli/run_program.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ProgramResult;
using testing::run_quire;

std::vector<std::string> keys_of(const json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;  // sorted
}

TEST(BenchCommandTest, JsonHasAllFigures) {
  const ProgramResult result =
      run_quire("bench throughput --workload random --requests 2 --input-len 40 --output-len 6 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // no progress bar: it is no terminal
  const json object = json::parse(result.out);
  using Keys = std::vector<std::string>;
  EXPECT_EQ(keys_of(object), (Keys{"ceiling", "decode_tokens_per_s", "itl_ms", "output_tokens_per_s",
                                   "prefill_tokens_per_s", "share", "startup_s", "ttft_ms"}));
  EXPECT_EQ(keys_of(object.at("ceiling")), (Keys{"matrix_GFLOPs", "read_GBps"}));
  EXPECT_EQ(keys_of(object.at("share")), (Keys{"matrix", "read"}));
  EXPECT_EQ(keys_of(object.at("ttft_ms")), (Keys{"p50", "p99"}));
  EXPECT_EQ(keys_of(object.at("itl_ms")), (Keys{"p50", "p99"}));
  EXPECT_EQ(keys_of(object.at("startup_s")), (Keys{"device", "graphs", "weights"}));
  const json figures = object.flatten();
  for (const auto& item : figures.items()) {
    ASSERT_TRUE(item.value().is_number()) << item.key();
    EXPECT_GT(item.value().get<double>(), 0) << item.key();
  }
  for (const char* latency : {"ttft_ms", "itl_ms"}) {
    EXPECT_LE(object.at(latency).at("p50").get<double>(), object.at(latency).at("p99").get<double>());
  }
}

const std::string kSmallAgents =
    "bench agent --system-len 100 --turns 3 --input-len 20 40 --output-len 3 9 --conversations 4 "
    "--concurrency 2 --cpu-threads 1 ";

TEST(BenchAgentTest, JsonHasEachTurnAndAllOfThem) {
  const ProgramResult result = run_quire(kSmallAgents + "--json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json object = json::parse(result.out);
  EXPECT_EQ(object.at("completed"), 12);
  EXPECT_EQ(object.at("failed"), 0);
  ASSERT_EQ(object.at("turns").size(), 3U);
  for (const char* sum : {"prompt_tokens", "output_tokens", "reusable_tokens"}) {
    int turns = 0;
    for (const json& turn : object.at("turns")) turns += turn.at(sum).get<int>();
    EXPECT_EQ(object.at(sum), turns) << sum;
  }
  EXPECT_LT(object.at("computed_again_share"), 0.1);
  EXPECT_GT(object.at("turns").at(2).at("cached_share"), 0.6);
  const double prompt = object.at("turns").at(2).at("prompt_tokens_mean");
  EXPECT_TRUE(prompt >= 100 + 3 * 20 + 2 * 3 && prompt <= 100 + 3 * 40 + 2 * 9) << prompt;
  const json figures = object.flatten();
  for (const auto& item : figures.items()) EXPECT_TRUE(item.value().is_number()) << item.key();
  const double seconds = object.at("duration_s");
  EXPECT_NEAR(object.at("total_tokens_per_s").get<double>(), object.at("total_tokens").get<int>() / seconds,
              0.1);
}

TEST(BenchAgentTest, TheTableSaysWhatWasComputedAgain) {
  const ProgramResult result = run_quire(kSmallAgents + "--no-enable-prefix-caching");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("\n   3 "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("     0.00 %\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("again      100.00 % of "), std::string::npos) << result.out;
}

TEST(BenchAgentTest, WrongFlagsAreMistakes) {
  const auto expect = [](const std::string& flags, const std::string& message) {
    const ProgramResult result = run_quire("bench agent " + flags);
    EXPECT_EQ(result.code, 2) << flags;
    EXPECT_EQ(result.out, "") << flags;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect("--input-len 40 20", "lengths from 40 to 20");
  expect("--input-len 40", "--input-len");
  expect("--output-len 0 3", "--output-len");
  expect("--turns 0", "--turns");
  expect("--conversations 1001", "--conversations");
  expect("--vocab-size 256", "--vocab-size");
  expect("--seed x", "--seed");
  expect("--max-model-len 100", "max-model-len is 100");
  expect("--url http://127.0.0.1:9 --shape qwen3-0.6b", "excludes");
  expect("--model " QUIRE_SOURCE_DIR "/models/toy", "--model requires --url");
  expect("--extra-body '{}'", "--extra-body requires --url");
  expect(kSmallAgents.substr(12) + "--vocab-size 100000", "token id");
}

const std::string kSmallTechniques =
    "bench techniques --num-prompts 8 --batch 2 --input-len 16 --output-len 16 --cpu-threads 1 ";

TEST(BenchTechniquesTest, JsonHasARowForEachAndTheDrawingIsWritten) {
  const ProgramResult result =
      testing::run_shell("cd $(mktemp -d) && " QUIRE_PROGRAM " " + kSmallTechniques +
                         "--json --svg techniques.svg && cat techniques.svg && rm -r \"$PWD\"");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::size_t end = result.out.find('\n');
  const json object = json::parse(result.out.substr(0, end));
  EXPECT_EQ(object.at("dtype"), "bfloat16");
  ASSERT_EQ(object.at("rows").size(), 16U);
  using Keys = std::vector<std::string>;
  int num_agreeing = 0;
  for (const json& row : object.at("rows")) {
    EXPECT_EQ(keys_of(row), (Keys{"against", "factor", "figure", "first_token_ms", "kv_cache_bytes",
                                  "longest_pause_ms", "product_ms", "same_tokens_share", "sequences",
                                  "skipped", "technique", "tokens_per_s", "weight_bytes", "workload"}));
    const bool is_measured = row.at("skipped").is_null();
    EXPECT_EQ(is_measured, row.at(row.at("figure").get<std::string>()).is_number()) << row;
    EXPECT_EQ(is_measured && !row.at("against").is_null(), row.at("factor").is_number()) << row;
    num_agreeing += row.at("same_tokens_share") == 1.0 ? 1 : 0;
  }
  EXPECT_GE(num_agreeing, 7);
  EXPECT_TRUE(result.out.substr(end + 1).starts_with("<svg ")) << result.out;
  EXPECT_TRUE(result.out.ends_with("</svg>\n")) << result.out;
}

TEST(BenchTechniquesTest, TheTableSaysWhatEachBrings) {
  const ProgramResult result = run_quire(
      "bench techniques --num-prompts 2 --batch 1 --input-len 8 --output-len 8 --cpu-isa reference");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* words : {"\n2 requests at once, up to 8 tokens in and 8 out\n  no KV cache ", " 100.0  x",
                            " sequences at once\n", " ms pause\n", " not measured: the device has none\n",
                            " not measured: the device multiplies weights as they lie in the file\n"})
    EXPECT_NE(result.out.find(words), std::string::npos) << words << "\n" << result.out;
}

TEST(BenchTechniquesTest, WrongFlagsAreMistakes) {
  const auto expect = [](const std::string& flags, const std::string& message) {
    const ProgramResult result = run_quire("bench techniques " + flags);
    EXPECT_EQ(result.code, 2) << flags;
    EXPECT_EQ(result.out, "") << flags;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect("--batch 0", "--batch");
  expect("--num-prompts 4", "--batch is 8; there are 4 requests");
  expect("--input-len 7", "--input-len");
  expect("--input-len 300", "8 times --input-len, and --output-len, are 2416 tokens; the context is 2048");
  expect("--output-len x", "--output-len");
  expect("--block-size 32", "--block-size");
  expect("--quantization int8", "--quantization");
  expect("--no-enable-prefix-caching", "--no-enable-prefix-caching");
  expect("--device tpu", "tpu");
  expect("--shape qwen9", "qwen9");
  expect("--shape lfm2-350m", "state of fixed size");
  expect("--svg /nowhere/at/all.svg", "--svg: cannot write \"/nowhere/at/all.svg\"");
  expect("/nowhere/at/all", "/nowhere/at/all");
}

TEST(PlanCommandTest, JsonAddsUp) {
  const ProgramResult result =
      run_quire("plan --shape qwen3-0.6b --memory 4GiB --kv-cache-memory 1GiB --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object.at("memory_bytes"), std::size_t{4} << 30);
  EXPECT_EQ(object.at("kv_bytes_per_token"), 114688);
  EXPECT_EQ(object.at("total_bytes").get<std::size_t>(),
            object.at("weights_bytes").get<std::size_t>() + object.at("workspace_bytes").get<std::size_t>() +
                object.at("inbox_bytes").get<std::size_t>() + object.at("host_bytes").get<std::size_t>() +
                object.at("kv_cache_bytes").get<std::size_t>());
  EXPECT_EQ(object.at("inbox_bytes"), 0);  // of one rank
  const json& capacity = object.at("capacity");
  EXPECT_EQ(capacity.at("kv_cache_bytes").get<std::size_t>(),
            capacity.at("tokens").get<std::size_t>() * 114688);
  EXPECT_EQ(capacity.at("lengths").front().at("length"), 512);
  EXPECT_EQ(capacity.at("lengths").front().at("sequences").get<int>(),
            capacity.at("tokens").get<int>() / 512);
}

TEST(PlanCommandTest, VllmsNameOfTheCachesMemoryIsTaken) {
  const std::string plan = "plan --shape qwen3-0.6b --memory 4GiB --json ";
  const ProgramResult result = run_quire(plan + "--kv-cache-memory-bytes 1GiB");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, run_quire(plan + "--kv-cache-memory 1GiB").out);
}

TEST(PlanCommandTest, WhatDoesNotFitIsAnAnswer) {
  const ProgramResult result = run_quire("plan --shape qwen3-8b --memory 8GiB");
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.out.find("does not fit in 8192.0 MiB"), std::string::npos) << result.out;
}

TEST(PlanCommandTest, ListsShapes) {
  const std::string names = run_quire("plan --shape list").out;
  EXPECT_TRUE(names.starts_with("qwen3-0.6b\nqwen3-1.7b\nqwen3-4b\nqwen3-8b\n")) << names;
  EXPECT_NE(names.find("\nbloom-176b\n"), std::string::npos) << names;
}

}  // namespace
}  // namespace quire
