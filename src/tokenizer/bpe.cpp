#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "tokenizer/byte_level.h"

namespace quire {
namespace {

constexpr std::size_t kMinCacheSlots = 16, kMaxCacheSlots = 16384;

void refuse_if_set(const JsonView& model, const std::string& key) {
  const auto text = model.find(key);
  if (text && !text->as_string().empty())
    fail("{}: {} is not supported; it must be null", text->where(), text->as_string());
}

}  // namespace

Bpe::Bpe(const JsonView& model, Vocabulary vocabulary, const MergeTexts& merges,
         std::unordered_set<TokenId> reserved)
    : vocabulary_(std::move(vocabulary)), reserved_(std::move(reserved)) {
  if (const auto dropout = model.find("dropout"); dropout && dropout->as_number() != 0) {
    fail("{}: is not supported; it must be null", dropout->where());
  }
  if (model.flag("byte_fallback", false))
    fail("{}: byte_fallback is not supported; only byte-level BPE is", model.where());
  refuse_if_set(model, "continuing_subword_prefix");
  refuse_if_set(model, "end_of_word_suffix");
  fuse_unknown_ = model.flag("fuse_unk", false);
  whole_pieces_ = model.flag("ignore_merges", false);
  set_byte_tokens(model);
  add_merges(merges, model.where() + ".merges");
}

void Bpe::set_byte_tokens(const JsonView& model) {
  const auto unk = model.find("unk_token");
  for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    const char c = static_cast<char>(byte);
    const auto token = vocabulary_.find(to_byte_characters({&c, 1}));
    unknown_[byte] = !token && unk;
    byte_tokens_[byte] = token.value_or(kDropped);
    if (!unknown_[byte]) continue;
    const auto id = vocabulary_.find(unk->as_string());
    if (!id) fail("{}: {} is no token of the vocabulary", unk->where(), in_quotes(unk->as_string()));
    byte_tokens_[byte] = *id;
  }
}

void Bpe::add_merges(const MergeTexts& merges, const std::string& where) {
  merges_.resize(std::bit_ceil(2 * merges.size() + 1));
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto find = [&](const std::string& text) {
      if (const auto id = vocabulary_.find(text)) return *id;
      fail("{}[{}]: {} is no token of the vocabulary", where, rank, in_quotes(text));
    };
    const auto& [left_text, right_text] = merges[rank];
    const TokenId left = find(left_text), right = find(right_text), result = find(left_text + right_text);
    if (!reserved_.contains(result)) {
      merges_[slot_of(left, right)] = {left, right, static_cast<std::uint32_t>(rank), result};
    }
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

BpeEncoder::BpeEncoder(const Bpe& bpe, std::size_t text_bytes)
    : bpe_(bpe), cache_(std::clamp(std::bit_ceil(text_bytes / 8), kMinCacheSlots, kMaxCacheSlots)) {}

void BpeEncoder::encode(std::string_view piece, std::vector<TokenId>& out) {
  if (piece.empty()) return;
  if (piece.size() > CacheSlot::kMaxBytes) return merge(piece, out);
  CacheSlot& slot = cache_[std::hash<std::string_view>{}(piece) & (cache_.size() - 1)];
  if (slot.bytes == piece.size() && std::memcmp(slot.key.data(), piece.data(), piece.size()) == 0) {
    out.insert(out.end(), slot.value.begin(), slot.value.begin() + slot.tokens);
    return;
  }
  const std::size_t begin = out.size();
  merge(piece, out);
  const std::size_t count = out.size() - begin;
  if (count > CacheSlot::kMaxTokens) return;
  slot.bytes = static_cast<std::uint8_t>(piece.size());
  slot.tokens = static_cast<std::uint8_t>(count);
  std::copy(piece.begin(), piece.end(), slot.key.begin());
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), slot.value.begin());
}

void BpeEncoder::merge(std::string_view piece, std::vector<TokenId>& out) {
  if (bpe_.whole_pieces_) {
    const auto token = bpe_.vocabulary_.find(to_byte_characters(piece));
    if (token && !bpe_.reserved_.contains(*token)) return out.push_back(*token);
  }
  add_bytes(piece);
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

void BpeEncoder::add_bytes(std::string_view piece) {
  symbols_.clear();
  bool last_unknown = false;
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    const TokenId token = bpe_.byte_tokens_[byte];
    const bool unknown = bpe_.unknown_[byte];
    if (token == Bpe::kDropped || (unknown && last_unknown && bpe_.fuse_unknown_)) continue;
    last_unknown = unknown;
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
