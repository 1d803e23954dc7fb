#include "kvcache/block_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {

BlockTable::BlockTable(const BlockTable& other) : BlockTable(*other.pool_, *other.layout_) {
  position_ = other.position_;
  for (int i = 0; i < other.size(); ++i) append(other.row(i));
}

int BlockTable::num_held() const {
  int count = 0;
  for (int lane = 0; lane < layout_->num_lanes(); ++lane)
    count += std::max(0, size() - layout_->num_outside(lane, position_));
  return count;
}

void BlockTable::append(std::span<const BlockId> row) {
  const int index = size();
  const std::size_t num_blocks = blocks_.size() + static_cast<std::size_t>(layout_->num_lanes());
  if (num_blocks > blocks_.capacity()) blocks_.reserve(std::max(num_blocks, 2 * blocks_.capacity()));
  for (int lane = 0; lane < layout_->num_lanes(); ++lane) {
    if (index < layout_->num_outside(lane, position_)) {
      blocks_.push_back(kNoBlock);
    } else if (row.empty()) {
      blocks_.push_back(pool_->allocate());
    } else {
      pool_->acquire(row[lane]);
      blocks_.push_back(row[lane]);
    }
  }
}

bool BlockTable::release_outside(int position) {
  bool any = false;
  for (int lane = 0; lane < layout_->num_lanes(); ++lane) {
    const int end = std::min(size(), layout_->num_outside(lane, position));
    for (int index = layout_->num_outside(lane, position_); index < end; ++index, any = true)
      pool_->release(std::exchange(at(index, lane), kNoBlock));
  }
  position_ = std::max(position_, position);
  return any;
}

int BlockTable::writable(int first, int wanted) const {
  const int block_size = layout_->block_size;
  const auto is_shared = [this](BlockId block) { return pool_->is_shared(block); };
  int num_free = pool_->num_free();
  int index = first / block_size;
  for (; index * block_size < first + wanted; ++index) {
    const auto num_taken =
        index < size() ? std::ranges::count_if(row(index), is_shared) : layout_->num_lanes();
    num_free -= static_cast<int>(num_taken);
    if (num_free < 0) break;
  }
  return std::clamp(index * block_size - first, 0, wanted);
}

int BlockTable::prepare_write(int first, int last, std::vector<BlockCopy>& copies) {
  const int block_size = layout_->block_size;
  QUIRE_CHECK(first < last && first / block_size <= size(), "positions {} to {} of {} rows", first, last,
              size());
  int first_changed = size();
  for (int i = first / block_size; i * block_size < last; ++i) {
    if (i == size()) {
      append();
      continue;
    }
    for (int lane = 0; lane < layout_->num_lanes(); ++lane) {
      BlockId& block = at(i, lane);
      if (!pool_->is_shared(block)) continue;
      if (first > i * block_size) copies.emplace_back();  // the last that may fail
      const BlockId from = std::exchange(block, pool_->allocate());
      if (first > i * block_size) copies.back() = {from, block};
      pool_->release(from);
      first_changed = std::min(first_changed, i);
    }
  }
  return first_changed;
}

void BlockTable::cut(int num_rows) {
  for (int i = size() - 1; i >= num_rows; --i)
    for (const BlockId block : row(i))
      if (block != kNoBlock) pool_->release(block);
  blocks_.resize(static_cast<std::size_t>(num_rows) * layout_->windows.size());
}

void BlockTable::clear() {
  cut(0);
  position_ = 0;
}

}  // namespace quire
