// Keys tokenizer.* and general.sampling.*: llama.cpp, gguf-py/gguf/constants.py.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/gguf/gguf_name.h"
#include "checkpoint/gguf/gguf_weights.h"
#include "engine/model_files.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace quire {
namespace {

constexpr IntRange kTokenIds{0, kMaxTokenId};

constexpr std::string_view kEndOfCall = "<|call|>";
// Tokens that end an answer, whatever the key of that name says, and are control tokens, whatever their type
// (as llama.cpp takes them): many a file has them as what a user may write.
constexpr std::string_view kEndings[] = {"<|eot_id|>", "<|eom_id|>",      "<|im_end|>",
                                         "<|end|>",    "<end_of_turn>",   "<|endoftext|>",
                                         "<|eot|>",    "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
                                         "<|return|>", kEndOfCall,        "<turn|>",
                                         "<eos>",      "<|tool_response>"};

GgufVocabulary read_vocabulary(const GgufKeys& keys) {
  GgufVocabulary vocabulary;
  vocabulary.model = keys.require_string("tokenizer.ggml.model");
  vocabulary.pre = keys.find_string("tokenizer.ggml.pre").value_or("");
  vocabulary.tokens = keys.get_strings("tokenizer.ggml.tokens");
  vocabulary.merges = keys.get_strings("tokenizer.ggml.merges");
  vocabulary.scores = keys.get_doubles("tokenizer.ggml.scores");
  vocabulary.types = keys.get_doubles("tokenizer.ggml.token_type", {.min = 0, .max = 255});
  const auto id = [&](const char* key, int llama_default) -> std::optional<int> {
    if (const auto found = keys.find_int(key, kTokenIds)) return found;
    return vocabulary.model == "llama" ? std::optional(llama_default) : std::nullopt;
  };
  vocabulary.bos = id("tokenizer.ggml.bos_token_id", 1);
  vocabulary.eos = id("tokenizer.ggml.eos_token_id", 2);
  vocabulary.unknown = id("tokenizer.ggml.unknown_token_id", 0);
  vocabulary.add_bos = keys.find_bool("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = keys.find_bool("tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = keys.find_bool("tokenizer.ggml.add_space_prefix");
  for (std::size_t i = 0; i < std::min(vocabulary.tokens.size(), vocabulary.types.size()); ++i) {
    if (std::ranges::find(kEndings, vocabulary.tokens[i]) != std::end(kEndings))
      vocabulary.types[i] = GgufVocabulary::kControl;
  }
  vocabulary.strips_behind =
      vocabulary.model == "llama" && keys.find_string("general.architecture") == "phi3";
  return vocabulary;
}

void add_once(std::vector<TokenId>& ids, TokenId id) {
  if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

GenerationConfig read_generation(const GgufKeys& keys, const GgufVocabulary& vocabulary) {
  GenerationConfig config;
  config.temperature = keys.find_float("general.sampling.temp", {.min = 0, .max = 1e4});
  config.top_p = keys.find_float("general.sampling.top_p", kFraction);
  config.min_p = keys.find_float("general.sampling.min_p", {.min = 0, .max = 1});
  config.repetition_penalty = keys.find_float("general.sampling.penalty_repeat", {.min = 1e-4, .max = 1e4});
  config.top_k = keys.find_int("general.sampling.top_k", {.min = -1});
  if (vocabulary.eos) add_once(config.eos_token_ids, *vocabulary.eos);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = keys.find_int(key, kTokenIds)) add_once(config.eos_token_ids, *id);
  // gpt-oss's messages end with what ends an answer elsewhere.
  const bool has_messages = std::ranges::find(vocabulary.tokens, kEndOfCall) != vocabulary.tokens.end();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (has_messages && vocabulary.tokens[id] == "<|end|>") continue;
    const bool ends = vocabulary.has_type(id, GgufVocabulary::kControl) &&
                      std::ranges::find(kEndings, vocabulary.tokens[id]) != std::end(kEndings);
    if (ends) add_once(config.eos_token_ids, static_cast<TokenId>(id));
  }
  return config;
}

// The keys that hold special tokens of templates.
OrderedJson special_tokens(const GgufKeys& keys, const std::vector<std::string>& tokens) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                            {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                            {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                            {"pad_token", "tokenizer.ggml.padding_token_id"}};
  OrderedJson texts = OrderedJson::object();
  for (const auto& [name, key] : kNames) {
    const auto id = keys.find_int(key, kTokenIds);
    if (id && std::cmp_less(*id, tokens.size())) texts[name] = tokens[*id];
  }
  return texts;
}

std::optional<CheckpointChatTemplate> gguf_chat_template(const GgufModel& model, const ChatTemplate* given) {
  constexpr const char* kKey = "tokenizer.chat_template";
  const auto source = model.keys().find_string(kKey);
  const std::vector<std::string> tokens = model.keys().get_strings("tokenizer.ggml.tokens");
  if ((!source && given == nullptr) || tokens.empty()) return std::nullopt;
  const OrderedJson special = special_tokens(model.keys(), tokens);
  if (given != nullptr) return CheckpointChatTemplate{*given, std::nullopt, special};
  const std::string where = model.path() + ": " + kKey;
  CheckpointChatTemplate result{ChatTemplate(*source, where), std::nullopt, special};
  if (const auto tool_use = model.keys().find_string("tokenizer.chat_template.tool_use"))
    result.tool_use = ChatTemplate(*tool_use, where + ".tool_use");
  return result;
}

}  // namespace

std::filesystem::path find_gguf(const std::string& model) {
  const std::filesystem::path path = model;
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec))
    return path.extension() == ".gguf" ? path : std::filesystem::path();
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json"})
    if (std::filesystem::exists(path / weights, ec)) return {};
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path, ec)) {
    const std::string name = entry.path().filename().string();
    // The first part of a split model stands for all.
    if (entry.path().extension() == ".gguf" && !name.starts_with("mmproj") && parse_gguf_name(name).part <= 1)
      found.push_back(entry.path());
  }
  if (found.size() > 1)
    fail("{}: there are {} GGUF files; name one of them, such as {}", model, found.size(),
         found.front().string());
  return found.empty() ? std::filesystem::path() : found.front();
}

ModelFiles open_gguf(const std::filesystem::path& path) {
  const auto model = std::make_shared<const GgufModel>(path);
  const GgufKeys& keys = model->keys();
  GgufConfig config = read_gguf_config(*model);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  ModelFiles files{folder, std::move(config.config)};
  const std::string name = keys.find_string("tokenizer.ggml.model").value_or("no_vocab");
  if (name != "no_vocab" && name != "none") {
    const GgufVocabulary vocabulary = read_vocabulary(keys);
    const std::int64_t rows = model->find("token_embd.weight")->shape.front();
    if (std::cmp_greater(vocabulary.tokens.size(), rows))
      keys.fail_at("tokenizer.ggml.tokens",
                   format_text("has {} tokens, and tensor \"token_embd.weight\" {} rows",
                               vocabulary.tokens.size(), rows));
    files.tokenizer.emplace(make_gguf_tokenizer(vocabulary, model->path()));
    files.generation = read_generation(keys, vocabulary);  // of tokens that no longer can stand twice
  }
  files.load_chat_template = [model](const ChatTemplate* given) { return gguf_chat_template(*model, given); };
  files.is_quantized = true;
  files.where = path.string();
  files.name = path.stem().string();
  files.open_weights = [model, layout = std::move(config.layout)] {
    return std::make_unique<GgufWeights>(model, layout);
  };
  return files;
}

}  // namespace quire
