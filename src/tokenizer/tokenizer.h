#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/text_piece.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/token_id.h"
#include "tokenizer/tokenizer_model.h"

namespace quire {

// The special tokens that surround every text.
struct PostProcessor {
  std::vector<TokenId> prefix, suffix;
};

struct TokenizerFile;

// A tokenizer.json with a BPE or Unigram model, with the results of Hugging Face's tokenizers library; what
// it does not support it refuses by name. "truncation" and "padding" are ignored, as transformers does.
// Immutable after loading, usable from any thread at once.
class Tokenizer {
 public:
  static Tokenizer from_file(const std::filesystem::path& path);
  // tokenizer.json of a model's folder. Its texts begin with bos_token where tokenizer_config.json asks for
  // that and the former puts nothing there, as transformers' LlamaTokenizerFast does.
  static Tokenizer from_folder(const std::filesystem::path& folder);
  static Tokenizer from_json(std::string_view text, std::string_view where);
  Tokenizer(TokenizerFile file, std::string_view where);

  // The tokens of a text, its special tokens included. Invalid UTF-8 becomes U+FFFD, one for each maximal
  // subpart. Error for a text of over 256 MiB.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true) const;

  // The same for the pieces joined, but a special token is recognised only where it lies in trusted pieces.
  // No other text becomes one either, apart from what stands for a byte that the vocabulary lacks. Characters
  // do not cross pieces: each is made valid UTF-8 by itself.
  std::vector<TokenId> encode(std::span<const TextPiece> pieces, bool add_special_tokens) const;

  // Ids without a token count for nothing; bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;
  // What one token adds to a text that it neither begins nor ends; characters may be split between tokens.
  std::string token_bytes(TokenId id) const;

  int vocab_size() const { return vocab_size_; }  // largest id + 1, added tokens included
  // As the file spells it; nothing for an id without a token.
  std::optional<std::string_view> id_to_token(TokenId id) const { return spelling(id, &AddedToken::content); }
  bool is_special(TokenId id) const;

 private:
  friend class IncrementalDetokenizer;

  void index_added_tokens(std::string_view where);
  // `text` is valid UTF-8.
  std::vector<TokenId> encode(std::string_view text, const TrustRuns& trust, bool add_special_tokens) const;
  TrustRuns trust_after_normalizing(std::string_view text, std::string_view normalized,
                                    const TrustRuns& trust) const;
  const AddedToken* added_token(TokenId id) const;  // nullptr: it is none
  // The vocabulary's text of a token, or that member of an added one: its content, or its form, which the
  // decoder takes. Nothing for an id without a token.
  std::optional<std::string_view> spelling(TokenId id, std::string AddedToken::*of_added) const;

  std::vector<AddedToken> added_tokens_;  // the matchers point to them: a move leaves them in their place
  std::unique_ptr<const TokenizerModel> model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PostProcessor post_processor_;
  TokenDecoder decoder_;
  std::unordered_map<TokenId, std::size_t> added_by_id_;  // index of added_tokens_
  AddedTokenMatcher in_text_, in_normalized_text_;
  int vocab_size_ = 0;
};

// Decodes tokens as they come. For one thread; the tokenizer outlives it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens), stream_(tokenizer.decoder_) {}

  // What comes continues the text of these tokens, so its first space stays where they have any text.
  void follow(std::span<const TokenId> prompt);
  // The text that this token completes: it never ends within a character, nor within a run of byte tokens,
  // nor in a space that the end of the text would take away.
  std::string push(TokenId id);
  // What is left. All texts joined are what Tokenizer::decode makes of all ids, unless they follow others.
  // Leaves this ready for a new text.
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  TokenDecoderStream stream_;
};

}  // namespace quire
