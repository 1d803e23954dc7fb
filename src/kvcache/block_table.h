#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/ids.h"

namespace quire {

// The blocks that hold one sequence's tokens, in order. Holds one reference to each and gives it back on
// destruction, the tail first, so that the head (which more prompts begin with) stays cached longer. Blocks
// that are needed no more are given back from the front; their entries stay, as kNoBlock.
class BlockTable {
 public:
  BlockTable(BlockPool& pool, int block_size) : pool_(&pool), block_size_(block_size) {}
  ~BlockTable() { clear(); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  std::span<const BlockId> blocks() const { return blocks_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  int num_released() const { return num_released_; }  // the first entries, without a block
  int num_held() const { return size() - num_released_; }
  std::span<const BlockId> held() const { return blocks().last(static_cast<std::size_t>(num_held())); }

  // Appends a block whose contents are already there.
  void share(BlockId block);
  // Appends a new block, whose contents are to come. The pool must have it.
  void append() { blocks_.push_back(pool_->allocate()); }

  // Gives back the blocks of the first `count` entries; entries that the table has not yet are added.
  void release_front(int count);

  // How many tokens from `first` on, at most `wanted`, could be written now. The positions before `first` are
  // filled.
  int writable(int first, int wanted) const;
  // Makes the positions [first, last) writable by this table alone: appends blocks, and replaces a shared one
  // by a copy, which is added to `copies`. Returns the first entry of the table that changed (size() before,
  // if none did). The pool must have the blocks: see writable().
  int prepare_write(int first, int last, std::vector<BlockCopy>& copies);

  // A table of the same blocks; whoever writes first gets a copy.
  BlockTable fork() const;
  void clear();

 private:
  bool shared(int index) const { return pool_->ref_count(blocks_[static_cast<std::size_t>(index)]) > 1; }

  BlockPool* pool_;
  int block_size_;
  std::vector<BlockId> blocks_;
  int num_released_ = 0;
};

}  // namespace quire
