#include "tokenizer/bpe_alphabet.h"

#include <algorithm>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

std::string text_of(const JsonView& config, const std::string& key) {
  const auto text = config.find(key);
  return text ? text->as_string() : "";
}

// Collects unknown text until its token is due: before the next known text, as the library has it.
class PendingUnknown {
 public:
  PendingUnknown(std::optional<TokenId> token, bool fuse) : token_(token), fuse_(fuse) {}

  void add(std::vector<TokenId>& out) {
    if (!fuse_) flush(out);
    pending_ = token_.has_value();
  }
  void flush(std::vector<TokenId>& out) {
    if (pending_) out.push_back(*token_);
    pending_ = false;
  }

 private:
  std::optional<TokenId> token_;
  bool fuse_;
  bool pending_ = false;
};

}  // namespace

BpeAlphabet::BpeAlphabet(const JsonView& config, const TokenizerModel& model, bool byte_level)
    : model_(model),
      prefix_(text_of(config, "continuing_subword_prefix")),
      suffix_(text_of(config, "end_of_word_suffix")),
      fuse_unknown_(config.flag("fuse_unk", false)) {
  const Vocabulary& vocabulary = model.vocabulary();
  if (config.flag("byte_fallback", false)) byte_fallback_.emplace(vocabulary);
  takes_bytes_ = byte_level && !has_affixes() && !byte_fallback_;
  bool complete = byte_fallback_ && byte_fallback_->is_complete();
  if (takes_bytes_) {
    for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
      const char c = static_cast<char>(byte);
      byte_tokens_[byte] = vocabulary.find(to_byte_characters({&c, 1}));
    }
    complete = std::all_of(byte_tokens_.begin(), byte_tokens_.end(), [](const auto& token) { return token; });
  }
  const auto unknown = config.find("unk_token");
  if (!unknown || complete) return;
  unknown_ = vocabulary.find(unknown->as_string());
  if (!unknown_) {
    fail("{}: {} is no token of the vocabulary", unknown->where(), in_quotes(unknown->as_string()));
  }
}

void BpeAlphabet::append_tokens(std::string_view piece, std::vector<TokenId>& out) const {
  takes_bytes_ ? append_bytes(piece, out) : append_characters(piece, out);
}

void BpeAlphabet::append_bytes(std::string_view piece, std::vector<TokenId>& out) const {
  PendingUnknown unknown(unknown_, fuse_unknown_);
  for (const char c : piece) {
    if (const auto& token = byte_tokens_[static_cast<unsigned char>(c)]) {
      unknown.flush(out);
      out.push_back(*token);
    } else {
      unknown.add(out);
    }
  }
  unknown.flush(out);
}

void BpeAlphabet::append_characters(std::string_view piece, std::vector<TokenId>& out) const {
  PendingUnknown unknown(unknown_, fuse_unknown_);
  std::string buffer;
  for (std::size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
    end = begin + read_utf8(piece, begin).length;
    std::string_view character = piece.substr(begin, end - begin);
    if (has_affixes()) {
      buffer = begin == 0 ? "" : prefix_;
      buffer += character;
      if (end == piece.size()) buffer += suffix_;
      character = buffer;
    }
    if (const auto token = model_.find_free(character)) {
      unknown.flush(out);
      out.push_back(*token);
    } else if (!byte_fallback_ || !byte_fallback_->append(character, out)) {
      unknown.add(out);
    }
  }
  unknown.flush(out);
}

}  // namespace quire
