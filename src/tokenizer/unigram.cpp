#include "tokenizer/unigram.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr double kUnknownPenalty = 10;  // SentencePiece's

}  // namespace

Unigram::Unigram(const JsonView& config, Vocabulary vocabulary, std::vector<double> scores,
                 std::unordered_set<TokenId> reserved)
    : TokenizerModel(std::move(vocabulary), std::move(reserved)),
      scores_(std::move(scores)),
      trie_(make_trie()),
      unknown_score_(*std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty),
      where_(config.where()) {
  if (const auto id = config.find("unk_id")) {
    unknown_ = static_cast<TokenId>(id->as_int(0, this->vocabulary().size() - 1));
  }
  if (config.flag("byte_fallback", false)) byte_fallback_.emplace(this->vocabulary());
}

ByteTrie Unigram::make_trie() const {
  std::vector<ByteTrie::Entry> entries;
  for (TokenId id = 0; id < vocabulary().size(); ++id) {
    const auto text = vocabulary().text(id);
    if (text && !text->empty() && !is_reserved(id)) entries.emplace_back(*text, id);
  }
  return ByteTrie(std::move(entries));
}

std::unique_ptr<PieceEncoder> Unigram::encoder(std::size_t) const {
  return std::make_unique<UnigramEncoder>(*this);
}

void UnigramEncoder::encode(std::string_view piece, std::vector<TokenId>& out) {
  find_paths(piece);
  spans_.clear();
  for (std::size_t end = piece.size(); end > 0;) {
    const Path& path = paths_[end];
    const bool fuse = path.token == model_.unknown_ && !spans_.empty() && spans_.back().token == path.token;
    if (fuse) {
      spans_.back().begin = path.begin;
    } else {
      spans_.push_back({path.begin, end, path.token});
    }
    end = path.begin;
  }
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    if (span->token == model_.unknown_) {
      append_unknown(piece.substr(span->begin, span->end - span->begin), out);
    } else {
      out.push_back(span->token);
    }
  }
}

void UnigramEncoder::find_paths(std::string_view piece) {
  paths_.assign(piece.size() + 1, Path());
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t character = read_utf8(piece, begin).length;
    bool has_token = false;
    model_.trie_.find_prefixes(piece.substr(begin), [&](std::size_t length, TokenId token) {
      extend(begin, begin + length, token, model_.scores_[token]);
      has_token |= length == character;
    });
    if (!has_token) extend(begin, begin + character, unknown_token(), model_.unknown_score_);
    begin += character;
  }
}

// Of equal paths the one found first stays: that of the longer last token.
void UnigramEncoder::extend(std::size_t begin, std::size_t end, TokenId token, double score) {
  Path& path = paths_[end];
  const double sum = score + paths_[begin].score;
  if (path.begin == Path::kNowhere || sum > path.score)
    path = {sum, static_cast<std::uint32_t>(begin), token};
}

TokenId UnigramEncoder::unknown_token() const {
  if (!model_.unknown_) {
    fail("{}: the text has a character without a token, and there is no unk_id", model_.where_);
  }
  return *model_.unknown_;
}

// A run of unknown characters may be spelled as a token is.
void UnigramEncoder::append_unknown(std::string_view text, std::vector<TokenId>& out) const {
  if (const auto token = model_.find_free(text)) {
    out.push_back(*token);
  } else if (!model_.byte_fallback_ || !model_.byte_fallback_->append(text, out)) {
    out.push_back(unknown_token());
  }
}

}  // namespace quire
