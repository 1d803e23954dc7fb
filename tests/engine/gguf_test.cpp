// GGUF files as models: golden models written as GGUF files here compute what they compute otherwise, and a
// file's tokenizer gives the ids of the tokenizer.json that it was made of.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>

#include "checkpoint/gguf_builder.h"
#include "engine/engine.h"
#include "engine/gguf_converter.h"
#include "engine/golden_models.h"
#include "engine/model_files.h"
#include "expect_error.h"
#include "inspect/forced_run.h"
#include "inspect/verify.h"
#include "sanitized.h"
#include "temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

// Models whose rows are reordered in another way than by heads of attention.
bool splits(const std::string& model) {
  return model.starts_with("qwen3_5") || model == "qwen3-next" || model.starts_with("lfm2") ||
         model.starts_with("gemma4");
}

class GgufModelTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GgufModelTest, ComputesWhatTheCheckpointComputes) {
  const auto& [model, architecture] = GetParam();
  if (!std::filesystem::exists(testing::golden_directory(model))) GTEST_SKIP() << model << " is not there";
  const TempDir folder;
  folder.write("model.gguf", testing::GgufConverter(model, architecture).convert());
  std::filesystem::copy_file(testing::golden_directory(model) / "expected.safetensors",
                             folder.path() / "expected.safetensors");
  EngineConfig config = testing::golden_config(model);
  config.model = (folder.path() / "model.gguf").string();
  config.cpu_isa = "reference";
  for (const int ranks : {1, 2}) {
    if (ranks > 1 && !splits(model)) continue;
    config.tensor_parallel_size = ranks;
    int num_results = 0;
    EXPECT_TRUE(verify(config, [&](const VerifyResult& result) {
      EXPECT_LE(result.error, result.limit) << ranks;
      ++num_results;
    }));
    EXPECT_GT(num_results, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufModelTest,
                         ::testing::Values(std::pair("llama3", "llama"), std::pair("mistral", "llama"),
                                           std::pair("llama-bias", "llama"), std::pair("mixtral", "llama"),
                                           std::pair("qwen2", "qwen2"), std::pair("qwen3-yarn", "qwen3"),
                                           std::pair("gemma2", "gemma2"), std::pair("gemma3", "gemma3"),
                                           std::pair("olmo2", "olmo2"), std::pair("granite", "granite"),
                                           std::pair("phi4-mini", "phi3"), std::pair("phi3", "phi3"),
                                           std::pair("smollm3", "smollm3"), std::pair("lfm2", "lfm2"),
                                           std::pair("seed-oss", "seed_oss"), std::pair("gpt-oss", "gpt-oss"),
                                           std::pair("qwen3_5", "qwen35"),
                                           std::pair("qwen3_5-moe", "qwen35moe"),
                                           std::pair("qwen3-next", "qwen3next"),
                                           std::pair("lfm2-moe", "lfm2moe"), std::pair("gemma4", "gemma4"),
                                           std::pair("gemma4-moe", "gemma4"),
                                           std::pair("gemma4-ple", "gemma4")),
                         [](const auto& test) { return testing::test_name({test.param.first}); });

// The columns of out_proj, which are cut between the value heads of a block, and rows of the others.
TEST(GgufFileTest, ValueHeadsComeInTheirOrderWhereTheirMatricesAreCodes) {
  if (!std::filesystem::exists(testing::golden_directory("qwen3_5"))) GTEST_SKIP();
  const auto logits = [](bool coded, int ranks, const std::string& isa) {
    const TempDir folder;
    testing::GgufConverter converter("qwen3_5", "qwen35");
    converter.round(coded);
    folder.write("model.gguf", converter.convert());
    EngineConfig config = testing::golden_config("qwen3_5");
    config.model = (folder.path() / "model.gguf").string();
    config.cpu_isa = isa;
    config.tensor_parallel_size = ranks;
    Engine engine(config);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 40; ++i) tokens.push_back(i * 37 % 320);
    return ForcedRun::start(engine, tokens)->take_all();
  };
  const std::vector<float> expected = logits(false, 1, "reference");
  const float largest = *std::max_element(expected.begin(), expected.end());
  for (const std::string& isa : inspect_machine().cpu_isas) {
    for (const int ranks : {1, 2}) {
      const std::vector<float> found = logits(true, ranks, isa);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 2e-5F * largest) << isa << ", " << ranks << ", " << i;
    }
  }
}

std::filesystem::path toy_gguf() { return testing::quantized_folder() / "q-gguf-q4_0-tokenizer"; }

TEST(GgufTokenizerTest, GivesTheIdsOfTheTokenizerJsonItWasMadeOf) {
  if (!std::filesystem::exists(toy_gguf())) GTEST_SKIP() << toy_gguf().string() << " is not there";
  const ModelFiles model = open_model(toy_gguf().string());
  const Tokenizer expected =
      Tokenizer::from_file(std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / "toy" / "tokenizer.json");
  ASSERT_TRUE(model.tokenizer);
  std::vector<std::string> texts = {"",
                                    " ",
                                    "\n\n  \n",
                                    "Once upon a time, there was a little girl named Lily.",
                                    "I'LL we've don't O'Neill 's",
                                    "1234567890 3.14 2,000,000",
                                    "caf\u00e9 cafe\u0301 \ufb01 \u212b",
                                    "\u4f60\u597d\uff0c\u4e16\u754c",
                                    "a  b   c\t\td\r\n e",
                                    "<|im_start|>user\nHi<|im_end|>\n<think>\n</think><|endoftext|>",
                                    "<|im_start",
                                    "\xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb",
                                    "\xff\xfe broken \xc3",
                                    "x = y[0] + {z: '\\n'};"};
  std::string all;
  for (int i = 1; i < 256; ++i) all.push_back(static_cast<char>(i));
  texts.push_back(all);
  for (const std::string& text : texts) {
    const std::vector<TokenId> ids = model.tokenizer->encode(text);
    EXPECT_EQ(ids, expected.encode(text)) << text;
    EXPECT_EQ(model.tokenizer->decode(ids, true), expected.decode(ids, true)) << text;
    EXPECT_EQ(model.tokenizer->decode(ids, false), expected.decode(ids, false)) << text;
  }
  EXPECT_EQ(model.tokenizer->vocab_size(), expected.vocab_size());
  for (TokenId id = 0; id < expected.vocab_size(); ++id) {
    EXPECT_EQ(model.tokenizer->id_to_token(id), expected.id_to_token(id)) << id;
    EXPECT_EQ(model.tokenizer->is_special(id), expected.is_special(id)) << id;
  }
}

TEST(GgufTokenizerTest, TheChatTemplateAndWhatEndsAnAnswerAreThoseOfTheModel) {
  if (!std::filesystem::exists(toy_gguf())) GTEST_SKIP() << toy_gguf().string() << " is not there";
  const ModelFiles model = open_model((toy_gguf() / "model.gguf").string());
  const auto expected = load_chat_template(std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / "toy");
  const auto found = model.load_chat_template(nullptr);
  ASSERT_TRUE(found && expected);
  EXPECT_EQ(found->standard.source(), expected->standard.source());
  EXPECT_EQ(found->special_tokens, expected->special_tokens);
  EXPECT_EQ(model.generation.eos_token_ids, (std::vector<TokenId>{4093, 4091}));  // and <|endoftext|>
  EXPECT_EQ(model.config.dtype(), DType::kBF16);
}

// What ends an answer of Phi-3 ends a message of gpt-oss, whose answers have several.
TEST(GgufFileTest, TheEndOfAMessageEndsNoAnswerOfGptOss) {
  const auto endings = [](const std::vector<std::string>& control) {
    const TempDir folder;
    testing::GgufConverter converter("llama3", "llama");
    converter.add_tokens(control);
    folder.write("model.gguf", converter.convert());
    const ModelFiles model = open_model((folder.path() / "model.gguf").string());
    std::vector<std::string> names;
    for (const TokenId id : model.generation.eos_token_ids)
      names.push_back(control[static_cast<std::size_t>(id) + control.size() -
                              static_cast<std::size_t>(model.tokenizer->vocab_size())]);
    return names;
  };
  EXPECT_EQ(endings({"<|end|>", "<|user|>"}), std::vector<std::string>{"<|end|>"});
  EXPECT_EQ(endings({"<|endoftext|>", "<|return|>", "<|end|>", "<|call|>"}),
            (std::vector<std::string>{"<|endoftext|>", "<|return|>", "<|call|>"}));
}

// As in files of OpenHermes (user-defined) and Gemma 1.1 (normal).
TEST(GgufFileTest, WhatEndsAnAnswerIsAControlTokenWhateverItsType) {
  for (const std::int32_t type : {1, 3, 4}) {
    const TempDir folder;
    testing::GgufConverter converter("llama3", "llama");
    converter.add_tokens({"<|im_end|>"}, type);
    folder.write("model.gguf", converter.convert());
    const ModelFiles model = open_model((folder.path() / "model.gguf").string());
    const std::vector<TokenId> end = {model.tokenizer->vocab_size() - 1};
    EXPECT_EQ(model.generation.eos_token_ids, end) << type;
    EXPECT_EQ(model.tokenizer->encode(std::vector<TextPiece>{{"<|im_end|>", true}}, false), end) << type;
    EXPECT_NE(model.tokenizer->encode(std::vector<TextPiece>{{"<|im_end|>", false}}, false), end) << type;
  }
}

TEST(GgufFileTest, ATokenThatStandsOftenIsRefusedAtOnce) {
  if (testing::kSanitized) GTEST_SKIP() << "it is about time";
  constexpr std::int64_t kTokens = 500'000;
  const TempDir folder;
  GgufBuilder builder;
  builder.add("general.architecture", "llama");
  for (const auto& [key, value] : std::map<std::string, std::uint32_t>{{"block_count", 1},
                                                                       {"context_length", 64},
                                                                       {"embedding_length", 32},
                                                                       {"feed_forward_length", 64},
                                                                       {"attention.head_count", 4}})
    builder.add("llama." + key, value);
  builder.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  builder.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-2");
  builder.add("tokenizer.ggml.tokens", std::vector<std::string>(kTokens, "<eos>"));
  builder.add("tokenizer.ggml.token_type", std::vector<std::int32_t>(kTokens, 3));
  builder.tensor("token_embd.weight", {kTokens, 1}, std::vector<float>(kTokens));
  const std::string path = folder.write("model.gguf", builder.bytes()).string();
  const auto start = std::chrono::steady_clock::now();
  expect_error([&] { open_model(path); }, {"model.gguf", "<eos>", "stands twice"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(GgufFileTest, ErrorsNameTheFileAndWhatItIs) {
  if (!std::filesystem::exists(toy_gguf())) GTEST_SKIP() << toy_gguf().string() << " is not there";
  EngineConfig config;
  config.model = (toy_gguf() / "model.gguf").string();
  config.device = "cpu";
  config.max_model_len = 1 << 20;
  expect_error([&] { const Engine engine(config); }, {"model.gguf: max-model-len"});
  config.max_model_len = 0;
  config.quantization = "fp8";
  expect_error([&] { const Engine engine(config); }, {"model.gguf: quantization is fp8", "a GGUF file"});
}

TEST(GgufFileTest, AFolderWithSeveralFilesWantsOneOfThemNamed) {
  const TempDir folder;
  folder.write("a.gguf", "");
  EXPECT_EQ(find_gguf(folder.path().string()), folder.path() / "a.gguf");
  folder.write("mmproj-a.gguf", "");
  EXPECT_EQ(find_gguf(folder.path().string()), folder.path() / "a.gguf");
  folder.write("b-00001-of-00002.gguf", "");
  folder.write("b-00002-of-00002.gguf", "");
  expect_error([&] { find_gguf(folder.path().string()); }, {"2 GGUF files"});
  std::filesystem::remove(folder.path() / "a.gguf");
  EXPECT_EQ(find_gguf(folder.path().string()), folder.path() / "b-00001-of-00002.gguf");
  folder.write("model.safetensors", "");
  EXPECT_EQ(find_gguf(folder.path().string()), "");
}

}  // namespace
}  // namespace quire
