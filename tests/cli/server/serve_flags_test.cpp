#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/run_program.h"
#include "temp_dir.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_quire;

// `quire serve` ends with one line that has `what`, before it listens.
void expect_refused(const std::string& arguments, const std::string& what) {
  const ProgramResult result = run_quire("serve --port 0 " + arguments);
  EXPECT_EQ(result.code, 2) << arguments;
  EXPECT_THAT(result.err, HasSubstr(what));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

// What is wrong in a file is named with its line.
void expect_wrong_file(const std::string& yaml, const std::string& what) {
  const TempDir folder;
  const std::string file = folder.write("a.yaml", yaml);
  expect_refused("--config " + file, file + ", " + what);
}

TEST(ServeFlagsTest, UnknownFlagsNameTheNearestOne) {
  expect_refused("--max-num-sequs 3", "--max-num-sequs; the nearest is --max-num-seqs");
  expect_refused("--enable-lora", "--enable-lora");
  expect_refused("--no_such_flag_at_all_here=1", "--no-such-flag-at-all-here=1 (--help");
}

TEST(ServeFlagsTest, UnderscoresAreDashesInNames) {
  expect_refused("--root_path=a_b", "--root-path is \"a_b\"");
  EXPECT_THAT(run_quire("-v serve --port 0 --root_path=a_b").err, HasSubstr("--root-path is \"a_b\""));
}

TEST(ServeFlagsTest, AModelThatIsTakenForANameIsRefused) {
  expect_refused("--served-model-name qwen org/name", "\"org/name\" for a name, and there is no MODEL");
  expect_refused("--served-model-name qwen " QUIRE_SOURCE_DIR, "which goes first");
  const std::string wrong = " --root-path x";  // so that it ends there
  for (const char* right :
       {"--served-model-name a b", "--served-model-name org/name", "no/model --served-model-name a org/name"})
    expect_refused(right + wrong, "--root-path is \"x\"");
}

TEST(ServeFlagsTest, WrongValuesAreRefusedBeforeItListens) {
  expect_refused("--chat-template no/such.jinja", "no/such.jinja");
  expect_refused("--chat-template '{% if %}'", "the text of chat_template, line 1");
  expect_refused("--chat-template-content-format parts", "--chat-template-content-format");
  expect_refused("--generation-config no/such", "no/such");
  expect_refused("--override-generation-config '{\"temp\": 1}'", "temp");
  expect_refused("--default-chat-template-kwargs '{\"bos_token\": 1}'", "bos_token");
  expect_refused("--uvicorn-log-level loud", "--uvicorn-log-level");
  expect_refused("--request-timeout nan", "--request-timeout: nan is not a number");
  expect_refused("--max-body-size -1", "--max-body-size: -1 is no whole number");
  expect_refused("--pipeline-parallel-size 2", "--pipeline-parallel-size");
  expect_refused("--root-path quire", "it must begin with a slash");
  expect_refused("--model no/model --shape qwen3-0.6b", "excludes");  // whose weights would be random
}

TEST(ServeFlagsTest, AConfigFileGivesFlagsAndTheCommandLineWins) {
  const TempDir folder;
  const std::string file =
      folder.write("a.yaml", "max_model_len: 64\nroot-path: from-file\nenable_chunked_prefill: true\n");
  expect_refused("--config " + file, "--root-path is \"from-file\"");
  expect_refused("--root-path from-line --config " + file, "--root-path is \"from-line\"");
  const std::string model = folder.write("b.yaml", "model: /no/from-file\n");
  EXPECT_THAT(run_quire("serve --port 0 --config " + model).err, HasSubstr("/no/from-file"));
  EXPECT_THAT(run_quire("serve --port 0 /no/from-line --config " + model).err, HasSubstr("/no/from-line"));
}

TEST(ServeFlagsTest, ConfigFilesTakeBooleansListsAndObjects) {
  const std::string wrong = "root-path: x\n";  // so that it ends there
  const TempDir folder;
  for (const char* yaml :
       {"weight_only: yes\n", "weight-only: false\n", "api-key: [a, 'b']\n", "port: null\n",
        "override-generation-config: {temperature: 0.5}\n", "served-model-name:\n  - a\n  - b\n",
        "enable-prefix-caching: off\n", "model: somewhere\n"}) {
    const std::string file = folder.write("a.yaml", yaml + wrong);
    expect_refused("--config " + file, "--root-path is \"x\"");
  }
  expect_wrong_file("override-generation-config: {temperature: 0.5\n", "line ");
  const std::string file = folder.write("b.yaml", "override-generation-config:\n  temprature: 0.5\n");
  expect_refused("--config " + file, "temprature");
}

TEST(ServeFlagsTest, WhatIsWrongInAConfigFileIsNamedWithItsLine) {
  expect_wrong_file("port: 0\nmax_num_sequs: 3\n",
                    "line 2: \"max-num-sequs\" is no flag of serve; the nearest is --max-num-seqs");
  expect_wrong_file("port: 0\n\nhttp-threads: many\n", "line 3: ");
  expect_wrong_file("http-threads: [1, 2]\n", "line 1: ");
  expect_wrong_file("max-n: 2\nport: 0\nmax_n: 3\n", "line 3: \"max-n\" is given twice");
  expect_wrong_file("override-generation-config: {top_k: 1, top_k: 2}\n", "line 1: \"top_k\" is given twice");
  expect_wrong_file("- a\n", "line 1: it must have lines such as");
  expect_wrong_file("config: other.yaml\n", "line 1: \"config\" is no flag");
  expect_wrong_file("a: b: c\n", "line 1: ");
  expect_wrong_file("override-generation-config: &x {top_k: *x}\n", "line 1: it is nested deeper than 32");
  std::string many = "port: 0\ndefault-chat-template-kwargs:\n  a: &a 0\n";
  for (char c = 'b'; c < 'k'; ++c) {
    many += std::string("  ") + c + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) many += std::string("*") + static_cast<char>(c - 1) + ", ";
    many += "]\n";
  }
  expect_wrong_file(many, "line 2: its aliases make it larger than 67108864 bytes");
  expect_refused("--config no/such.yaml", "no/such.yaml");
}

TEST(ServeFlagsTest, NothingRemoteIsRunAndThatIsSaid) {
  const ProgramResult result = run_quire("serve --port 0 --trust-remote-code no/such/model");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--trust-remote-code: nothing remote is ever run"));
}

TEST(ServeFlagsTest, GenerateTakesATemplateAndDefaults) {
  const std::string chat = "generate --chat -p Hi --json --max-tokens 1 --temperature 0 ";
  EXPECT_EQ(run_quire(chat + "--chat-template '{{ messages[0].content }}'").out,
            run_quire("generate -p Hi --json --max-tokens 1 --temperature 0").out);
  EXPECT_THAT(run_quire(chat + "--chat-template '{% if %}'").err,
              HasSubstr("the text of chat_template, line 1"));
  EXPECT_THAT(run_quire(chat + "--override-generation-config '{\"top_p\": 2}'").err, HasSubstr("top_p"));
}

}  // namespace
}  // namespace quire
