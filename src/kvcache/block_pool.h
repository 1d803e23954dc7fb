#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kvcache/ids.h"

namespace quire {

// The blocks of the KV cache: who holds how many references, and which are free. A block whose last reference
// is released keeps its contents until it is allocated again, oldest release first; until then it can be
// acquired anew. Everything is O(1). Misuse (a release too many, an id that is none) throws InternalError and
// changes nothing. Not thread-safe.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int num_blocks() const { return static_cast<int>(entries_.size()) - 1; }
  int num_free() const { return num_free_; }

  // Takes the block that has been free for longest; it has one reference and a new generation. There must be
  // a free one.
  BlockId allocate();
  // Adds a reference, also to a free block, which is free no more.
  void acquire(BlockId block);
  void release(BlockId block);
  // The block's contents are to be others: it gets a new generation.
  void renew(BlockId block) { ++at(block).generation; }

  int ref_count(BlockId block) const { return at(block).ref_count; }
  bool is_shared(BlockId block) const { return ref_count(block) > 1; }
  // How many times the block was allocated or renewed: (id, generation) names contents for ever.
  std::uint64_t generation(BlockId block) const { return at(block).generation; }

  // Throws InternalError unless the free list holds exactly the blocks without references.
  void check() const;

 private:
  struct Entry {
    std::uint64_t generation = 0;
    int ref_count = 0;
    BlockId next = kNoBlock;  // in the free list, which is a ring through the entry after the last block
    BlockId previous = kNoBlock;
  };

  const Entry& at(BlockId block) const;
  Entry& at(BlockId block) { return const_cast<Entry&>(static_cast<const BlockPool*>(this)->at(block)); }
  Entry& link(BlockId block) { return entries_[block]; }
  void unlink(Entry& entry);

  std::vector<Entry> entries_;
  BlockId ring_;  // the entry that begins and ends the free list
  int num_free_;
};

// A reference to a block of a pool, or to none. A copy is one more.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockPool& pool, BlockId block) : pool_(&pool), block_(block) { pool.acquire(block); }
  BlockRef(const BlockRef& other) : pool_(other.pool_), block_(other.block_) {
    if (pool_ != nullptr) pool_->acquire(block_);
  }
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), block_(std::exchange(other.block_, kNoBlock)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() {
    if (pool_ != nullptr) pool_->release(block_);
  }
  static BlockRef allocate(BlockPool& pool) {
    BlockRef ref;
    ref.block_ = pool.allocate();
    ref.pool_ = &pool;
    return ref;
  }

  BlockId id() const { return block_; }  // kNoBlock: none
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  BlockPool* pool_ = nullptr;
  BlockId block_ = kNoBlock;
};

}  // namespace quire
