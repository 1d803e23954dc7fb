#include "kvcache/block_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_),
      block_size_(other.block_size_),
      blocks_(std::exchange(other.blocks_, {})),
      num_released_(std::exchange(other.num_released_, 0)) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(block_size_, other.block_size_);
  std::swap(blocks_, other.blocks_);
  std::swap(num_released_, other.num_released_);
  return *this;
}

void BlockTable::share(BlockId block) {
  pool_->acquire(block);
  blocks_.push_back(block);
}

void BlockTable::release_front(int count) {
  for (; num_released_ < count; ++num_released_) {
    if (num_released_ == size())
      blocks_.push_back(kNoBlock);
    else
      pool_->release(std::exchange(blocks_[static_cast<std::size_t>(num_released_)], kNoBlock));
  }
}

int BlockTable::writable(int first, int wanted) const {
  int num_free = pool_->num_free();
  int index = first / block_size_;
  for (; index * block_size_ < first + wanted; ++index) {
    const bool costs_block = index >= size() || shared(index);
    if (costs_block && num_free-- == 0) break;
  }
  return std::clamp(index * block_size_ - first, 0, wanted);
}

int BlockTable::prepare_write(int first, int last, std::vector<BlockCopy>& copies) {
  QUIRE_CHECK(first < last && first / block_size_ <= size(), "positions {} to {} of {} blocks", first, last,
              size());
  int first_changed = size();
  const int begin = first / block_size_;
  for (int i = begin; i * block_size_ < last; ++i) {
    if (i == size()) {
      blocks_.push_back(pool_->allocate());
    } else if (shared(i)) {
      BlockId& entry = blocks_[static_cast<std::size_t>(i)];
      const BlockId from = std::exchange(entry, pool_->allocate());
      if (first > i * block_size_) copies.push_back({from, entry});
      pool_->release(from);
      first_changed = std::min(first_changed, i);
    }
  }
  return first_changed;
}

BlockTable BlockTable::fork() const {
  BlockTable copy(*pool_, block_size_);
  copy.release_front(num_released_);
  for (const BlockId block : held()) copy.share(block);
  return copy;
}

void BlockTable::clear() {
  for (; size() > num_released_; blocks_.pop_back()) pool_->release(blocks_.back());
  blocks_.clear();
  num_released_ = 0;
}

}  // namespace quire
