// GGUF files as models: golden models written as GGUF files here compute what they compute otherwise, and a
// file's tokenizer gives the ids of the tokenizer.json that it was made of.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "base/json.h"
#include "checkpoint/gguf_builder.h"
#include "engine/engine.h"
#include "engine/gguf_model.h"
#include "engine/golden_models.h"
#include "expect_error.h"
#include "inspect/verify.h"
#include "temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

struct Values {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// A checkpoint on its way to a GGUF file, by what llama.cpp's converter does.
class Converter {
 public:
  Converter(const std::string& model, std::string architecture)
      : folder_(testing::golden_directory(model)),
        architecture_(std::move(architecture)),
        config_(read_json_file(folder_ / "config.json")) {}

  // A vocabulary that ends with these control tokens.
  void add_tokens(const std::vector<std::string>& control) {
    std::vector<std::string> tokens;
    while (tokens.size() + control.size() < number("vocab_size"))
      tokens.push_back("t" + std::to_string(tokens.size()));
    std::vector<std::int32_t> types(tokens.size(), 1);
    tokens.insert(tokens.end(), control.begin(), control.end());
    types.resize(tokens.size(), 3);
    builder_.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-4o");
    builder_.add("tokenizer.ggml.tokens", tokens).add("tokenizer.ggml.token_type", types);
    builder_.add("tokenizer.ggml.merges", std::vector<std::string>());
  }

  std::string convert() {
    read_tensors();
    builder_.add("general.architecture", architecture_);
    add_sizes();
    add_rotary();
    for (const auto& [name, tensor] : tensors_) add_tensor(name, tensor);
    for (const auto& [name, experts] : experts_) builder_.tensor(name, experts.shape, experts.values);
    return builder_.bytes();
  }

 private:
  bool is_gemma() const { return architecture_.starts_with("gemma"); }
  bool is_permuted() const {
    return architecture_ == "llama" || architecture_ == "granite" || architecture_ == "smollm3";
  }
  std::uint32_t number(const char* key) const { return config_.at(key).get<std::uint32_t>(); }
  bool has(const char* key) const { return config_.contains(key) && !config_.at(key).is_null(); }
  std::uint32_t head_dim() const {
    return has("head_dim") ? number("head_dim") : number("hidden_size") / number("num_attention_heads");
  }

  void read_tensors() {
    const SafetensorsFile file(folder_ / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) {
      std::vector<std::byte> bytes(entry.bytes);
      file.read(name, 0, bytes);
      Values tensor{entry.shape, std::vector<float>(entry.bytes / size_of(*entry.dtype))};
      quire::convert(*entry.dtype, bytes.data(), DType::kF32, tensor.values.data(), tensor.values.size());
      tensors_.emplace(name, std::move(tensor));
    }
  }

  template <typename T>
  void add(std::string_view key, const T& value) {
    builder_.add(architecture_ + "." + std::string(key), value);
  }

  void add_sizes() {
    add("block_count", number("num_hidden_layers"));
    add("context_length", number("max_position_embeddings"));
    add("embedding_length", number("hidden_size"));
    add("attention.head_count", number("num_attention_heads"));
    if (architecture_ == "lfm2") {
      const auto& w1 = tensors_.at("model.layers.0.feed_forward.w1.weight");
      add("feed_forward_length", static_cast<std::uint32_t>(w1.shape[0]));
      std::vector<std::int32_t> heads(number("num_hidden_layers"));
      for (const std::size_t layer : config_.at("full_attn_idxs").get<std::vector<std::size_t>>())
        heads[layer] = config_.at("num_key_value_heads").get<std::int32_t>();
      add("attention.head_count_kv", heads);
      add("shortconv.l_cache", number("conv_L_cache"));
    } else {
      add("feed_forward_length", number("intermediate_size"));
      add("attention.head_count_kv", number("num_key_value_heads"));
    }
    add("attention.key_length", head_dim());
    add("attention.value_length", head_dim());
    add("attention.layer_norm_rms_epsilon",
        config_.at(has("norm_eps") ? "norm_eps" : "rms_norm_eps").get<float>());
    for (const auto& [key, from] :
         std::map<std::string, const char*>{{"expert_count", "num_local_experts"},
                                            {"expert_used_count", "num_experts_per_tok"},
                                            {"attention.sliding_window_pattern", "sliding_window_pattern"}})
      if (has(from)) add(key, number(from));
    if (has("sliding_window") && (is_gemma() || architecture_ == "phi3" || architecture_ == "gpt-oss"))
      add("attention.sliding_window", number("sliding_window"));
    for (const auto& [key, from] :
         std::map<std::string, const char*>{{"attn_logit_softcapping", "attn_logit_softcapping"},
                                            {"final_logit_softcapping", "final_logit_softcapping"},
                                            {"embedding_scale", "embedding_multiplier"},
                                            {"residual_scale", "residual_multiplier"},
                                            {"attention.scale", "attention_multiplier"},
                                            {"logit_scale", "logits_scaling"}})
      if (has(from)) add(key, config_.at(from).get<float>());
  }

  void add_rotary() {
    add("rope.freq_base", config_.at("rope_theta").get<float>());
    const double part = has("partial_rotary_factor") ? config_.at("partial_rotary_factor").get<double>() : 1;
    const auto size = static_cast<std::uint32_t>(head_dim() * part);
    add("rope.dimension_count", size);
    if (!has("rope_scaling")) return;
    const Json& rope = config_.at("rope_scaling");
    const std::string type = rope.contains("rope_type") ? rope["rope_type"] : rope["type"];
    if (type == "linear" || type == "yarn") {
      add("rope.scaling.type", type);
      add("rope.scaling.factor", rope.at("factor").get<float>());
      if (type == "yarn")
        add("rope.scaling.original_context_length",
            rope.at("original_max_position_embeddings").get<std::uint32_t>());
    } else if (type == "llama3") {
      add_factors("rope_freqs.weight", llama3_factors(rope, size));
    } else if (type == "longrope") {
      const auto original = number("original_max_position_embeddings");
      add_factors("rope_factors_short.weight", rope.at("short_factor").get<std::vector<float>>());
      add_factors("rope_factors_long.weight", rope.at("long_factor").get<std::vector<float>>());
      add("rope.scaling.original_context_length", original);
      const double scale = static_cast<double>(number("max_position_embeddings")) / original;
      const double scaling = scale <= 1 ? 1 : std::sqrt(1 + std::log(scale) / std::log(original));
      add("rope.scaling.attn_factor", static_cast<float>(scaling));
    } else {
      FAIL() << type;
    }
  }

  void add_factors(const char* name, const std::vector<float>& factors) {
    builder_.tensor(name, {std::ssize(factors)}, factors);
  }

  std::vector<float> llama3_factors(const Json& rope, std::uint32_t size) const {
    const auto value = [&](const char* key) { return rope.at(key).get<double>(); };
    const double original = value("original_max_position_embeddings"), factor = value("factor");
    const double low = value("low_freq_factor"), high = value("high_freq_factor");
    std::vector<float> factors;
    for (std::uint32_t i = 0; i < size; i += 2) {
      const double frequency = std::pow(config_.at("rope_theta").get<double>(), -1.0 * i / size);
      const double length = 2 * std::numbers::pi / frequency;
      const double smooth = (original / length - low) / (high - low);
      factors.push_back(static_cast<float>(length < original / high  ? 1
                                           : length > original / low ? factor
                                                                     : 1 / ((1 - smooth) / factor + smooth)));
    }
    return factors;
  }

  // "model.layers.3.self_attn.q_proj.weight" as "blk.3.attn_q.weight".
  std::string renamed(const std::string& name) const {
    const std::string after_norm =
        is_gemma() || architecture_ == "olmo2" || architecture_ == "seed_oss" || architecture_ == "gpt-oss"
            ? "post_attention_norm"
            : "ffn_norm";
    const std::pair<std::string, std::string> names[] = {{"model.layers", "blk"},
                                                         {"model.embed_tokens", "token_embd"},
                                                         {"model.norm", "output_norm"},
                                                         {"lm_head", "output"},
                                                         {"self_attn.q_proj", "attn_q"},
                                                         {"self_attn.k_proj", "attn_k"},
                                                         {"self_attn.v_proj", "attn_v"},
                                                         {"self_attn.qkv_proj", "attn_qkv"},
                                                         {"self_attn.o_proj", "attn_output"},
                                                         {"self_attn.q_norm", "attn_q_norm"},
                                                         {"self_attn.k_norm", "attn_k_norm"},
                                                         {"block_sparse_moe.gate", "ffn_gate_inp"},
                                                         {"mlp.router", "ffn_gate_inp"},
                                                         {"self_attn.sinks", "attn_sinks.weight"},
                                                         {"mlp.gate_up_proj", "ffn_up"},
                                                         {"mlp.gate_proj", "ffn_gate"},
                                                         {"mlp.up_proj", "ffn_up"},
                                                         {"mlp.down_proj", "ffn_down"},
                                                         {"input_layernorm", "attn_norm"},
                                                         {"model.embedding_norm", "token_embd_norm"},
                                                         {"operator_norm", "attn_norm"},
                                                         {"self_attn.out_proj", "attn_output"},
                                                         {"self_attn.q_layernorm", "attn_q_norm"},
                                                         {"self_attn.k_layernorm", "attn_k_norm"},
                                                         {"feed_forward.w1", "ffn_gate"},
                                                         {"feed_forward.w3", "ffn_up"},
                                                         {"feed_forward.w2", "ffn_down"},
                                                         {".conv.", ".shortconv."},
                                                         {"post_attention_layernorm", after_norm},
                                                         {"pre_feedforward_layernorm", "ffn_norm"},
                                                         {"post_feedforward_layernorm", "post_ffw_norm"}};
    std::string result = name;
    for (const auto& [from, to] : names)
      if (const std::size_t at = result.find(from); at != result.npos) result.replace(at, from.size(), to);
    return result;
  }

  void add_tensor(const std::string& name, Values tensor) {
    if (add_expert(name, tensor) || add_transposed_experts(name, tensor)) return;
    const bool is_q = name.find("q_proj") != name.npos, is_k = name.find("k_proj") != name.npos;
    if (is_permuted() && (is_q || is_k))
      permute(tensor, number(is_q ? "num_attention_heads" : "num_key_value_heads"));
    if (is_gemma() && name.ends_with("norm.weight"))
      for (float& value : tensor.values) value += 1;
    // A scaling of scores that the format has no key for.
    if (is_gemma() && name.ends_with(architecture_ == "gemma2" ? "q_proj.weight" : "q_norm.weight"))
      for (float& value : tensor.values)
        value *= std::sqrt(static_cast<float>(head_dim()) / config_.at("query_pre_attn_scalar").get<float>());
    if (name.ends_with("conv.conv.weight")) tensor.shape.erase(tensor.shape.begin() + 1);
    builder_.tensor(renamed(name), tensor.shape, tensor.values);
  }

  // All experts of a layer are one tensor. Names come sorted, by expert and then by matrix.
  bool add_expert(const std::string& name, const Values& tensor) {
    const std::size_t at = name.find(".block_sparse_moe.experts.");
    if (at == name.npos) return false;
    const std::map<std::string, std::string> names = {{"w1", "gate"}, {"w2", "down"}, {"w3", "up"}};
    const std::string matrix = names.at(name.substr(name.size() - std::string("w1.weight").size(), 2));
    Values& all = experts_[renamed(name.substr(0, at)) + ".ffn_" + matrix + "_exps.weight"];
    if (all.shape.empty()) all.shape = {0, tensor.shape[0], tensor.shape[1]};
    ++all.shape[0];
    all.values.insert(all.values.end(), tensor.values.begin(), tensor.values.end());
    return true;
  }

  // Of gpt-oss: [experts, in, out], of which gate's and up's columns stand by turns, and biases [experts,
  // out].
  bool add_transposed_experts(const std::string& name, const Values& tensor) {
    const std::size_t at = name.find(".mlp.experts.");
    if (at == name.npos) return false;
    const bool is_bias = name.ends_with("_bias");
    const std::vector<std::string> parts = name.find("gate_up_proj") != name.npos
                                               ? std::vector<std::string>{"gate", "up"}
                                               : std::vector<std::string>{"down"};
    const std::int64_t count = tensor.shape[0], in = is_bias ? 1 : tensor.shape[1], out = tensor.shape.back();
    const auto num_parts = std::ssize(parts), rows = out / num_parts;
    for (std::int64_t part = 0; part < num_parts; ++part) {
      Values one{is_bias ? std::vector{count, rows} : std::vector{count, rows, in}, {}};
      for (std::int64_t i = 0; i < count * rows * in; ++i) {
        const std::int64_t expert = i / in / rows, row = i / in % rows, column = i % in;
        one.values.push_back(
            tensor.values[static_cast<std::size_t>((expert * in + column) * out + row * num_parts + part)]);
      }
      experts_[renamed(name.substr(0, at)) + ".ffn_" + parts[static_cast<std::size_t>(part)] + "_exps." +
               (is_bias ? "bias" : "weight")] = std::move(one);
    }
    return true;
  }

  // Of each head the rows [2][half] become [half][2].
  static void permute(Values& tensor, std::uint32_t num_heads) {
    const auto width = static_cast<std::size_t>(tensor.shape.size() < 2 ? 1 : tensor.shape[1]);
    const auto half = static_cast<std::size_t>(tensor.shape[0]) / num_heads / 2;
    const std::vector<float> from = tensor.values;
    auto to = tensor.values.begin();
    for (std::size_t head = 0; head < num_heads; ++head)
      for (std::size_t i = 0; i < half; ++i)
        for (std::size_t part = 0; part < 2; ++part)
          to = std::copy_n(&from[((head * 2 + part) * half + i) * width], width, to);
  }

  std::filesystem::path folder_;
  std::string architecture_;
  Json config_;
  std::map<std::string, Values> tensors_, experts_;
  GgufBuilder builder_;
};

class GgufModelTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GgufModelTest, ComputesWhatTheCheckpointComputes) {
  const auto& [model, architecture] = GetParam();
  if (!std::filesystem::exists(testing::golden_directory(model))) GTEST_SKIP() << model << " is not there";
  const TempDir folder;
  folder.write("model.gguf", Converter(model, architecture).convert());
  std::filesystem::copy_file(testing::golden_directory(model) / "expected.safetensors",
                             folder.path() / "expected.safetensors");
  EngineConfig config = testing::golden_config(model);
  config.model = (folder.path() / "model.gguf").string();
  config.cpu_isa = "reference";
  int num_results = 0;
  EXPECT_TRUE(verify(config, [&](const VerifyResult& result) {
    EXPECT_LE(result.error, result.limit);
    ++num_results;
  }));
  EXPECT_GT(num_results, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, GgufModelTest,
                         ::testing::Values(std::pair("llama3", "llama"), std::pair("mistral", "llama"),
                                           std::pair("llama-bias", "llama"), std::pair("mixtral", "llama"),
                                           std::pair("qwen2", "qwen2"), std::pair("qwen3-yarn", "qwen3"),
                                           std::pair("gemma2", "gemma2"), std::pair("gemma3", "gemma3"),
                                           std::pair("olmo2", "olmo2"), std::pair("granite", "granite"),
                                           std::pair("phi4-mini", "phi3"), std::pair("phi3", "phi3"),
                                           std::pair("smollm3", "smollm3"), std::pair("lfm2", "lfm2"),
                                           std::pair("seed-oss", "seed_oss"),
                                           std::pair("gpt-oss", "gpt-oss")),
                         [](const auto& test) { return testing::test_name({test.param.first}); });

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
    Converter converter("llama3", "llama");
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
