#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/json_view.h"
#include "tokenizer/text_piece.h"
#include "tokenizer/token_id.h"

namespace quire {

// An entry of tokenizer.json's "added_tokens": a text that is one token wherever it stands.
struct AddedToken {
  TokenId id;
  std::string content;
  bool single_word;  // only where no letter or digit adjoins it
  bool lstrip;       // takes the white space before it along
  bool rstrip;       // and after it
  bool normalized;   // looked for in normalised text, otherwise in the text as given
  bool special;      // a control token: looked for in trusted text only, left out of decoded text on demand
  std::string form;  // what is looked for, and decoded: the content, normalised if that is so
};

std::vector<AddedToken> added_tokens_from_json(const JsonView& list);

// Finds one set of added tokens in texts: at each place the longest, from left to right. Immutable, usable
// from any thread.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;  // finds none
  // Looks for the tokens' forms; they outlive it. An empty one is never found; of several tokens with one
  // form the first counts.
  explicit AddedTokenMatcher(std::vector<const AddedToken*> tokens);
  bool empty() const { return tokens_.empty(); }

  // Goes through `text`, which is valid UTF-8: appends the tokens' ids and has what lies between them
  // encoded, in order. A special token that trust does not cover whole is plain text.
  void encode(std::string_view text, const TrustRuns& trust, std::vector<TokenId>& ids,
              const std::function<void(const TextRange& between)>& encode_text) const;

 private:
  std::vector<const AddedToken*> tokens_;
  ByteTrie trie_{{}};                    // of their forms, with their indices
  std::array<bool, 256> first_bytes_{};  // of any token
};

}  // namespace quire
