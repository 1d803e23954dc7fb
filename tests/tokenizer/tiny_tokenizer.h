#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "tokenizer/byte_tokens.h"
#include "tokenizer/tokenizer.h"

namespace quire::test {

// A tokenizer.json with one token a byte (ids 0 to 255, by byte), one more for each merge, and no split.
inline Json tiny_tokenizer_json(const std::vector<std::string>& merges = {}) {
  Json config = Json::parse(R"({
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {}, "merges": []}
  })");
  Json& model = config["model"];
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    model["vocab"][to_byte_characters({&c, 1})] = byte;
  }
  for (std::string merge : merges) {
    model["merges"].push_back(merge);
    merge.erase(merge.find(' '), 1);
    model["vocab"][merge] = model["vocab"].size();
  }
  return config;
}

// A tokenizer.json of SentencePiece's BPE: <unk> (id 0), a token a byte from id 1 on, printable ASCII and a
// letter of two bytes, and one more for each merge. A space is written "_".
inline Json tiny_sentencepiece_json(const std::vector<std::string>& merges = {}) {
  Json config = Json::parse(R"({
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "added_tokens": [],
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0}, "merges": []}
  })");
  Json& model = config["model"];
  const auto add = [&](const std::string& token) { model["vocab"][token] = model["vocab"].size(); };
  for (int byte = 0; byte < 256; ++byte) add(format_text("<0x{:02X}>", byte));
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c));
  add("\u00E9");
  for (std::string merge : merges) {
    model["merges"].push_back(merge);
    merge.erase(merge.find(' '), 1);
    add(merge);
  }
  return config;
}

// A tokenizer.json of a Unigram model with <unk> (id 0) and these pieces.
inline Json tiny_unigram_json(const std::vector<std::pair<std::string, double>>& pieces) {
  Json config = Json::parse(R"({"decoder": {"type": "Fuse"}, "added_tokens": [],
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0]]}})");
  for (const auto& [text, score] : pieces) config["model"]["vocab"].push_back(Json::array({text, score}));
  return config;
}

inline Json added_token(int id, std::string_view content, std::initializer_list<std::string_view> set = {}) {
  Json token = {{"id", id}, {"content", content}};
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) token[flag] = false;
  for (const std::string_view flag : set) token[std::string(flag)] = true;
  return token;
}

inline Tokenizer load(const Json& config) { return Tokenizer::from_json(config.dump(), "tiny.json"); }

// The texts of the tokens of a text.
inline std::vector<std::string> tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> tokens;
  for (const TokenId id : tokenizer.encode(text)) tokens.emplace_back(tokenizer.id_to_token(id).value());
  return tokens;
}

// The message of the Error that loading `text` ends with; empty if it ends well.
inline std::string load_text_error(std::string_view text) {
  try {
    Tokenizer::from_json(text, "tiny.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
inline std::string load_error(const Json& config) { return load_text_error(config.dump()); }

}  // namespace quire::test
