#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/regex.h"

namespace quire {

// A text cut into the pieces that merges do not cross. The pieces are ranges of text(), in order; a piece is
// not empty.
class PreTokens {
 public:
  // Begins with one piece, the whole of `text`, which outlives this object or the next start(). It is the
  // beginning of what is encoded, or follows a token there.
  void start(std::string_view text, bool is_beginning);

  std::string_view text() const { return text_; }
  const std::vector<TextRange>& pieces() const { return pieces_; }
  // The first piece has all that comes first of what is encoded.
  bool has_beginning() const { return has_beginning_; }

  // Replaces each piece by the pieces that split(piece, add) hands to add(TextRange in the piece).
  template <typename Split>
  void split(Split&& split_piece);
  // Replaces the text of each piece.
  template <typename Rewrite>
  void rewrite(Rewrite&& rewrite_piece);

 private:
  std::string_view text_;
  std::string buffer_;  // holds text_ once a step has rewritten it
  std::vector<TextRange> pieces_;
  bool has_beginning_ = false;
};

// Cuts text into the pieces for the model. Immutable, usable from any thread.
class PreTokenizer {
 public:
  struct Step {
    enum class Kind { kSplit, kRewrite, kToByteCharacters };
    Kind kind;
    std::function<void(PreTokens& tokens)> run;
  };

  PreTokenizer() = default;  // leaves a text whole
  explicit PreTokenizer(const JsonView& config);

  // All pieces are in the byte alphabet.
  bool is_byte_level() const;
  // From now on the pieces of a byte-level pre-tokenizer are the bytes themselves.
  void leave_bytes();

  // Cuts the text that `tokens` was started with; it is valid UTF-8.
  void run(PreTokens& tokens) const {
    for (const Step& step : steps_) step.run(tokens);
  }

 private:
  std::vector<Step> steps_;
};

}  // namespace quire
