// Perplexities and divergences of the bundled model are those that Hugging Face transformers 5.23 (PyTorch
// 2.15, float32 on a CPU) gave for kText and the same windows, each token counted once; for nf4 and int4 its
// linear layers had the weights that src/ops/quantize.h defines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "cli/run_program.h"
#include "temp_dir.h"

namespace quire {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_quire;

const std::string kToyModel = QUIRE_SOURCE_DIR "/models/toy";
constexpr const char* kText =
    "<|im_start|>user\nWhat is a KV cache?<|im_end|>\n<|im_start|>assistant\n"
    "A KV cache keeps the keys and values that attention computed for earlier tokens, so each new token "
    "computes only its own. It trades memory for a great deal of saved work.<|im_end|>\n"
    "<|im_start|>user\nwhy is that useful?<|im_end|>\n<|im_start|>assistant\n"
    "Without the KV cache every step would recompute the keys and values of the whole text. With it, a step "
    "does the work of one token only, at the price of memory.<|im_end|>\n";

class EvalTest : public ::testing::Test {
 protected:
  ProgramResult run(const std::string& flags, const std::string& model = kToyModel) const {
    return run_quire("eval perplexity " + model + " --device cpu --text " + text_ + " " + flags);
  }
  json result_of(const std::string& flags, const std::string& model = kToyModel) const {
    const ProgramResult result = run(flags + " --dtype float32 --json", model);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");  // no progress bar: it is no terminal
    return json::parse(result.out);
  }
  // The bundled model, with a tokenizer that begins each text with a BOS.
  std::string model_with_bos() const {
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::create_symlink(kToyModel + "/" + name, folder_.path() / name);
    json tokenizer = json::parse(std::ifstream(kToyModel + "/tokenizer.json"));
    const json bos = {{"id", "<|endoftext|>"}, {"ids", {4091}}, {"tokens", {"<|endoftext|>"}}};
    tokenizer["post_processor"] = {{"type", "TemplateProcessing"},
                                   {"single",
                                    {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                                     {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                                   {"pair", json::array()},
                                   {"special_tokens", {{"<|endoftext|>", bos}}}};
    folder_.write("tokenizer.json", tokenizer.dump());
    return folder_.path().string();
  }
  void expect_refused(const std::string& flags, const std::string& what,
                      const std::string& model = kToyModel) const {
    const ProgramResult result = run(flags, model);
    EXPECT_EQ(result.code, 2) << flags;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }

  TempDir folder_;
  std::string text_ = folder_.write("text", kText).string();
};

TEST_F(EvalTest, PerplexityIsThatOfTransformersInAnyWindows) {
  struct Case {
    const char* flags;
    int tokens;
    double perplexity;
  };
  for (const Case& c : {Case{"", 103, 17.199391361576875}, Case{"--context 32", 103, 23.223463847420508},
                        Case{"--context 32 --max-num-batched-tokens 5", 103, 23.223463847420508},
                        Case{"--context 32 --stride 32", 100, 39.89941861666995},
                        Case{"--context 24 --stride 7", 103, 20.52570171279895},
                        Case{"--context 32 --stride 32 --max-tokens 65", 62, 153.55672017021013}}) {
    const json result = result_of(c.flags);
    EXPECT_EQ(result.at("tokens"), c.tokens) << c.flags;
    EXPECT_NEAR(result.at("perplexity").get<double>() / c.perplexity, 1, 1e-4) << c.flags;
  }
}

TEST_F(EvalTest, DivergenceFromTheUnquantisedModelIsThatOfTransformers) {
  struct Case {
    const char* format;
    double perplexity, kl_mean, kl_p99, top1;
  };
  for (const Case& c :
       {Case{"nf4", 24.366896734508487, 0.01090007176039296, 0.20423287067695917, 1},
        Case{"int4", 23.348697740964067, 0.011261738669140299, 0.1482963205752767, 102.0 / 103}}) {
    const json result =
        result_of("--context 32 --against-quantization none --quantization " + std::string(c.format));
    const json& against = result.at("against");
    EXPECT_NEAR(result.at("perplexity").get<double>() / c.perplexity, 1, 1e-4) << c.format;
    EXPECT_NEAR(against.at("perplexity").get<double>() / 23.223463847420508, 1, 1e-4);
    EXPECT_NEAR(against.at("ratio").get<double>() / (c.perplexity / 23.223463847420508), 1, 1e-4);
    EXPECT_NEAR(against.at("kl_mean").get<double>() / c.kl_mean, 1, 1e-3) << c.format;
    EXPECT_NEAR(against.at("kl_p99").get<double>() / c.kl_p99, 1, 1e-3) << c.format;
    EXPECT_DOUBLE_EQ(against.at("top1_agreement").get<double>(), c.top1) << c.format;
  }
}

TEST_F(EvalTest, AModelDoesNotDifferFromItself) {
  const json against = result_of("--context 32 --against " + kToyModel).at("against");
  EXPECT_EQ(against.at("ratio"), 1);
  EXPECT_EQ(against.at("kl_mean"), 0);
  EXPECT_EQ(against.at("kl_p99"), 0);
  EXPECT_EQ(against.at("top1_agreement"), 1);
  const ProgramResult table = run("--dtype bfloat16 --against-dtype float32 --context 32");
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* line : {"PPL ", "against ", "KL ", "top-1 "}) EXPECT_THAT(table.out, HasSubstr(line));
  EXPECT_THAT(table.out, ::testing::Not(HasSubstr("KL         0.000000")));
}

TEST_F(EvalTest, TextsBeginAsTheTokenizerBeginsThem) {
  const std::string model = model_with_bos();
  const json result = result_of("--context 32", model);
  EXPECT_EQ(result.at("tokens"), 104);
  EXPECT_NEAR(result.at("perplexity").get<double>() / 23.050583662518992, 1, 1e-4);
  expect_refused("--against " + model, "make other tokens");
}

TEST_F(EvalTest, WeightOnlyWithoutEffectSaysSo) {
  const auto warning_of = [&](const char* flags) {
    return run(std::string("--context 32 --weight-only ") + flags).err;
  };
  constexpr const char* kWarning = "weight-only changes nothing";
  EXPECT_THAT(warning_of(""), HasSubstr(kWarning));
  EXPECT_THAT(warning_of("--quantization nf4"), HasSubstr(kWarning));
  EXPECT_EQ(warning_of("--quantization fp8"), "");
}

TEST_F(EvalTest, WhatCannotBeMeasuredIsOneLine) {
  const std::string golden = QUIRE_SOURCE_DIR "/tests/golden/qwen3";
  expect_refused("--context 1", "context is 1; it must be from 2 to 2048");
  expect_refused("--context 2049", "context is 2049");
  expect_refused("--context 65 --max-model-len 64", "from 2 to 64");
  expect_refused("--stride 0", "stride is 0; it must be from 1 to the context, 2048");
  expect_refused("--context 32 --stride 33", "stride is 33");
  expect_refused("--stride x", "--stride");
  expect_refused("--max-tokens 1", "max-tokens is 1; it must be at least 2");
  expect_refused("--max-tokens -1", "max-tokens is -1");
  expect_refused("--against " + golden, "a vocabulary of 4096 tokens");
  expect_refused("--against /nowhere", "/nowhere");
  expect_refused("--against-quantization int3", "int3");
  expect_refused("", "no tokenizer", golden);
  for (const std::string text : {"", "a"}) {
    folder_.write("text", text);
    expect_refused("", "text: " + std::to_string(text.size()) + " tokens");
  }
  folder_.write("text", "plain, then \xFF");
  expect_refused("", "byte 12 is not UTF-8");
  folder_.write("text", kText);
  EXPECT_THAT(run("--kv-cache-memory 100KiB").err,  // behind a warning of how little that is
              HasSubstr("a window has 103 tokens that are read; the KV cache holds 32: take more"));
  std::filesystem::remove(text_);
  expect_refused("", "no such file");
  EXPECT_THAT(run_quire("eval").err, HasSubstr("subcommand"));
}

}  // namespace
}  // namespace quire
