#include <algorithm>

#include "tokenizer/byte_tokens.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/tokenizer_model.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr double kUnknownPenalty = 10;  // SentencePiece's

// A unigram language model: of all ways to spell a piece with tokens, the one whose scores have the largest
// sum.
class Unigram final : public TokenizerModel {
 public:
  Unigram(const JsonView& config, Vocabulary tokens, std::vector<double> scores,
          std::unordered_set<TokenId> reserved)
      : TokenizerModel(std::move(tokens), std::move(reserved)),
        scores_(std::move(scores)),
        trie_(make_trie()),
        unknown_score_(*std::ranges::min_element(scores_) - kUnknownPenalty),
        where_(config.where()) {
    if (const auto id = config.find("unk_id"))
      unknown_ = static_cast<TokenId>(id->as_int(0, vocabulary().size() - 1));
    if (config.flag("byte_fallback", false)) bytes_.emplace(vocabulary(), ByteTokens::Spelling::kHexadecimal);
  }

  PieceEncoder encoder(std::size_t) const override;

 private:
  friend class UnigramEncoder;

  TokenId unknown_token() const {
    if (!unknown_) fail("{}: the text has a character without a token, and there is no unk_id", where_);
    return *unknown_;
  }
  // A run of unknown characters may be spelled as a token is.
  void append_unknown(std::string_view text, std::vector<TokenId>& out) const {
    if (const auto token = find_free(text)) {
      out.push_back(*token);
    } else if (!bytes_ || !bytes_->append(text, out)) {
      out.push_back(unknown_token());
    }
  }

  ByteTrie make_trie() const {
    std::vector<ByteTrie::Entry> entries;
    for (TokenId id = 0; id < vocabulary().size(); ++id) {
      const auto text = vocabulary().text(id);
      if (text && !text->empty() && !is_reserved(id)) entries.emplace_back(*text, id);
    }
    return ByteTrie(std::move(entries));
  }

  std::vector<double> scores_;  // by id
  ByteTrie trie_;
  double unknown_score_;            // of a character without a token
  std::optional<TokenId> unknown_;  // its token; without one such text is refused
  std::optional<ByteTokens> bytes_;
  std::string where_;
};

class UnigramEncoder {
 public:
  explicit UnigramEncoder(const Unigram& model) : model_(model) {}

  void operator()(std::string_view piece, std::vector<TokenId>& out) {
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
        model_.append_unknown(piece.substr(span->begin, span->end - span->begin), out);
      } else {
        out.push_back(span->token);
      }
    }
  }

 private:
  struct Path {  // the best one to a place in the piece: its score and its last token
    static constexpr std::uint32_t kNowhere = UINT32_MAX;
    double score = 0;
    std::uint32_t begin = kNowhere;
    TokenId token = -1;
  };
  struct Span {
    std::size_t begin, end;
    TokenId token;
  };

  void find_paths(std::string_view piece) {
    paths_.assign(piece.size() + 1, Path());
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t character = read_utf8(piece, begin).length;
      bool has_token = false;
      model_.trie_.find_prefixes(piece.substr(begin), [&](std::size_t length, TokenId token) {
        extend(begin, begin + length, token, model_.scores_[token]);
        has_token |= length == character;
      });
      if (!has_token) extend(begin, begin + character, model_.unknown_token(), model_.unknown_score_);
      begin += character;
    }
  }

  // Of equal paths the one found first stays: that of the longer last token.
  void extend(std::size_t begin, std::size_t end, TokenId token, double score) {
    Path& path = paths_[end];
    const double sum = score + paths_[begin].score;
    if (path.begin == Path::kNowhere || sum > path.score)
      path = {sum, static_cast<std::uint32_t>(begin), token};
  }

  const Unigram& model_;
  std::vector<Path> paths_;  // by the byte at which they end
  std::vector<Span> spans_;
};

PieceEncoder Unigram::encoder(std::size_t) const { return UnigramEncoder(*this); }

}  // namespace

std::unique_ptr<TokenizerModel> make_unigram(const JsonView& config, Vocabulary vocabulary,
                                             std::vector<double> scores,
                                             std::unordered_set<TokenId> reserved) {
  return std::make_unique<Unigram>(config, std::move(vocabulary), std::move(scores), std::move(reserved));
}

}  // namespace quire
