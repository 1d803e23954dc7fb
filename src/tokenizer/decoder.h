#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/text_replacer.h"

namespace quire {

// The steps that turn the texts of tokens into text. Each takes what the last one hands on, token by token,
// and holds back what later tokens may change; finish() hands that on at the end of the text. in_text() is
// what a token stands for apart from such surroundings. A copy of a step that has taken nothing begins a
// text.
namespace decoding {

using Tokens = std::vector<std::string>;

// Characters of the byte alphabet become bytes, those bytes one token of text.
struct ByteLevel {
  void push(std::string token, Tokens& out);
  void finish(Tokens& out);
  std::string in_text(std::string token) const;
  std::string pending;  // the beginning of a character
};

// Tokens such as <0x0A> become bytes. A run of them is text as a whole or not at all.
struct ByteRuns {
  void push(std::string token, Tokens& out);
  void finish(Tokens& out);
  std::string in_text(std::string token) const;
  std::string run;
};

struct Replace {
  void push(std::string token, Tokens& out) { out.push_back(replacer.apply(token)); }
  void finish(Tokens&) {}
  std::string in_text(std::string token) const { return replacer.apply(token); }
  TextReplacer replacer;
};

// Removes a character from the ends: of each token, or of the text once its tokens are joined.
struct Strip {
  void push(std::string token, Tokens& out);
  void finish(Tokens&) { reset(); }
  std::string in_text(std::string token) const { return token; }
  void reset();
  std::string character;
  std::size_t start, stop;  // at most so many
  bool joined;
  std::size_t stripped = 0;  // at the start
  std::string held = {};     // at the end
};

// The first token loses the spaces that encoding may have put there.
struct MetaspaceToSpace {
  void push(std::string token, Tokens& out);
  void finish(Tokens&) {}
  std::string in_text(std::string token) const { return replace_all(token, metaspace.replacement, " "); }
  Metaspace metaspace;
  bool is_first = true;
};

// The suffix of a word is a space, but for the last token.
struct WordEnds {
  void push(std::string token, Tokens& out);
  void finish(Tokens& out);
  std::string in_text(std::string token) const { return replace_all(token, suffix, " "); }
  std::string suffix;
  std::optional<std::string> held;
};

using Step = std::variant<ByteLevel, ByteRuns, Replace, Strip, MetaspaceToSpace, WordEnds>;

}  // namespace decoding

// The decoder of a file. Immutable, usable from any thread.
class Decoder {
 public:
  Decoder() = default;
  explicit Decoder(const JsonView& config) { add_steps(config); }

  // The bytes of a token within a text; characters may be split between tokens.
  std::string bytes(std::string_view token) const;

 private:
  friend class DecoderStream;

  void add_steps(const JsonView& config);
  void add_strip(const JsonView& config);

  std::vector<decoding::Step> steps_;
  bool joined_ = false;  // what the last step hands on is one token, in parts
};

// Decodes one text after another, token by token. For one thread; the decoder outlives it.
class DecoderStream {
 public:
  explicit DecoderStream(const Decoder& decoder) : decoder_(&decoder), steps_(decoder.steps_) {}

  // What a token adds to the text so far.
  std::string push(std::string_view token);
  // What is left. The next push begins a new text.
  std::string finish();

 private:
  std::string run(bool ends);

  const Decoder* decoder_;
  std::vector<decoding::Step> steps_;
  decoding::Tokens tokens_, next_;  // of one run
};

}  // namespace quire
