#include "kvcache/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "base/error.h"

namespace quire {

PrefixCache::PrefixCache(const BlockPool& pool, const CacheLayout& layout, std::uint64_t seed, int hash_bits)
    : pool_(pool),
      layout_(layout),
      block_size_(static_cast<std::size_t>(layout.block_size)),
      lane_(static_cast<std::size_t>(layout.farthest_lane())),
      seed_(seed) {
  QUIRE_CHECK(block_size_ > 0 && hash_bits > 0 && hash_bits <= 64);
  hash_mask_ = ~std::uint64_t{0} >> (64 - hash_bits);
  const auto num_blocks = static_cast<std::size_t>(pool.num_blocks());
  buckets_.resize(std::bit_ceil(2 * num_blocks), kNoBlock);
  entries_.resize(num_blocks);
  given_up_.resize(buckets_.size());
  last_given_up_.resize(buckets_.size());
  last_first_.fill(kNoBlock);
  tokens_.resize(num_blocks * block_size_);
}

std::uint64_t PrefixCache::salt_of(std::string_view text) const {
  return text.empty() ? 0 : XXH3_64bits_withSeed(text.data(), text.size(), seed_) | 1;
}

std::vector<PrefixCache::Link> PrefixCache::find_chain(std::span<const TokenId> tokens,
                                                       std::uint64_t salt) const {
  std::vector<Link> chain;
  Link parent;
  for (; tokens.size() >= block_size_; tokens = tokens.subspan(block_size_)) {
    const auto found = find({parent, tokens.first(block_size_), salt});
    if (!found) break;
    parent = *found;
    chain.push_back(parent);
  }
  return chain;
}

PrefixCache::Match PrefixCache::match(std::span<const TokenId> tokens, std::uint64_t salt,
                                      const std::function<bool(const Link&)>& ends_at) const {
  const std::vector<Link> chain = find_chain(tokens, salt);
  const int num_lanes = layout_.num_lanes();
  std::vector<int> first_alive(layout_.windows.size());  // of the rows up to here that have this lane's block
  Match found;
  int size = 0;
  for (int end = 1; end <= std::ssize(chain); ++end) {
    const Link& link = chain[end - 1];
    const Entry& last = entries_[link.block];
    bool fits = true;
    for (int lane = 0; lane < num_lanes; ++lane) {
      const auto i = static_cast<std::size_t>(lane);
      if (i != lane_ && !last.row[i].is_alive(pool_)) first_alive[i] = end;
      fits = fits && first_alive[i] <= layout_.num_outside(lane, end * layout_.block_size);
    }
    if (fits) size = end;
    if (fits && (!ends_at || ends_at(link))) found.num_ending = end;
  }
  for (int index = 0; index < size; ++index)
    for (const Link& link : entries_[chain[index].block].row) found.rows.push_back(link.block);
  if (size < std::ssize(chain))
    found.end = {CacheEnd::Reason::kEvicted};
  else if (tokens.size() < (chain.size() + 1) * block_size_)
    found.end = {CacheEnd::Reason::kWhole};
  else
    found.end = end_before({chain.empty() ? Link{} : chain.back(),
                            tokens.subspan(chain.size() * block_size_, block_size_), salt},
                           size * layout_.block_size);
  return found;
}

// Why there is no row of this key, whose parent is there. Nothing is told of what has another salt.
CacheEnd PrefixCache::end_before(const Key& missing, int position) const {
  if (was_given_up(hash(missing))) return {CacheEnd::Reason::kEvicted};
  const BlockId child = last_child(missing);
  if (child != kNoBlock && contains(child) && entries_[child].parent == missing.parent &&
      entries_[child].salt == missing.salt) {
    const auto same = std::ranges::mismatch(missing.tokens, tokens(child)).in1 - missing.tokens.begin();
    if (position + same > 0) return {CacheEnd::Reason::kDiffers, position + static_cast<int>(same)};
  }
  return {missing.salt != 0 && position == 0 ? CacheEnd::Reason::kSalt : CacheEnd::Reason::kNew};
}

bool PrefixCache::was_given_up(std::uint64_t key_hash) const {
  const auto is_kept = [this](std::uint64_t number) {
    return number > 0 && number + given_up_.size() > num_given_up_;
  };
  for (auto number = last_given_up_[bucket(key_hash)]; is_kept(number);) {
    const GivenUp& gone = given_up_[number % given_up_.size()];
    if (gone.hash == key_hash) return true;
    number = gone.before;
  }
  for (BlockId block = buckets_[bucket(key_hash)]; block != kNoBlock; block = entries_[block].next)
    if (entries_[block].hash == key_hash && !contains(block)) return true;
  return false;
}

std::optional<PrefixCache::Link> PrefixCache::insert(std::span<const BlockId> row, const Key& key) {
  QUIRE_CHECK(row.size() == layout_.windows.size() && key.tokens.size() == block_size_);
  const auto link_of = [this](BlockId block) {
    QUIRE_CHECK(block == kNoBlock || pool_.ref_count(block) > 0);
    return block == kNoBlock ? Link{} : link(block);
  };
  const std::uint64_t key_hash = hash(key);
  if (const auto found = find(key, key_hash)) {
    last_child(key) = found->block;
    std::vector<Link>& there = entries_[found->block].row;
    for (std::size_t lane = 0; lane < row.size(); ++lane)
      if (row[lane] != kNoBlock && !there[lane].is_alive(pool_)) there[lane] = link_of(row[lane]);
    return found;
  }
  const BlockId block = row[lane_];
  if (block == kNoBlock) return std::nullopt;
  std::vector<Link> links;  // the last that may fail
  links.reserve(row.size());
  std::ranges::transform(row, std::back_inserter(links), link_of);
  erase(block);
  BlockId& first = buckets_[bucket(key_hash)];
  entries_[block] = {std::move(links), key_hash, key.salt, key.parent, first};
  first = block;
  last_child(key) = block;
  std::ranges::copy(key.tokens, tokens_.begin() + block * std::ptrdiff_t(block_size_));
  return link(block);
}

bool PrefixCache::contains(BlockId block) const {
  const Entry& found = entries_[block];
  return !found.row.empty() && found.row[lane_].is_alive(pool_);
}

void PrefixCache::erase(BlockId block) {
  Entry& gone = entries_[block];
  if (gone.row.empty()) return;
  BlockId* place = &buckets_[bucket(gone.hash)];
  while (*place != block) place = &entries_[*place].next;
  *place = gone.next;
  std::uint64_t& last = last_given_up_[bucket(gone.hash)];
  given_up_[++num_given_up_ % given_up_.size()] = {gone.hash, last};
  last = num_given_up_;
  gone = {};
}

void PrefixCache::erase_chain(std::span<const TokenId> tokens, std::uint64_t salt) {
  for (const Link& link : find_chain(tokens, salt)) erase(link.block);
}

std::optional<PrefixCache::Link> PrefixCache::find(const Key& key, std::uint64_t key_hash) const {
  for (BlockId block = buckets_[bucket(key_hash)]; block != kNoBlock; block = entries_[block].next) {
    const Entry& other = entries_[block];
    if (other.hash == key_hash && other.parent == key.parent && other.salt == key.salt && contains(block) &&
        std::ranges::equal(key.tokens, tokens(block)))
      return link(block);
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
    const auto found = find({entries_[block].parent, tokens(block), entries_[block].salt});
    QUIRE_CHECK(found == link(block), "the entry of block {} is not found by its key", block);
  }
}

}  // namespace quire
