// Why no more of a prompt is taken from the prefix cache, as it knows itself.
#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

#include "kvcache/kv_cache.h"

namespace quire {
namespace {

using Reason = CacheEnd::Reason;

constexpr int kBlockSize = 8;

std::vector<TokenId> counted(int count, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A cache in which one sequence after the other comes, has all its tokens computed, and ends.
class Sequences {
 public:
  explicit Sequences(int num_blocks, int num_slots = 0, std::vector<int> windows = {0})
      : cache_({.block_size = kBlockSize,
                .windows = std::move(windows),
                .state_interval = num_slots > 0 ? 2 * kBlockSize : 0},
               {.num_blocks = num_blocks, .num_state_slots = num_slots}, true, 42, 64) {}

  // keep: its fixed states are kept behind so many of its tokens.
  ComputedPrefix run(const std::vector<TokenId>& tokens, std::string_view salt = {}, int keep = 0) {
    SequenceBlocks blocks = cache_.new_blocks(salt);
    const ComputedPrefix found = cache_.find(blocks, std::span(tokens).first(tokens.size() - 1), nullptr, 0);
    cache_.admit(blocks, found);
    const auto length = static_cast<int>(tokens.size());
    if (keep > found.num_tokens) step(blocks, tokens, keep, keep);
    step(blocks, tokens, length, keep);
    blocks.clear();
    return found;
  }

 private:
  void step(SequenceBlocks& blocks, std::span<const TokenId> tokens, int last, int keep) {
    std::vector<BlockCopy> copies;
    StateCopies states;
    cache_.prepare_write(blocks, last - blocks.num_tokens, blocks.num_tokens != keep, false, copies);
    cache_.write_states(blocks);
    blocks.num_tokens = last;
    if (last == keep) cache_.keep_states(blocks, false);
    cache_.index(blocks, tokens);
    cache_.close_step(states);
    cache_.apply_step();
    blocks.table.release_outside(last);
    cache_.check(std::vector<const SequenceBlocks*>{&blocks});
  }

  KvCache cache_;
};

void expect_end(const ComputedPrefix& found, int num_tokens, Reason reason, int token = -1) {
  EXPECT_EQ(found.num_tokens, num_tokens);
  EXPECT_EQ(static_cast<int>(found.end.reason), static_cast<int>(reason));
  EXPECT_EQ(found.end.token, token);
}

TEST(CacheEndTest, NothingIsKnownOfWhatIsNewAndAllOfWhatComesAgain) {
  Sequences sequences(16);
  expect_end(sequences.run(counted(28)), 0, Reason::kNew);
  expect_end(sequences.run(counted(28)), 24, Reason::kWhole);    // whole blocks
  expect_end(sequences.run(counted(24)), 16, Reason::kWhole);    // not the last token
  expect_end(sequences.run(counted(40)), 24, Reason::kNew);      // a next turn
  expect_end(sequences.run(counted(40, 700)), 0, Reason::kNew);  // no token is the same
}

// Also where what is given up shares its place in the table.
TEST(CacheEndTest, WhatWasNeverThereIsNew) {
  for (const std::vector<int>& windows : {std::vector{0}, {0, 2 * kBlockSize}}) {
    Sequences sequences(12, 0, windows);
    for (int i = 1; i < 200; ++i) expect_end(sequences.run(counted(40, 1000 * i)), 0, Reason::kNew);
  }
}

TEST(CacheEndTest, TheFirstTokenThatDiffersIsNamed) {
  Sequences sequences(32);
  sequences.run(counted(40));
  std::vector<TokenId> other = counted(40);
  other[21] = 1;
  expect_end(sequences.run(other), 16, Reason::kDiffers, 21);
  other[21] = 100 + 21;
  other[3] = 1;
  expect_end(sequences.run(other), 0, Reason::kDiffers, 3);
  other = counted(40);
  other[16] = 1;
  expect_end(sequences.run(other), 16, Reason::kDiffers, 16);
  other[18] = 1;  // of those that go on from here, the last one counts
  expect_end(sequences.run(other), 16, Reason::kDiffers, 18);
}

TEST(CacheEndTest, ASaltHasItsOwnPrefixesAndIsToldNothingOfOthers) {
  Sequences sequences(48);
  sequences.run(counted(28));
  expect_end(sequences.run(counted(28), "mine"), 0, Reason::kSalt);
  expect_end(sequences.run(counted(28), "mine"), 24, Reason::kWhole);
  expect_end(sequences.run(counted(40), "mine"), 24, Reason::kNew);
  std::vector<TokenId> other = counted(28);
  other[5] = 1;
  expect_end(sequences.run(other, "yours"), 0, Reason::kSalt);
  expect_end(sequences.run(other, "mine"), 0, Reason::kDiffers, 5);
  // What only others have looks like what nobody has.
  sequences.run(counted(28, 500), "mine");
  expect_end(sequences.run(counted(28, 500)), 0, Reason::kNew);
  expect_end(sequences.run(counted(28, 900), "yours"), 0, Reason::kSalt);
}

TEST(CacheEndTest, WhatMadeRoomForOthersIsCalledEvicted) {
  for (const bool in_cache : {true, false}) {  // what takes the blocks
    SCOPED_TRACE(in_cache);
    Sequences sequences(8);
    sequences.run(counted(28));
    expect_end(sequences.run(counted(28)), 24, Reason::kWhole);
    if (in_cache) sequences.run(counted(64, 1000));
    for (int i = 0; !in_cache && i < 8; ++i) sequences.run(counted(kBlockSize - 1));
    expect_end(sequences.run(counted(28)), 0, Reason::kEvicted);
    expect_end(sequences.run(counted(28, 500)), 0, Reason::kNew);
  }
}

TEST(CacheEndTest, AsManyEvictedBlocksAsTheCacheHasAreAllRemembered) {
  constexpr int kNumBlocks = 64;
  Sequences sequences(kNumBlocks);
  for (int i = 0; i < 42; ++i) sequences.run(counted(28, 1000 * i));  // 126 whole blocks
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    expect_end(sequences.run(counted(28, 1000 * i)), 0, Reason::kEvicted);
  }
}

TEST(CacheEndTest, APrefixLosesItsTailFirst) {
  Sequences sequences(8);
  sequences.run(counted(40));
  sequences.run(counted(40, 500));  // takes the three that were free, and two more
  expect_end(sequences.run(counted(40)), 24, Reason::kEvicted);
}

TEST(CacheEndTest, BlocksThatOneLaneHasLostAreEvicted) {
  Sequences sequences(12, 0, {0, kBlockSize});
  sequences.run(counted(40));
  sequences.run(counted(24, 500));  // takes what the first has left behind its window
  std::vector<TokenId> other = counted(24);
  other.insert(other.end(), 16, 1);
  expect_end(sequences.run(other), 0, Reason::kEvicted);
}

TEST(CacheEndTest, KnownRowsWithoutStatesBehindThemHaveNoCheckpoint) {
  Sequences sequences(32, 3);
  sequences.run(counted(60));
  expect_end(sequences.run(counted(60), {}, 32), 0, Reason::kNoCheckpoint);
  expect_end(sequences.run(counted(60)), 32, Reason::kNoCheckpoint);
  expect_end(sequences.run(counted(36)), 32, Reason::kWhole);
  expect_end(sequences.run(counted(41)), 32,
             Reason::kWhole);  // 40 are known, of which the interval ends at 32
  std::vector<TokenId> other = counted(60);
  other[44] = 1;
  expect_end(sequences.run(other), 32, Reason::kDiffers, 44);
}

TEST(CacheEndTest, ACheckpointWhoseSlotWasTakenIsMissed) {
  Sequences sequences(32, 2);
  sequences.run(counted(60), {}, 48);
  expect_end(sequences.run(counted(60)), 48, Reason::kWhole);
  sequences.run(counted(60, 500), {}, 48);
  expect_end(sequences.run(counted(60)), 0, Reason::kNoCheckpoint);
}

}  // namespace
}  // namespace quire
