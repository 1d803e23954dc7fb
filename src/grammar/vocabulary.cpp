#include "grammar/vocabulary.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "grammar/utf8.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxLexemeBytes = std::size_t{96} << 20;
constexpr std::size_t kMaxTokenBytes = 4096;  // as deep as walking tokens may go into itself

bool is_plain(std::string_view bytes) {
  if (bytes.size() > TokenTrie::kPlainBytes) return false;
  const auto characters = decode_utf8(bytes);
  return characters && std::ranges::all_of(*characters, [](char32_t c) {
           return c >= 0x20 && c != 0x7F && c != '"' && c != '\\';
         });
}

struct SortedToken {
  bool rest;
  std::string_view bytes;
  int id;
  auto operator<=>(const SortedToken&) const = default;
};

// The tokens of one node: [first, end) of the sorted ones, which agree in `depth` bytes.
struct NodeTokens {
  std::size_t first, end, depth;
};

// Without the texts that are too long, which no grammar allows then.
std::vector<TokenText> bounded(std::vector<TokenText> tokens) {
  for (TokenText& token : tokens)
    if (token.bytes.size() > kMaxTokenBytes) token.bytes = {};
  return tokens;
}

}  // namespace

TokenTrie::TokenTrie(std::span<const TokenText> tokens)
    : next_equal_(tokens.size(), -1), plain_tokens_((tokens.size() + 31) / 32, 0) {
  std::vector<SortedToken> sorted;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const TokenText& token = tokens[id];
    if (token.special || token.bytes.empty()) continue;
    const bool plain = is_plain(token.bytes);
    if (plain) plain_tokens_[id / 32] |= 1u << id % 32;
    std::uint32_t& longest = longest_[plain ? kPlain : kRest];
    longest = std::max(longest, static_cast<std::uint32_t>(token.bytes.size()));
    sorted.push_back({!plain, token.bytes, static_cast<int>(id)});
  }
  std::ranges::sort(sorted);
  const auto middle =
      static_cast<std::size_t>(std::ranges::find(sorted, true, &SortedToken::rest) - sorted.begin());
  std::vector<NodeTokens> nodes = {{0, middle, 0}, {middle, sorted.size(), 0}};
  bytes_ = {0, 0};
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    auto [first, end, depth] = nodes[node];
    tokens_.push_back(-1);
    for (; first < end && sorted[first].bytes.size() == depth; ++first) {
      next_equal_[sorted[first].id] = tokens_.back();
      tokens_.back() = sorted[first].id;
    }
    first_child_.push_back(static_cast<std::uint32_t>(nodes.size()));
    while (first < end) {
      const char byte = sorted[first].bytes[depth];
      std::size_t next = first + 1;
      while (next < end && sorted[next].bytes[depth] == byte) ++next;
      nodes.push_back({first, next, depth + 1});
      bytes_.push_back(static_cast<std::uint8_t>(byte));
      first = next;
    }
  }
  first_child_.push_back(static_cast<std::uint32_t>(nodes.size()));
}

void TokenSet::add_to(std::span<std::uint32_t> mask) const {
  for (std::size_t i = 0; i < words.size(); ++i) mask[i] |= words[i];
  for (const std::uint32_t id : ids) mask[id / 32] |= 1u << id % 32;
}

std::shared_ptr<const LexemeTokens> LexemeCache::find(const Key& key) const {
  const std::scoped_lock lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

void LexemeCache::add(const Key& key, std::shared_ptr<const LexemeTokens> tokens) {
  const std::scoped_lock lock(mutex_);
  const std::size_t bytes =
      tokens->inside.bytes() + tokens->ends.size() * sizeof(std::uint32_t) + sizeof(LexemeTokens);
  if (bytes_ + bytes > kMaxLexemeBytes) {
    entries_.clear();
    bytes_ = 0;
  }
  if (entries_.emplace(key, std::move(tokens)).second) bytes_ += bytes;
}

std::size_t LexemeCache::bytes() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

Vocabulary::Vocabulary(std::vector<TokenText> tokens, std::vector<int> end_ids)
    : tokens_(bounded(std::move(tokens))), end_ids_(std::move(end_ids)), trie_(tokens_) {
  for (int id = 0; id < size(); ++id)
    if (tokens_[id].special) special_ids_.push_back(id);
  for (const int id : end_ids_)
    if (id < 0 || id >= size())
      fail("end token {} is not one of the {} tokens of the vocabulary", id, size());
}

}  // namespace quire::grammar
