#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>

#include "tokenizer/byte_tokens.h"
#include "tokenizer/tokenizer_model.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kMinCacheSlots = 16, kMaxCacheSlots = 16384;

// The tokens that the merging of a piece begins with: one a byte, or one a character.
class BpeAlphabet {
 public:
  // Of the "model" object `config`; `model` outlives this object. `byte_level` as for make_bpe.
  BpeAlphabet(const JsonView& config, const TokenizerModel& model, bool byte_level)
      : model_(model),
        prefix_(text_of(config, "continuing_subword_prefix")),
        suffix_(text_of(config, "end_of_word_suffix")),
        fuse_unknown_(config.flag("fuse_unk", false)) {
    const bool falls_back = config.flag("byte_fallback", false);
    takes_bytes_ = byte_level && !has_affixes() && !falls_back;
    using Spelling = ByteTokens::Spelling;
    if (takes_bytes_ || falls_back)
      bytes_.emplace(model.vocabulary(), takes_bytes_ ? Spelling::kCharacter : Spelling::kHexadecimal);
    const auto unknown = config.find("unk_token");
    if (!unknown || (bytes_ && bytes_->is_complete())) return;
    unknown_ = model.vocabulary().find(unknown->as_string());
    if (!unknown_)
      fail("{}: {} is no token of the vocabulary", unknown->where(), in_quotes(unknown->as_string()));
  }

  bool takes_bytes() const { return takes_bytes_; }
  // A character's token depends on its place in the piece.
  bool has_affixes() const { return !prefix_.empty() || !suffix_.empty(); }
  const std::string& continuing_prefix() const { return prefix_; }

  void append_tokens(std::string_view piece, std::vector<TokenId>& out) const {
    // An unknown text's token is due: before the next known text, as the library has it.
    bool pending = false;
    const auto flush = [&] {
      if (pending) out.push_back(*unknown_);
      pending = false;
    };
    std::string buffer;
    for (std::size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
      end = begin + (takes_bytes_ ? 1 : read_utf8(piece, begin).length);
      std::string_view unit = piece.substr(begin, end - begin);
      if (has_affixes()) {
        buffer = begin == 0 ? "" : prefix_;
        buffer += unit;
        if (end == piece.size()) buffer += suffix_;
        unit = buffer;
      }
      if (const auto token = takes_bytes_ ? bytes_->of(unit.front()) : model_.find_free(unit)) {
        flush();
        out.push_back(*token);
      } else if (takes_bytes_ || !bytes_ || !bytes_->append(unit, out)) {
        if (!fuse_unknown_) flush();
        pending = unknown_.has_value();
      }
    }
    flush();
  }

 private:
  static std::string text_of(const JsonView& config, const std::string& key) {
    const auto text = config.find(key);
    return text ? text->as_string() : "";
  }

  const TokenizerModel& model_;
  std::string prefix_, suffix_;  // of all characters but the first, and of the last
  bool takes_bytes_;
  std::optional<ByteTokens> bytes_;  // of all text with takes_bytes_, otherwise of characters without a token
  std::optional<TokenId> unknown_;   // for text without a token, which is left out otherwise
  bool fuse_unknown_;                // one for a run of such text
};

// Cuts a text between neighbours that stand side by side in no token, which no merge can join: the parts give
// the tokens that the whole text would, sooner. Models whose piece is the whole text live by that.
class PieceCutter {
 public:
  // A character that is a token; text is cut between such characters alone.
  void add_character(std::string_view character) {
    const char32_t c = read_utf8(character, 0).code_point;
    if (c >= known_.size()) known_.resize(c + 1);
    known_[c] = true;
  }

  // A token that merging makes.
  void add_token(std::string_view text) {
    char32_t last = 0;
    for (const auto& [begin, end, c] : Characters(text)) {
      if (begin > 0) neighbours_.insert(pair_of(last, c));
      last = c;
    }
  }

  // The bytes of the first part of a text that is valid UTF-8 and not empty.
  std::size_t first_part(std::string_view text) const {
    char32_t last = 0;
    for (const auto& [begin, end, c] : Characters(text)) {
      if (begin > 0 && is_known(last) && is_known(c) && !neighbours_.contains(pair_of(last, c))) return begin;
      last = c;
    }
    return text.size();
  }

 private:
  static std::uint64_t pair_of(char32_t left, char32_t right) { return std::uint64_t{left} << 32 | right; }
  bool is_known(char32_t c) const { return c < known_.size() && known_[c]; }

  std::vector<bool> known_;                       // by code point
  std::unordered_set<std::uint64_t> neighbours_;  // two code points
};

// Byte-pair encoding: a piece begins as the tokens of its bytes or characters, and the neighbours of the
// lowest rank, leftmost first, are merged until no pair has a merge.
class Bpe final : public TokenizerModel {
 public:
  struct Merge {
    TokenId left = -1;  // -1: an empty slot
    TokenId right = -1;
    std::uint32_t rank = 0;  // lower merges first
    TokenId result = -1;
  };

  Bpe(const JsonView& config, Vocabulary vocabulary, const MergeTexts& merges,
      std::unordered_set<TokenId> reserved, bool byte_level)
      : TokenizerModel(std::move(vocabulary), std::move(reserved)),
        alphabet_(config, *this, byte_level),
        whole_pieces_(config.flag("ignore_merges", false)) {
    if (const auto dropout = config.find("dropout"); dropout && dropout->as_number() != 0)
      fail("{}: is not supported; it must be null", dropout->where());
    add_merges(merges, config.where() + ".merges");
    if (!takes_bytes() && !alphabet_.has_affixes() && !whole_pieces_) make_cutter();
  }

  bool takes_bytes() const override { return alphabet_.takes_bytes(); }
  PieceEncoder encoder(std::size_t text_bytes) const override;

 private:
  friend class BpeEncoder;

  // The token that a whole piece is, where the model looks for that.
  std::optional<TokenId> whole_token(std::string_view piece) const {
    if (!whole_pieces_) return std::nullopt;
    return takes_bytes() ? find_free(to_byte_characters(piece)) : find_free(piece);
  }
  const Merge* find_merge(TokenId left, TokenId right) const {
    const Merge& merge = merges_[slot_of(left, right)];
    return merge.left == -1 ? nullptr : &merge;
  }

  void add_merges(const MergeTexts& merges, const std::string& where) {
    merges_.resize(std::bit_ceil(2 * merges.size() + 1));
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const auto find = [&](std::string_view text) {
        if (const auto id = vocabulary().find(text)) return *id;
        fail("{}[{}]: {} is no token of the vocabulary", where, rank, in_quotes(text));
      };
      const auto& [left_text, right_text] = merges[rank];
      const TokenId left = find(left_text), right = find(right_text);
      const std::size_t prefix = std::min(alphabet_.continuing_prefix().size(), right_text.size());
      const TokenId result = find(left_text + right_text.substr(prefix));
      if (!is_reserved(result))
        merges_[slot_of(left, right)] = {left, right, static_cast<std::uint32_t>(rank), result};
    }
  }

  void make_cutter() {
    cutter_.emplace();
    for (TokenId id = 0; id < vocabulary().size(); ++id) {
      const auto text = vocabulary().text(id);
      if (text && is_character(*text) && !is_reserved(id)) cutter_->add_character(*text);
    }
    for (const Merge& merge : merges_)
      if (merge.left != -1) cutter_->add_token(*vocabulary().text(merge.result));
  }

  std::size_t slot_of(TokenId left, TokenId right) const {
    const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
    const std::size_t mask = merges_.size() - 1;
    std::size_t slot = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;
    while (merges_[slot].left != -1 && (merges_[slot].left != left || merges_[slot].right != right))
      slot = (slot + 1) & mask;
    return slot;
  }

  BpeAlphabet alphabet_;
  bool whole_pieces_;                  // ignore_merges: a piece that is a token is that token
  std::vector<Merge> merges_;          // open addressing, a power of two, at most half full
  std::optional<PieceCutter> cutter_;  // where a part of a piece may be encoded by itself
};

// Remembers the tokens of short pieces.
class BpeEncoder {
 public:
  BpeEncoder(const Bpe& bpe, std::size_t text_bytes)
      : bpe_(bpe), cache_(std::clamp(std::bit_ceil(text_bytes / 8), kMinCacheSlots, kMaxCacheSlots)) {}

  void operator()(std::string_view piece, std::vector<TokenId>& out) {
    while (!piece.empty()) {
      const std::size_t bytes = bpe_.cutter_ ? bpe_.cutter_->first_part(piece) : piece.size();
      encode_part(piece.substr(0, bytes), out);
      piece.remove_prefix(bytes);
    }
  }

 private:
  struct Symbol {
    TokenId token;
    std::int32_t previous, next;  // symbols; -1 at the ends
  };
  struct Candidate {      // two neighbours that have a merge
    std::uint64_t order;  // rank, then position
    TokenId left, right, result;
  };
  struct CacheSlot {
    static constexpr std::size_t kMaxBytes = 22, kMaxTokens = 6;
    std::uint8_t bytes = 0;  // 0: empty
    std::uint8_t tokens = 0;
    std::array<char, kMaxBytes> key;
    std::array<TokenId, kMaxTokens> value;
  };

  void encode_part(std::string_view part, std::vector<TokenId>& out) {
    if (part.size() > CacheSlot::kMaxBytes) return merge(part, out);
    CacheSlot& slot = cache_[std::hash<std::string_view>{}(part) & (cache_.size() - 1)];
    if (slot.bytes == part.size() && std::memcmp(slot.key.data(), part.data(), part.size()) == 0) {
      out.insert(out.end(), slot.value.begin(), slot.value.begin() + slot.tokens);
      return;
    }
    const std::size_t begin = out.size();
    merge(part, out);
    const std::size_t count = out.size() - begin;
    if (count > CacheSlot::kMaxTokens) return;
    slot.bytes = static_cast<std::uint8_t>(part.size());
    slot.tokens = static_cast<std::uint8_t>(count);
    std::ranges::copy(part, slot.key.begin());
    std::copy(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), slot.value.begin());
  }

  void merge(std::string_view part, std::vector<TokenId>& out) {
    if (const auto token = bpe_.whole_token(part)) return out.push_back(*token);
    start(part);
    heap_.clear();
    for (std::int32_t i = 0; i + 1 < std::ssize(symbols_); ++i) add_candidate(i);
    const auto later = [](const Candidate& a, const Candidate& b) { return a.order > b.order; };
    std::make_heap(heap_.begin(), heap_.end(), later);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Candidate best = heap_.back();
      heap_.pop_back();
      const auto left = static_cast<std::int32_t>(best.order & 0xFFFFFFFFu);
      const std::int32_t right = symbols_[left].next;
      const bool current =
          symbols_[left].token == best.left && right >= 0 && symbols_[right].token == best.right;
      if (!current) continue;
      join(left, best.result);
      for (const std::int32_t pair : {symbols_[left].previous, left}) {
        if (pair < 0) continue;
        const std::size_t before = heap_.size();
        add_candidate(pair);
        if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
      }
    }
    for (std::int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = symbols_[i].next)
      out.push_back(symbols_[i].token);
  }

  void start(std::string_view part) {
    first_tokens_.clear();
    bpe_.alphabet_.append_tokens(part, first_tokens_);
    symbols_.clear();
    for (const TokenId token : first_tokens_) {
      const auto index = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({token, index - 1, index + 1});
    }
    if (!symbols_.empty()) symbols_.back().next = -1;
  }

  void add_candidate(std::int32_t left) {
    const std::int32_t right = symbols_[left].next;
    if (right < 0) return;
    const TokenId left_token = symbols_[left].token, right_token = symbols_[right].token;
    if (const Bpe::Merge* merge = bpe_.find_merge(left_token, right_token)) {
      const std::uint64_t order =
          static_cast<std::uint64_t>(merge->rank) << 32 | static_cast<std::uint32_t>(left);
      heap_.push_back({order, left_token, right_token, merge->result});
    }
  }

  // The right symbol leaves the list; a candidate that begins with it is stale from now on.
  void join(std::int32_t left, TokenId result) {
    Symbol& right = symbols_[symbols_[left].next];
    symbols_[left].token = result;
    symbols_[left].next = right.next;
    if (right.next >= 0) symbols_[right.next].previous = left;
    right.token = -1;
  }

  const Bpe& bpe_;
  std::vector<TokenId> first_tokens_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<CacheSlot> cache_;  // by hash; a power of two
};

PieceEncoder Bpe::encoder(std::size_t text_bytes) const { return BpeEncoder(*this, text_bytes); }

}  // namespace

std::unique_ptr<TokenizerModel> make_bpe(const JsonView& config, Vocabulary vocabulary,
                                         const MergeTexts& merges, std::unordered_set<TokenId> reserved,
                                         bool byte_level) {
  return std::make_unique<Bpe>(config, std::move(vocabulary), merges, std::move(reserved), byte_level);
}

}  // namespace quire
