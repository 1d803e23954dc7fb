#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "cli/run_program.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_quire;

class StructuredOutputsCliTest : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    std::ofstream(path_) << text;
    return path_.string();
  }
  static ProgramResult generate(const std::string& flags) {
    return run_quire("generate -p hi --seed 1 --max-tokens 60 " + flags);
  }

 private:
  TempDir directory_;
  const std::filesystem::path path_ = directory_.path() / "source";
};

TEST_F(StructuredOutputsCliTest, TextIsAsTheFlagsSay) {
  const std::string schema =
      file(R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
               "additionalProperties": false})");
  EXPECT_TRUE(nlohmann::json::parse(generate("--json-schema " + schema).out)["a"].is_boolean());
  EXPECT_THAT(generate("--regex '[0-9]{4}'").out, ::testing::MatchesRegex("[0-9][0-9][0-9][0-9]\n"));
  EXPECT_THAT(generate("--choice red --choice green").out, ::testing::AnyOf("red\n", "green\n"));
  EXPECT_EQ(generate("--grammar " + file(R"(root ::= "a" "b" | "a" "b")")).out, "ab\n");
  EXPECT_THAT(run_quire("chat --ask hi --seed 1 --choice red").out, HasSubstr("red"));
}

TEST_F(StructuredOutputsCliTest, ABenchMayHoldEveryRequest) {
  const std::string bench =
      "bench throughput --workload random --requests 3 --input-len 9 --output-len 40 --json --json-schema ";
  const std::string endless = file(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1000000})");
  const ProgramResult result = run_quire(bench + endless);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_GT(nlohmann::json::parse(result.out)["output_tokens_per_s"], 0);
  const ProgramResult given =
      run_quire(bench + endless + " --tokenizer " QUIRE_SOURCE_DIR "/models/toy/tokenizer.json");
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_EQ(run_quire(bench + endless + " --tokenizer /no/such/file").code, 2);
  const ProgramResult complete = run_quire(bench + file(R"({"type": "boolean"})"));
  EXPECT_EQ(complete.code, 2);
  EXPECT_THAT(complete.err, HasSubstr("a schema that never is would do"));
}

TEST_F(StructuredOutputsCliTest, WhatIsWrongIsOneLineAndCodeTwo) {
  const auto expect_mistake = [](const ProgramResult& result, const std::string& what) {
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_EQ(result.out, "");
  };
  expect_mistake(generate("--json-schema " + file(R"({"properties": {"a": {"type": "thing"}}})")),
                 "/properties/a");
  expect_mistake(generate("--json-schema /no/such/file"), "/no/such/file: no such file");
  expect_mistake(generate("--regex a --choice b"), "one can be given");
  expect_mistake(generate("--regex a --beam-width 2"), "exclude each other");
}

}  // namespace
}  // namespace quire
