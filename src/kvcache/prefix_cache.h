#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/cache_layout.h"
#include "kvcache/ids.h"
#include "quire/cache_end.h"

namespace quire {

// Finds the blocks of full rows by what they hold: the row before them, their tokens and a salt that
// separates domains. A hash only narrows the search; a hit has been compared in full. The block of the lane
// that looks back farthest stands for its row: an entry lives exactly as long as that block's contents. When
// the pool allocates the block anew, its generation changes, and with it go the entry and everything that
// names the block as its parent. The blocks of the other lanes may go before it; then no prefix is hit that
// needs them. Holds no references. Not thread-safe.
class PrefixCache {
 public:
  // One block's contents, for ever; the default stands before the first block.
  struct Link {
    BlockId block = kNoBlock;
    std::uint64_t generation = 0;

    // Whether the block still has them.
    bool is_alive(const BlockPool& pool) const {
      return block != kNoBlock && generation == pool.generation(block);
    }
    bool operator==(const Link&) const = default;
  };
  struct Key {
    Link parent;
    std::span<const TokenId> tokens;  // [block_size]
    std::uint64_t salt = 0;
  };

  // Refers to pool and layout. `seed` keys the hash, so that nobody outside can construct collisions. Fewer
  // `hash_bits` force collisions in tests.
  PrefixCache(const BlockPool& pool, const CacheLayout& layout, std::uint64_t seed, int hash_bits = 64);

  // The salt that stands for a text: 0 for none.
  std::uint64_t salt_of(std::string_view text) const;
  std::optional<Link> find(const Key& key) const { return find(key, hash(key)); }
  // The rows of the longest prefix of `tokens` behind which every lane has the blocks of its window: [n,
  // num_lanes], whatever stands outside of the windows.
  // num_ending: the longest part of them that ends with a row of which ends_at is true; without one, all.
  struct Match {
    std::vector<BlockId> rows;
    int num_ending = 0;
    CacheEnd end;  // why there are no more rows
  };
  Match match(std::span<const TokenId> tokens, std::uint64_t salt,
              const std::function<bool(const Link&)>& ends_at = {}) const;
  // Records that the blocks of a row, which somebody holds, have these contents; kNoBlock: there is none in
  // this lane. Returns what children are to name as their parent: this row, or the one that was there with
  // the same contents, which stays, and gets what it has lost. None where nothing stands for the row.
  std::optional<Link> insert(std::span<const BlockId> row, const Key& key);
  // What stands for a row that is there.
  Link link(std::span<const BlockId> row) const { return link(row[lane_]); }

  bool contains(BlockId block) const;
  void erase(BlockId block);
  // Every row that `tokens` begins with.
  void erase_chain(std::span<const TokenId> tokens, std::uint64_t salt);
  void clear() {
    for (BlockId block = 0; block < pool_.num_blocks(); ++block) erase(block);
  }

  // Throws InternalError unless every living entry is found by its own key.
  void check() const;

 private:
  struct Entry {
    std::vector<Link> row;  // by lane; empty: no entry
    std::uint64_t hash = 0;
    std::uint64_t salt = 0;
    Link parent;
    BlockId next = kNoBlock;  // in the bucket
    // That was entered last behind it. Its block may have become something else since.
    BlockId last_child = kNoBlock;
  };
  // The key of an entry that is gone. Such entries are numbered from 1 as they go.
  struct GivenUp {
    std::uint64_t hash = 0;
    std::uint64_t before = 0;  // the number of the last one before with the same bucket; 0: none
  };

  std::uint64_t hash(const Key& key) const;
  std::size_t bucket(std::uint64_t key_hash) const { return key_hash & (buckets_.size() - 1); }
  std::optional<Link> find(const Key& key, std::uint64_t key_hash) const;
  std::vector<Link> find_chain(std::span<const TokenId> tokens, std::uint64_t salt) const;
  bool was_given_up(std::uint64_t key_hash) const;
  CacheEnd end_before(const Key& missing, int position) const;
  // Where the child of key.parent stands that was entered last.
  const BlockId& last_child(const Key& key) const {
    return key.parent == Link{} ? last_first_[key.salt % last_first_.size()]
                                : entries_[key.parent.block].last_child;
  }
  BlockId& last_child(const Key& key) {
    return const_cast<BlockId&>(static_cast<const PrefixCache*>(this)->last_child(key));
  }
  Link link(BlockId block) const { return {block, pool_.generation(block)}; }
  std::span<const TokenId> tokens(BlockId block) const;

  const BlockPool& pool_;
  const CacheLayout& layout_;
  std::size_t block_size_;
  std::size_t lane_;  // whose block stands for its row
  std::uint64_t seed_;
  std::uint64_t hash_mask_;
  std::vector<BlockId> buckets_;              // the first block of each chain; a power of two of them
  std::vector<Entry> entries_;                // [num_blocks]
  std::vector<TokenId> tokens_;               // [num_blocks, block_size]
  std::vector<GivenUp> given_up_;             // a ring, by number
  std::vector<std::uint64_t> last_given_up_;  // by bucket: its number
  std::uint64_t num_given_up_ = 0;
  std::array<BlockId, 64> last_first_;  // by salt: as Entry::last_child, before the first row
};

}  // namespace quire
