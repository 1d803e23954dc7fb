#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace quire {

// What the keys tokenizer.ggml.* of a GGUF file say; those that are absent are empty.
struct GgufVocabulary {
  // "gpt2": byte-level BPE; "llama": SentencePiece's BPE; "gemma4": the same with merges in their order
  std::string model = {};
  std::string pre = {};                  // names how gpt2 cuts text before it merges
  std::vector<std::string> tokens = {};  // by id
  std::vector<double> scores = {};       // of llama
  std::vector<double> types = {};        // as Type, each from 0 to 255
  std::vector<std::string> merges = {};  // of gpt2 and gemma4: two tokens and a space between
  std::optional<int> bos = {}, eos = {}, unknown = {};
  std::optional<bool> add_bos = {}, add_eos = {}, add_space_prefix = {};
  bool strips_behind = false;  // control tokens take the white space behind them, as Phi-3's do

  // Of llama.cpp, 1 to 6.
  enum Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  bool has_type(std::size_t id, Type type) const {
    return id < types.size() && static_cast<int>(types[id]) == type;
  }
};

// The tokenizer that Hugging Face's tokenizers library has for the same model. Error that names, by `where`,
// a model or a way to cut text that is not known, and those that are.
Tokenizer make_gguf_tokenizer(const GgufVocabulary& vocabulary, const std::string& where);

}  // namespace quire
