#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
