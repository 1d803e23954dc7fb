#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/ids.h"

namespace quire {

// Finds full blocks by what they hold: the block before them, their tokens and a salt that separates domains.
// A hash only narrows the search; a hit has been compared in full. An entry lives exactly as long as its
// block's contents: when the pool allocates the block anew, its generation changes, and with it go the entry
// and everything that names the block as its parent. Holds no references. Not thread-safe.
class PrefixCache {
 public:
  // One block's contents, for ever; the default stands before the first block.
  struct Link {
    BlockId block = kNoBlock;
    std::uint64_t generation = 0;

    bool operator==(const Link&) const = default;
  };
  struct Key {
    Link parent;
    std::span<const TokenId> tokens;  // [block_size]
    std::uint64_t salt = 0;
  };

  // `seed` keys the hash, so that nobody outside can construct collisions. Fewer `hash_bits` force collisions
  // in tests.
  PrefixCache(const BlockPool& pool, int block_size, std::uint64_t seed, int hash_bits = 64);

  // The salt that stands for a text: 0 for none.
  std::uint64_t salt_of(std::string_view text) const;
  std::optional<Link> find(const Key& key) const;
  // The longest run of cached blocks that `tokens` begins with.
  std::vector<BlockId> match(std::span<const TokenId> tokens, std::uint64_t salt) const;
  // Records that `block`, which somebody holds, has these contents. Returns what children are to name as
  // their parent: `block`, or the one that was there with the same contents, which stays.
  Link insert(BlockId block, const Key& key);
  Link link(BlockId block) const { return {block, pool_.generation(block)}; }

  bool contains(BlockId block) const;
  void erase(BlockId block);
  void clear();

  // Throws InternalError unless every living entry is found by its own key.
  void check() const;

 private:
  struct Entry {
    std::uint64_t generation = 0;  // of the block at insertion; 0: no entry
    std::uint64_t hash = 0;
    std::uint64_t salt = 0;
    Link parent;
    BlockId next = kNoBlock;  // in the bucket
  };

  std::uint64_t hash(const Key& key) const;
  std::size_t bucket(std::uint64_t key_hash) const { return key_hash & (buckets_.size() - 1); }
  std::optional<Link> find(const Key& key, std::uint64_t key_hash) const;
  std::span<const TokenId> tokens(BlockId block) const;

  const BlockPool& pool_;
  std::size_t block_size_;
  std::uint64_t seed_;
  std::uint64_t hash_mask_;
  std::vector<BlockId> buckets_;  // the first block of each chain; a power of two of them
  std::vector<Entry> entries_;    // [num_blocks]
  std::vector<TokenId> tokens_;   // [num_blocks, block_size]
};

}  // namespace quire
