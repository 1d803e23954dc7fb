#include "kvcache/block_pool.h"

#include "base/error.h"

namespace quire {

BlockPool::BlockPool(int num_blocks) : ring_(num_blocks), num_free_(num_blocks) {
  QUIRE_CHECK(num_blocks >= 0, "{} blocks", num_blocks);
  const int size = num_blocks + 1;
  entries_.resize(size);
  for (BlockId block = 0; block < size; ++block) {
    link(block).next = (block + 1) % size;
    link(block).previous = (block + size - 1) % size;
  }
}

BlockId BlockPool::allocate() {
  QUIRE_CHECK(num_free_ > 0);
  const BlockId block = link(ring_).next;
  Entry& entry = link(block);
  unlink(entry);
  ++entry.generation;
  entry.ref_count = 1;
  return block;
}

void BlockPool::acquire(BlockId block) {
  Entry& entry = at(block);
  if (entry.ref_count == 0) unlink(entry);
  ++entry.ref_count;
}

void BlockPool::release(BlockId block) {
  Entry& entry = at(block);
  QUIRE_CHECK(entry.ref_count > 0, "block {} is free already", block);
  if (--entry.ref_count > 0) return;
  Entry& ring = link(ring_);
  entry.next = ring_;
  entry.previous = ring.previous;
  link(ring.previous).next = block;
  ring.previous = block;
  ++num_free_;
}

void BlockPool::unlink(Entry& entry) {
  link(entry.previous).next = entry.next;
  link(entry.next).previous = entry.previous;
  entry.next = entry.previous = kNoBlock;
  --num_free_;
}

const BlockPool::Entry& BlockPool::at(BlockId block) const {
  QUIRE_CHECK(block >= 0 && block < ring_, "no block {} among {}", block, ring_);
  return entries_[block];
}

void BlockPool::check() const {
  int num_listed = 0;
  BlockId previous = ring_;
  for (BlockId block = entries_.back().next; block != ring_; block = at(block).next) {
    QUIRE_CHECK(++num_listed <= num_free_, "the free list holds more than {} blocks", num_free_);
    QUIRE_CHECK(at(block).ref_count == 0, "free block {} has references", block);
    QUIRE_CHECK(at(block).previous == previous, "the free list is torn at block {}", block);
    previous = block;
  }
  QUIRE_CHECK(num_listed == num_free_, "{} blocks of {} are listed as free", num_listed, num_free_);
  int num_idle = 0;
  for (BlockId block = 0; block < ring_; ++block) num_idle += at(block).ref_count == 0 ? 1 : 0;
  QUIRE_CHECK(num_idle == num_free_, "{} blocks have no references, {} are free", num_idle, num_free_);
}

}  // namespace quire
