#include "kvcache/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"

namespace quire {

PrefixCache::PrefixCache(const BlockPool& pool, int block_size, std::uint64_t seed, int hash_bits)
    : pool_(pool), block_size_(static_cast<std::size_t>(block_size)), seed_(seed) {
  QUIRE_CHECK(block_size > 0 && hash_bits > 0 && hash_bits <= 64);
  hash_mask_ = ~std::uint64_t{0} >> (64 - hash_bits);
  const auto num_blocks = static_cast<std::size_t>(pool.num_blocks());
  buckets_.resize(std::bit_ceil(2 * num_blocks), kNoBlock);
  entries_.resize(num_blocks);
  tokens_.resize(num_blocks * block_size_);
}

std::uint64_t PrefixCache::salt_of(std::string_view text) const {
  return text.empty() ? 0 : XXH3_64bits_withSeed(text.data(), text.size(), seed_) | 1;
}

std::optional<PrefixCache::Link> PrefixCache::find(const Key& key) const { return find(key, hash(key)); }

std::vector<BlockId> PrefixCache::match(std::span<const TokenId> tokens, std::uint64_t salt) const {
  std::vector<BlockId> blocks;
  Link parent;
  for (; tokens.size() >= block_size_; tokens = tokens.subspan(block_size_)) {
    const auto found = find({parent, tokens.first(block_size_), salt});
    if (!found) break;
    parent = *found;
    blocks.push_back(parent.block);
  }
  return blocks;
}

PrefixCache::Link PrefixCache::insert(BlockId block, const Key& key) {
  QUIRE_CHECK(pool_.ref_count(block) > 0 && key.tokens.size() == block_size_);
  const std::uint64_t key_hash = hash(key);
  if (const auto found = find(key, key_hash)) return *found;
  erase(block);
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  BlockId& first = buckets_[bucket(key_hash)];
  entry = {pool_.generation(block), key_hash, key.salt, key.parent, first};
  first = block;
  std::copy(key.tokens.begin(), key.tokens.end(), tokens_.begin() + block * std::ptrdiff_t(block_size_));
  return link(block);
}

bool PrefixCache::contains(BlockId block) const {
  const Entry& entry = entries_[static_cast<std::size_t>(block)];
  return entry.generation != 0 && entry.generation == pool_.generation(block);
}

void PrefixCache::erase(BlockId block) {
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  if (entry.generation == 0) return;
  BlockId* place = &buckets_[bucket(entry.hash)];
  while (*place != block) place = &entries_[static_cast<std::size_t>(*place)].next;
  *place = entry.next;
  entry = {};
}

void PrefixCache::clear() {
  std::fill(buckets_.begin(), buckets_.end(), kNoBlock);
  std::fill(entries_.begin(), entries_.end(), Entry{});
}

std::optional<PrefixCache::Link> PrefixCache::find(const Key& key, std::uint64_t key_hash) const {
  for (BlockId block = buckets_[bucket(key_hash)]; block != kNoBlock;) {
    const Entry& entry = entries_[static_cast<std::size_t>(block)];
    if (entry.hash == key_hash && entry.parent == key.parent && entry.salt == key.salt && contains(block) &&
        std::equal(key.tokens.begin(), key.tokens.end(), tokens(block).begin())) {
      return link(block);
    }
    block = entry.next;
  }
  return std::nullopt;
}

std::uint64_t PrefixCache::hash(const Key& key) const {
  const std::array<std::uint64_t, 3> head = {static_cast<std::uint64_t>(key.parent.block),
                                             key.parent.generation, key.salt};
  const std::uint64_t head_hash = XXH3_64bits_withSeed(head.data(), sizeof(head), seed_);
  return XXH3_64bits_withSeed(key.tokens.data(), key.tokens.size_bytes(), head_hash) & hash_mask_;
}

std::span<const TokenId> PrefixCache::tokens(BlockId block) const {
  return std::span(tokens_).subspan(static_cast<std::size_t>(block) * block_size_, block_size_);
}

void PrefixCache::check() const {
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    if (!contains(block)) continue;
    const Entry& entry = entries_[static_cast<std::size_t>(block)];
    const auto found = find({entry.parent, tokens(block), entry.salt});
    QUIRE_CHECK(found == link(block), "the entry of block {} is not found by its key", block);
  }
}

}  // namespace quire
