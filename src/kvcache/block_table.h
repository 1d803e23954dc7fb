#pragma once

#include <span>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/cache_layout.h"
#include "kvcache/ids.h"

namespace quire {

// The blocks that hold one sequence's tokens: a row for every block_size of them, in order, with a block for
// every lane. Holds one reference to each and gives it back on destruction, the tail first, so that the head
// (which more prompts begin with) stays cached longer. Blocks that have left their lane's window are given
// back from the front; in their places stands kNoBlock.
class BlockTable {
 public:
  // Refers to both.
  BlockTable(BlockPool& pool, const CacheLayout& layout) : pool_(&pool), layout_(&layout) {}
  // A table of the same blocks: whoever writes first gets a copy.
  BlockTable(const BlockTable& other);
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable() { clear(); }

  int size() const { return static_cast<int>(blocks_.size() / layout_->windows.size()); }  // rows
  std::span<const BlockId> blocks() const { return blocks_; }  // [size, num_lanes]
  std::span<const BlockId> row(int index) const { return layout_->row(blocks_, index); }
  std::span<const BlockId> rows_from(int first) const {
    return blocks().subspan(static_cast<std::size_t>(first) * layout_->windows.size());
  }
  int num_held() const;
  // What no position from here on attends to has been given back.
  int position() const { return position_; }

  // Appends a row of blocks whose contents are already there; without one, of new blocks, which the pool must
  // have. Those outside their window are not taken.
  void append(std::span<const BlockId> row = {});

  // Gives back the blocks that no position from `position` on attends to; rows to come are without them.
  // True: there were some.
  bool release_outside(int position);

  // How many tokens from `first` on, at most `wanted`, could be written now. The positions before `first` are
  // filled.
  int writable(int first, int wanted) const;
  // Makes the positions [first, last) writable by this table alone: appends rows, and replaces shared blocks
  // by copies, which are added to `copies`. Returns the first row that changed (size() before, if none did).
  // The pool must have the blocks: see writable().
  int prepare_write(int first, int last, std::vector<BlockCopy>& copies);

  void cut(int num_rows);  // to no more than it has
  void clear();

 private:
  BlockId& at(int index, int lane) {
    return blocks_[static_cast<std::size_t>(index) * layout_->windows.size() +
                   static_cast<std::size_t>(lane)];
  }

  BlockPool* pool_;
  const CacheLayout* layout_;
  std::vector<BlockId> blocks_;
  int position_ = 0;
};

}  // namespace quire
