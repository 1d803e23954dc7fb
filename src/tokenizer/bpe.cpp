#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kMinCacheSlots = 16, kMaxCacheSlots = 16384;

}  // namespace

Bpe::Bpe(const JsonView& config, Vocabulary vocabulary, const MergeTexts& merges,
         std::unordered_set<TokenId> reserved, bool byte_level)
    : TokenizerModel(std::move(vocabulary), std::move(reserved)),
      alphabet_(config, *this, byte_level),
      whole_pieces_(config.flag("ignore_merges", false)) {
  if (const auto dropout = config.find("dropout"); dropout && dropout->as_number() != 0) {
    fail("{}: is not supported; it must be null", dropout->where());
  }
  add_merges(merges, config.where() + ".merges");
  if (!takes_bytes() && !alphabet_.has_affixes() && !whole_pieces_) make_cutter();
}

void Bpe::add_merges(const MergeTexts& merges, const std::string& where) {
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
    if (!is_reserved(result)) {
      merges_[slot_of(left, right)] = {left, right, static_cast<std::uint32_t>(rank), result};
    }
  }
}

void Bpe::make_cutter() {
  cutter_.emplace();
  for (TokenId id = 0; id < vocabulary().size(); ++id) {
    const auto text = vocabulary().text(id);
    if (text && is_character(*text) && !is_reserved(id)) cutter_->add_character(*text);
  }
  for (const Merge& merge : merges_) {
    if (merge.left != -1) cutter_->add_token(*vocabulary().text(merge.result));
  }
}

std::size_t Bpe::slot_of(TokenId left, TokenId right) const {
  const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  const std::size_t mask = merges_.size() - 1;
  std::size_t slot = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;
  while (merges_[slot].left != -1 && (merges_[slot].left != left || merges_[slot].right != right))
    slot = (slot + 1) & mask;
  return slot;
}

const Bpe::Merge* Bpe::find_merge(TokenId left, TokenId right) const {
  const Merge& merge = merges_[slot_of(left, right)];
  return merge.left == -1 ? nullptr : &merge;
}

std::unique_ptr<PieceEncoder> Bpe::encoder(std::size_t text_bytes) const {
  return std::make_unique<BpeEncoder>(*this, text_bytes);
}

BpeEncoder::BpeEncoder(const Bpe& bpe, std::size_t text_bytes)
    : bpe_(bpe), cache_(std::clamp(std::bit_ceil(text_bytes / 8), kMinCacheSlots, kMaxCacheSlots)) {}

void BpeEncoder::encode(std::string_view piece, std::vector<TokenId>& out) {
  while (bpe_.cutter_ && !piece.empty()) {
    const std::size_t bytes = bpe_.cutter_->first_part(piece);
    encode_part(piece.substr(0, bytes), out);
    piece.remove_prefix(bytes);
  }
  if (!piece.empty()) encode_part(piece, out);
}

void BpeEncoder::encode_part(std::string_view part, std::vector<TokenId>& out) {
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
  std::copy(part.begin(), part.end(), slot.key.begin());
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), slot.value.begin());
}

void BpeEncoder::merge(std::string_view part, std::vector<TokenId>& out) {
  if (bpe_.whole_pieces_) {
    const std::string spelling = bpe_.takes_bytes() ? to_byte_characters(part) : std::string(part);
    if (const auto token = bpe_.find_free(spelling)) return out.push_back(*token);
  }
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

void BpeEncoder::start(std::string_view part) {
  first_tokens_.clear();
  bpe_.alphabet_.append_tokens(part, first_tokens_);
  symbols_.clear();
  for (const TokenId token : first_tokens_) {
    const auto index = static_cast<std::int32_t>(symbols_.size());
    symbols_.push_back({token, index - 1, index + 1});
  }
  if (!symbols_.empty()) symbols_.back().next = -1;
}

void BpeEncoder::add_candidate(std::int32_t left) {
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
void BpeEncoder::join(std::int32_t left, TokenId result) {
  Symbol& right = symbols_[symbols_[left].next];
  symbols_[left].token = result;
  symbols_[left].next = right.next;
  if (right.next >= 0) symbols_[right.next].previous = left;
  right.token = -1;
}

}  // namespace quire
