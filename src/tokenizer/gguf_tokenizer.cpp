// Names and defaults: llama.cpp, src/llama-vocab.cpp; the patterns are those of the models' own
// tokenizer.json, which stand there beside them.
#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <tuple>
#include <utility>

#include "tokenizer/tokenizer_file.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace quire {
namespace {

constexpr std::size_t kMaxPieceBytes = 512;  // of SentencePiece's; what they are merged of is looked for

// One pattern after the other cuts a text.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizerName {
  std::string_view names;
  std::string_view pattern;
  bool digits_apart = false;  // each digit is cut out before
  bool whole_words = false;   // a word that is a token is not merged
  bool add_bos = false;       // where the file does not say
  bool composes = false;      // the model's tokenizer.json brings text to NFC first
};
constexpr PreTokenizerName kNamedPreTokenizers[] = {
    {.names = "gpt-2, phi-2, olmo, exaone4", .pattern = kGpt2},
    {.names = "starcoder, refact, command-r, smollm, exaone", .pattern = kGpt2, .digits_apart = true},
    {.names = "dbrx, smaug-bpe, chatglm-bpe, glm4", .pattern = kLlama3},
    {.names = "llama3, llama-v3, llama-bpe, lfm2, falcon3",
     .pattern = kLlama3,
     .whole_words = true,
     .add_bos = true},
    {.names = "tekken", .pattern = kTekken, .whole_words = true, .add_bos = true},
    {.names = "qwen2", .pattern = kQwen2, .composes = true},
    {.names = "qwen35", .pattern = kQwen35, .composes = true},
    {.names = "deepseek-r1-qwen, megrez", .pattern = kQwen2},
    {.names = "gpt-4o, llama4", .pattern = kGpt4o},
    {.names = "seed-coder", .pattern = kSeedCoder},
};

const PreTokenizerName& find_pre_tokenizer(const std::string& name, const std::string& where) {
  for (const PreTokenizerName& known : kNamedPreTokenizers)
    for (const auto known_name : std::views::split(known.names, std::string_view(", ")))
      if (std::ranges::equal(known_name, name)) return known;
  fail("{}: key \"tokenizer.ggml.pre\" {}; known are {}", where,
       name.empty() ? "is missing" : format_text("is {}, which is not known", in_quotes(name)),
       join_text(std::views::transform(kNamedPreTokenizers, &PreTokenizerName::names), ", "));
}

Json split_step(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}};
}

Json replace_step(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// One vocabulary on its way to a tokenizer.
class Builder {
 public:
  Builder(const GgufVocabulary& vocabulary, const std::string& where)
      : vocabulary_(vocabulary), where_(where) {}

  Tokenizer build() {
    read_tokens();
    if (vocabulary_.model == "gpt2") {
      add_byte_level();
      add_merges();
    } else if (vocabulary_.model == "llama") {
      add_sentence_pieces(/*prefix_by_default=*/true);
      add_merges_by_score();
    } else if (vocabulary_.model == "gemma4") {
      add_sentence_pieces(/*prefix_by_default=*/false);
      add_merges();
    } else {
      fail(
          "{}: key \"tokenizer.ggml.model\" is {}, which is not supported; supported are gpt2, llama and "
          "gemma4",
          where_, in_quotes(vocabulary_.model));
    }
    file_.has_merges = true;
    return Tokenizer(std::move(file_), where_);
  }

 private:
  void read_tokens() {
    const auto& tokens = vocabulary_.tokens;
    if (tokens.empty() || tokens.size() > std::size_t{kMaxTokenId} + 1)
      fail("{}: key \"tokenizer.ggml.tokens\" must hold up to {} tokens", where_, kMaxTokenId + 1);
    if (!vocabulary_.types.empty() && vocabulary_.types.size() != tokens.size())
      fail("{}: key \"tokenizer.ggml.token_type\" has {} elements, and there are {} tokens", where_,
           vocabulary_.types.size(), tokens.size());
    Json added = Json::array();
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      if (!is_valid_utf8(tokens[id])) fail("{}: token {} is no valid UTF-8", where_, id);
      if (vocabulary_.has_type(id, GgufVocabulary::kUnused)) continue;  // what fills up the matrix
      file_.vocab.emplace_back(tokens[id], static_cast<TokenId>(id));
      const bool special = vocabulary_.has_type(id, GgufVocabulary::kControl) ||
                           vocabulary_.has_type(id, GgufVocabulary::kUnknown);
      if (!special && !vocabulary_.has_type(id, GgufVocabulary::kUserDefined)) continue;
      constexpr std::string_view kNever[] = {"<unk>", "<s>", "<|endoftext|>"};
      const bool strips =
          vocabulary_.strips_behind && special && std::ranges::find(kNever, tokens[id]) == std::end(kNever);
      added.push_back({{"id", id},
                       {"content", tokens[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", strips},
                       {"normalized", false},
                       {"special", special}});
    }
    file_.config["added_tokens"] = std::move(added);
  }

  std::string token_text(const std::optional<int>& id, const char* key) const {
    if (!id || std::cmp_greater_equal(*id, vocabulary_.tokens.size()))
      fail("{}: key \"tokenizer.ggml.{}\" {}", where_, key, id ? "names no token" : "is missing");
    return vocabulary_.tokens[*id];
  }

  // The tokens that come before a text and behind it.
  void surround(bool bos, bool eos) {
    Json single = Json::array(), tokens = Json::object();
    const auto add = [&](const std::optional<int>& id, const char* key) {
      const std::string text = token_text(id, key);
      single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
    };
    if (bos) add(vocabulary_.bos, "bos_token_id");
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (eos) add(vocabulary_.eos, "eos_token_id");
    file_.config["post_processor"] = {
        {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
  }

  void add_byte_level() {
    const PreTokenizerName& pre = find_pre_tokenizer(vocabulary_.pre, where_);
    Json& config = file_.config;
    if (pre.composes) config["normalizer"] = {{"type", "NFC"}};
    Json steps = Json::array();
    if (pre.digits_apart) steps.push_back(split_step(R"(\p{N})"));
    steps.push_back(split_step(pre.pattern));
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    config["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    config["decoder"] = {{"type", "ByteLevel"}};
    config["model"] = {{"type", "BPE"}, {"ignore_merges", pre.whole_words}};
    surround(vocabulary_.add_bos.value_or(pre.add_bos), vocabulary_.add_eos.value_or(false));
  }

  void add_merges() {
    for (std::size_t i = 0; i < vocabulary_.merges.size(); ++i) {
      const std::string& merge = vocabulary_.merges[i];
      const std::size_t space = merge.find(' ', 1);
      if (merge.empty() || space == merge.npos || !is_valid_utf8(merge))
        fail("{}: key \"tokenizer.ggml.merges\": element {} must be two tokens with a space between", where_,
             i);
      file_.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
  }

  void add_sentence_pieces(bool prefix_by_default) {
    Json& config = file_.config;
    const bool prefix = vocabulary_.add_space_prefix.value_or(prefix_by_default);
    Json normalizers = Json::array(), decoders = Json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
    normalizers.push_back(replace_step(" ", "\u2581"));
    decoders = {replace_step("\u2581", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    config["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
    config["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    config["model"] = {{"type", "BPE"},
                       {"byte_fallback", true},
                       {"fuse_unk", true},
                       {"unk_token", token_text(vocabulary_.unknown.value_or(0), "unknown_token_id")}};
    surround(vocabulary_.add_bos.value_or(true), vocabulary_.add_eos.value_or(false));
  }

  // SentencePiece merges what makes the piece of the best score. As merges in order: every way to make a
  // piece of two others; of one score the longer left part first, as transformers does when it converts such
  // a model.
  void add_merges_by_score() {
    const auto& tokens = vocabulary_.tokens;
    if (vocabulary_.scores.size() != tokens.size())
      fail("{}: key \"tokenizer.ggml.scores\" must hold a number for each of {} tokens", where_,
           tokens.size());
    std::unordered_map<std::string_view, std::size_t> ids;
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      if (!std::isfinite(vocabulary_.scores[id])) fail("{}: the score of token {} is not finite", where_, id);
      if (is_merged(id)) ids.emplace(tokens[id], id);
    }
    std::vector<std::tuple<double, std::ptrdiff_t, std::size_t>> merges;  // -score, -bytes of the left, id
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      const std::string_view text = tokens[id];
      if (!is_merged(id)) continue;
      if (text.size() > kMaxPieceBytes)
        fail("{}: token {} has {} bytes; the limit is {}", where_, id, text.size(), kMaxPieceBytes);
      for (std::size_t at = 1; at < text.size(); ++at) {
        if (ids.contains(text.substr(0, at)) && ids.contains(text.substr(at)))
          merges.emplace_back(-vocabulary_.scores[id], -static_cast<std::ptrdiff_t>(at), id);
      }
    }
    std::ranges::sort(merges);
    for (const auto& [score, left, id] : merges)
      file_.merges.emplace_back(tokens[id].substr(0, -left), tokens[id].substr(-left));
  }

  bool is_merged(std::size_t id) const {
    return vocabulary_.types.empty() || vocabulary_.has_type(id, GgufVocabulary::kNormal) ||
           vocabulary_.has_type(id, GgufVocabulary::kUserDefined);
  }

  const GgufVocabulary& vocabulary_;
  const std::string& where_;
  TokenizerFile file_;
};

}  // namespace

Tokenizer make_gguf_tokenizer(const GgufVocabulary& vocabulary, const std::string& where) {
  return Builder(vocabulary, where).build();
}

}  // namespace quire
