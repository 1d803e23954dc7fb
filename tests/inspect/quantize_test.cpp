// A checkpoint that is written quantised computes what the model computes that is quantised as it is loaded.
#include <sys/resource.h>

#include <csignal>
#include <numeric>

#include "backends/registry.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "engine/model_files.h"
#include "expect_error.h"
#include "inspect/quantize_model.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"
#include "temp_dir.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

const std::string kToyModel = std::string(QUIRE_SOURCE_DIR) + "/models/toy";

std::vector<float> logits_of(const fs::path& model, const std::string& quantization,
                             const std::string& dtype) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = dtype;
  config.quantization = quantization;
  config.max_num_seqs = 1;
  const ModelFiles files = open_model(model);
  const auto backend = make_backend({.device = "cpu", .cpu_threads = 2});
  SingleRank comm(*backend);
  const RuntimeConfig runtime =
      resolve_config(config, files.config, *backend, comm, files.open_formats().get());
  const auto weights = files.open_weights();
  ModelRunner runner(*backend, comm, runtime, files.config, *weights);

  constexpr int kPromptTokens = 20;
  StepPlan plan;
  plan.num_tokens = kPromptTokens;
  SequencePlan& span = plan.sequences.emplace_back();
  span.num_tokens = kPromptTokens;
  for (int i = 0; i < kPromptTokens; ++i) span.tokens.push_back(7 * i % runtime.spec.vocab_size);
  span.start = SamplingState{};
  span.output = OutputKind::kAll;
  span.new_blocks.resize((kPromptTokens / static_cast<std::size_t>(runtime.block_size()) + 1) *
                         runtime.cache.layout.windows.size());
  std::iota(span.new_blocks.begin(), span.new_blocks.end(), 0);
  runner.submit(plan);
  return runner.collect().sequences.front().logits;
}

QuantizeOptions options_of(const fs::path& model, const fs::path& out, Quantization format) {
  QuantizeOptions options;
  options.model = model.string();
  options.out = out;
  options.format = format;
  return options;
}

constexpr Quantization kFormats[] = {Quantization::kFp8, Quantization::kInt8, Quantization::kInt4,
                                     Quantization::kNf4};

class QuantizeFormatTest : public ::testing::TestWithParam<Quantization> {};

TEST_P(QuantizeFormatTest, TheLogitsAreThoseOfQuantisingAtLoad) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  const QuantizedSize size = quantize_model(options_of(kToyModel, out, GetParam()));
  EXPECT_EQ(size.num_matrices, 6 * 7);
  EXPECT_EQ(size.bytes, Checkpoint(out).bytes());
  EXPECT_LT(size.bytes, size.bytes_before * 2 / 3);
  for (const char* dtype : {"float32", "bfloat16"}) {
    const std::vector<float> logits = logits_of(out, "none", dtype);
    EXPECT_EQ(logits, logits_of(kToyModel, std::string(to_string(GetParam())), dtype)) << dtype;
    EXPECT_NE(logits, logits_of(kToyModel, "none", dtype));
  }
}

TEST_P(QuantizeFormatTest, AllElseIsAsItWas) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  quantize_model(options_of(kToyModel, out, GetParam()));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_EQ(read_text_file(out / name, 1 << 20), read_text_file(fs::path(kToyModel) / name, 1 << 20));
  Json config = read_json_file(out / "config.json");
  EXPECT_EQ(config.erase("quantization_config"), 1U);
  EXPECT_EQ(config, read_json_file(fs::path(kToyModel) / "config.json"));
  EXPECT_FALSE(fs::exists(dir.path() / "out.incomplete"));
}

TEST_P(QuantizeFormatTest, ShardsHoldTheSame) {
  const TempDir dir;
  QuantizeOptions options = options_of(kToyModel, dir.path() / "one", GetParam());
  quantize_model(options);
  options.out = dir.path() / "several/";
  options.shard_bytes = 1'000'000;
  std::vector<std::size_t> done;
  std::size_t total = 0;
  options.on_tensor = [&](std::size_t now, std::size_t all) {
    done.push_back(now);
    total = all;
  };
  quantize_model(options);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  EXPECT_FALSE(fs::exists(dir.path() / "several" / "model.safetensors"));
  EXPECT_TRUE(fs::exists(dir.path() / "several" / "model.safetensors.index.json"));
  EXPECT_EQ(logits_of(dir.path() / "several", "none", "float32"),
            logits_of(dir.path() / "one", "none", "float32"));
}

INSTANTIATE_TEST_SUITE_P(All, QuantizeFormatTest, ::testing::ValuesIn(kFormats),
                         [](const auto& test) { return std::string(to_string(test.param)); });

class QuantizeFamilyTest : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizeFamilyTest, TheLogitsAreThoseOfQuantisingAtLoad) {
  const TempDir dir;
  const fs::path model = testing::golden_directory(GetParam()), out = dir.path() / "out";
  for (const Quantization format : {Quantization::kFp8, Quantization::kInt8}) {
    const auto run = [&] { quantize_model(options_of(model, out, format)); };
    if (GetParam().starts_with("gpt2")) {
      expect_error(run, {"attn", "transposed", "--quantization"});
      EXPECT_TRUE(fs::is_empty(dir.path()));
      continue;
    }
    if (GetParam() == "gemma4-moe" || GetParam() == "gpt-oss" || GetParam() == "qwen3_5-moe-hub") {
      expect_error(run, {"experts.", "several", "--quantization"});
      EXPECT_TRUE(fs::is_empty(dir.path()));
      continue;
    }
    run();
    EXPECT_EQ(logits_of(out, "none", "float32"), logits_of(model, std::string(to_string(format)), "float32"));
    fs::remove_all(out);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, QuantizeFamilyTest, ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& test) { return testing::test_name({test.param}); });

TEST(QuantizeTest, ScalesOfInt4AreTheSameInBothTypesOf16Bits) {
  const TempDir dir;
  quantize_model(options_of(kToyModel, dir.path() / "out", Quantization::kInt4));
  Checkpoint file(dir.path() / "out");
  const WeightTensorPtr scales = file.take("model.layers.3.mlp.up_proj.weight_scale", {512, 2});
  ASSERT_EQ(scales->dtype(), DType::kF16);
  std::vector<float> values(1024);
  scales->read_rows(0, Tensor(values.data(), DType::kF32, {512, 2}));
  for (const float value : values) EXPECT_EQ(to_float(from_float<BFloat16>(value)), value);
}

TEST(QuantizeTest, TheHeadIsQuantisedWhereItIsAskedForAndNoEmbedding) {
  const TempDir dir;
  const fs::path model = testing::golden_directory("qwen3-untied"), out = dir.path() / "out";
  QuantizeOptions options = options_of(model, out, Quantization::kInt8);
  options.quantize_head = true;
  quantize_model(options);
  const Checkpoint file(out);
  EXPECT_EQ(file.find_entry("lm_head.weight")->dtype_name, "I8");
  EXPECT_EQ(file.find_entry("model.embed_tokens.weight")->dtype_name,
            Checkpoint(model).find_entry("model.embed_tokens.weight")->dtype_name);
  EXPECT_NE(logits_of(out, "none", "float32"), logits_of(model, "int8", "float32"));
  options.model = kToyModel;
  options.out = dir.path() / "tied";
  expect_error([&] { quantize_model(options); }, {"quantize-head", "embedding"});
}

TEST(QuantizeTest, RoutersAndOtherPlainModulesAreNamed) {
  const TempDir dir;
  quantize_model(options_of(testing::golden_directory("qwen3-moe"), dir.path() / "out", Quantization::kFp8));
  const Json ignored = read_json_file(dir.path() / "out" / "config.json")["quantization_config"]["ignore"];
  EXPECT_NE(std::find(ignored.begin(), ignored.end(), "model.layers.0.mlp.gate"), ignored.end());
  EXPECT_NE(std::find(ignored.begin(), ignored.end(), "lm_head"), ignored.end());
  EXPECT_EQ(std::find(ignored.begin(), ignored.end(), "model.layers.0.self_attn.q_proj"), ignored.end());
}

TEST(QuantizeTest, WhatCannotBeDoneIsRefusedByName) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  const auto refused = [&](const fs::path& model, Quantization format,
                           std::initializer_list<std::string_view> parts) {
    expect_error([&] { quantize_model(options_of(model, out, format)); }, parts);
    EXPECT_FALSE(fs::exists(out));
    EXPECT_FALSE(fs::exists(dir.path() / "out.incomplete"));
  };
  refused(testing::golden_directory("gemma2"), Quantization::kInt4,
          {"model.layers.0", "96 columns", "groups of 128", "fp8"});
  refused(dir.write("a.gguf", ""), Quantization::kFp8, {"a.gguf", "checkpoint folder"});
  refused(dir.path() / "nowhere", Quantization::kFp8, {"nowhere", "no such directory"});
  quantize_model(options_of(kToyModel, dir.path() / "first", Quantization::kFp8));
  refused(dir.path() / "first", Quantization::kFp8, {"first: ", "quantization_config", "quantised already"});
  expect_error([&] { quantize_model(options_of(kToyModel, dir.path() / "first", Quantization::kFp8)); },
               {"first", "there already"});
  fs::create_directory(dir.path() / "out.incomplete");
  expect_error([&] { quantize_model(options_of(kToyModel, out, Quantization::kFp8)); },
               {"out.incomplete", "remove it"});
  EXPECT_TRUE(fs::exists(dir.path() / "out.incomplete"));
  fs::create_directory(dir.path() / "empty");
  quantize_model(options_of(kToyModel, dir.path() / "empty", Quantization::kFp8));
  EXPECT_TRUE(fs::exists(dir.path() / "empty" / "model.safetensors"));
}

TEST(QuantizeTest, WhereNothingCanBeWrittenIsRefusedAtOnce) {
  const TempDir dir;
  fs::create_symlink(dir.path() / "nowhere", dir.path() / "dangling");
  dir.write("file", "");
  for (const auto& [out, what] : {std::pair(fs::path(), "OUT is empty"),
                                  {dir.path() / "dangling", "symbolic link"},
                                  {dir.path() / "file", "no directory"},
                                  {dir.path() / "absent" / "out", "no such directory"}})
    expect_error([&] { quantize_model(options_of(kToyModel, out, Quantization::kFp8)); }, {what});
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 2);
  fs::create_directory(dir.path() / "empty");
  fs::create_directory_symlink(dir.path() / "empty", dir.path() / "link");
  quantize_model(options_of(kToyModel, dir.path() / "link", Quantization::kFp8));
  EXPECT_TRUE(fs::exists(dir.path() / "empty" / "model.safetensors"));
}

TEST(QuantizeTest, PartsThatAreLeftOutAreNamedAsAnyReaderSpellsThem) {
  const TempDir dir;
  const fs::path model = testing::golden_directory("gemma3-hub");
  quantize_model(options_of(model, dir.path() / "out", Quantization::kFp8));
  const Json ignored = read_json_file(dir.path() / "out" / "config.json")["quantization_config"]["ignore"];
  EXPECT_EQ(std::count(ignored.begin(), ignored.end(), "re:.*vision_tower.*"), 1);
  EXPECT_TRUE(std::none_of(ignored.begin(), ignored.end(), [](const Json& name) {
    return name.get<std::string>().find("vision_tower.vision_model") != std::string::npos;
  }));
  EXPECT_EQ(logits_of(dir.path() / "out", "none", "float32"), logits_of(model, "fp8", "float32"));
}

TEST(QuantizeTest, NothingIsLeftOfOneThatIsStopped) {
  const TempDir dir;
  QuantizeOptions options = options_of(kToyModel, dir.path() / "out", Quantization::kFp8);
  int polled = 0;
  options.stopped = [&] { return ++polled == 5; };
  EXPECT_THROW(quantize_model(options), Stopped);
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(QuantizeTest, NothingIsLeftWhereTheDiskIsFull) {
  const TempDir dir;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1'000'000, before.rlim_max};
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  expect_error([&] { quantize_model(options_of(kToyModel, dir.path() / "out", Quantization::kFp8)); },
               {"model.safetensors", "cannot be written", "File too large", "nothing is left"});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old);
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(QuantizeTest, AValueThatIsNotFiniteIsNamed) {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  fs::copy(testing::golden_directory("qwen3"), model);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const SafetensorsEntry entry = SafetensorsFile(model / "model.safetensors").tensor(name);
  std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(entry.offset));
  file.write("\xFF\xFF\xFF\xFF", 4);
  file.close();
  expect_error([&] { quantize_model(options_of(model, dir.path() / "out", Quantization::kFp8)); },
               {name, "not finite"});
  EXPECT_FALSE(fs::exists(dir.path() / "out.incomplete"));
}

}  // namespace
}  // namespace quire
