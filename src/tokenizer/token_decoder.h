#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_view.h"

namespace quire {

// The decoder of a file: the steps that turn the texts of tokens into text. Immutable, usable from any
// thread.
class TokenDecoder {
 public:
  using Tokens = std::vector<std::string>;
  struct Step {
    // Takes what the last step hands on, token by token, and nullptr at the end of the text; holds back what
    // later tokens may change. A copy of a step that has taken nothing begins a text.
    std::function<void(std::string* token, Tokens& out)> take;
    // What a token stands for apart from such surroundings.
    std::function<std::string(std::string token)> in_text;
  };
  struct Steps {
    std::vector<Step> list;
    bool joined = false;  // what the last step hands on is one token, in parts
  };

  TokenDecoder() = default;
  explicit TokenDecoder(const JsonView& config);

  // The bytes of a token within a text; characters may be split between tokens.
  std::string bytes(std::string_view token) const;

 private:
  friend class TokenDecoderStream;

  Steps steps_;
};

// Decodes one text after another, token by token. For one thread; the decoder outlives it.
class TokenDecoderStream {
 public:
  explicit TokenDecoderStream(const TokenDecoder& decoder)
      : decoder_(&decoder), steps_(decoder.steps_.list) {}

  // What a token adds to the text so far.
  std::string push(std::string_view token);
  // What is left. The next push begins a new text.
  std::string finish();

 private:
  std::string run(bool ends);

  const TokenDecoder* decoder_;
  std::vector<TokenDecoder::Step> steps_;
  TokenDecoder::Tokens tokens_, next_;  // of one run
};

}  // namespace quire
