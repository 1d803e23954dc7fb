#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/ids.h"
#include "scheduler/scheduler.h"

namespace quire::testing {

// Says nothing: the harness knows what a sequence's tokens must be.
class AnyTokens final : public Constraint {
 public:
  bool fill_mask(std::span<const TokenId> /*output*/, std::span<std::uint32_t> /*mask*/) override {
    return false;
  }
  std::vector<TokenId> forced(int /*most*/) override { return {}; }
};

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool condition, const char* what, std::uint64_t id = 0) {
  if (!condition) throw Violation(std::string(what) + ", sequence or step " + std::to_string(id));
}

inline std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// The model: every token is a function of all the tokens before it and of the seed. This is the reference run
// of a request: alone, without limits, cache or chunks, and as far as anybody asks.
class History {
 public:
  static constexpr int kVocabulary = 32;

  explicit History(const SequenceRequest& request)
      : stop_ids_(request.sampling.stop_ids),
        num_prompt_(static_cast<int>(request.prompt.size())),
        min_tokens_(request.min_tokens),
        seed_(request.sampling.seed),
        last_hash_(mix(std::hash<std::string>{}(request.cache_salt))) {
    for (const TokenId token : request.prompt) append(token);
  }

  int num_prompt() const { return num_prompt_; }
  bool masks_stop(int position) const { return position - num_prompt_ < min_tokens_; }
  bool is_stop(int position) {
    return !masks_stop(position) &&
           std::find(stop_ids_.begin(), stop_ids_.end(), token(position)) != stop_ids_.end();
  }
  TokenId token(int position) {
    while (position >= static_cast<int>(tokens_.size())) append_next();
    return tokens_[static_cast<std::size_t>(position)];
  }
  // What the KV cache is to hold for `count` positions: for each, a hash of all tokens up to it, and the
  // salt.
  std::span<const std::uint64_t> hashes(int first, int count) {
    token(first + count - 1);
    return std::span(hashes_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }

 private:
  void append(TokenId token) {
    last_hash_ = mix(last_hash_ ^ static_cast<std::uint64_t>(token));
    tokens_.push_back(token);
    hashes_.push_back(last_hash_);
  }
  void append_next() {
    auto next = static_cast<TokenId>(mix(last_hash_ ^ mix(seed_)) % kVocabulary);
    while (masks_stop(static_cast<int>(tokens_.size())) &&
           std::find(stop_ids_.begin(), stop_ids_.end(), next) != stop_ids_.end())
      ++next;
    append(next);
  }

  std::vector<TokenId> stop_ids_;
  int num_prompt_;
  int min_tokens_;
  std::uint64_t seed_;
  std::uint64_t last_hash_;
  std::vector<TokenId> tokens_;
  std::vector<std::uint64_t> hashes_;
};

// Executes plans in order against a simulated KV cache, and throws Violation wherever a position that is
// attended does not hold what the sequence's own history says.
class FakeRunner {
 public:
  explicit FakeRunner(const SchedulerConfig& config)
      : layout_(config.layout),
        block_size_(layout_.block_size),
        cells_(static_cast<std::size_t>(config.num_blocks * block_size_)),
        host_cells_(static_cast<std::size_t>(config.num_host_blocks * block_size_)),
        slots_(static_cast<std::size_t>(config.num_state_slots)),
        host_slots_(static_cast<std::size_t>(config.num_host_state_slots)),
        seats_(static_cast<std::size_t>(config.max_num_seqs)) {}

  std::map<SequenceId, History> histories;  // of every sequence that may come

  void submit(StepPlan plan) { plans_.push_back(std::move(plan)); }
  int num_in_flight() const { return static_cast<int>(plans_.size()); }
  // Results come as late as can be: the oldest plan is executed only when its result is wanted.
  StepResult collect() {
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    return execute(plan);
  }
  void drop_all() { plans_.clear(); }
  void poison_next() { poison_next_ = true; }  // the next sample finds no finite logit

 private:
  struct Seat {
    SequenceId sequence = 0;
    std::vector<BlockId> table;  // [rows, num_lanes]
    TokenId last_sample = SequenceResult::kNoToken;
    int num_summed = 0;  // positions
  };

  StepResult execute(const StepPlan& plan) {
    for (const BlockCopy& save : plan.saves)
      std::copy_n(&cell(save.from, 0), block_size_, &host_cell(save.to));
    for (const BlockCopy& copy : plan.block_copies)
      std::copy_n(&cell(copy.from, 0), block_size_, &cell(copy.to, 0));
    for (const BlockCopy& restore : plan.restores)
      std::copy_n(&host_cell(restore.from), block_size_, &cell(restore.to, 0));
    for (const BlockCopy& save : plan.state_copies.saves)
      host_slots_.at(static_cast<std::size_t>(save.to)) = slots_.at(static_cast<std::size_t>(save.from));
    for (const BlockCopy& restore : plan.state_copies.restores)
      slots_.at(static_cast<std::size_t>(restore.to)) =
          host_slots_.at(static_cast<std::size_t>(restore.from));
    require(all_different(plan.state_copies.saves) && all_different(plan.state_copies.restores),
            "two copies go to one slot", plan.id);
    if (!slots_.empty()) run_states(plan);
    require(all_different(plan.saves) && all_different(plan.restores), "two copies go to one place", plan.id);
    for (const SequencePlan& sequence : plan.sequences) update_seat(sequence);
    // A runner may or may not write all keys before it reads any: the past must be there before and after.
    for (const SequencePlan& sequence : plan.sequences) check_past(sequence, sequence.first_position);
    for (const SequencePlan& sequence : plan.sequences) write_span(sequence);
    StepResult result{plan.id, {}};
    for (const SequencePlan& sequence : plan.sequences) {
      check_past(sequence, sequence.first_position + sequence.num_tokens);
      result.sequences.push_back(sample(sequence));
    }
    return result;
  }

  // States are those behind all tokens before: a hash of these. Slots are read and written in any order.
  void run_states(const StepPlan& plan) {
    std::map<BlockId, SequenceId> writers;
    for (const SequencePlan& sequence : plan.sequences)
      require(writers.emplace(sequence.state_to, sequence.sequence).second, "19: two write one slot",
              plan.id);
    for (const SequencePlan& sequence : plan.sequences) {
      require((sequence.state_from == kNoBlock) == (sequence.first_position == 0), "18: states of nothing",
              sequence.sequence);
      if (sequence.state_from == kNoBlock) continue;
      const auto writer = writers.find(sequence.state_from);
      require(writer == writers.end() || writer->second == sequence.sequence, "19: what is read is written",
              sequence.sequence);
      History& history = histories.at(sequence.sequence);
      require(slots_.at(static_cast<std::size_t>(sequence.state_from)) ==
                  history.hashes(sequence.first_position - 1, 1)[0],
              "18: states of other tokens", sequence.sequence);
    }
    for (const SequencePlan& sequence : plan.sequences)
      slots_.at(static_cast<std::size_t>(sequence.state_to)) =
          histories.at(sequence.sequence).hashes(sequence.first_position + sequence.num_tokens - 1, 1)[0];
  }

  static bool all_different(const std::vector<BlockCopy>& copies) {
    std::set<BlockId> places;
    for (const BlockCopy& copy : copies) places.insert(copy.to);
    return places.size() == copies.size();
  }

  void update_seat(const SequencePlan& plan) {
    Seat& seat = seats_.at(static_cast<std::size_t>(plan.seat));
    if (plan.start) seat = {plan.sequence, {}, SequenceResult::kNoToken, 0};
    require(seat.sequence == plan.sequence, "the seat is another's", plan.sequence);
    const int num_lanes = layout_.num_lanes();
    const int kept = plan.first_new_row * num_lanes;
    require(plan.start || kept <= static_cast<int>(seat.table.size()), "the table has a hole", plan.sequence);
    seat.table.resize(static_cast<std::size_t>(kept), kNoBlock);
    seat.table.insert(seat.table.end(), plan.new_blocks.begin(), plan.new_blocks.end());
    require(static_cast<int>(seat.table.size()) ==
                layout_.rows_for(plan.first_position + plan.num_tokens) * num_lanes,
            "the span has too many blocks, or too few", plan.sequence);
  }

  // Of the span's first position, which looks back farthest; up to num_positions.
  void check_past(const SequencePlan& plan, int num_positions) {
    History& history = histories.at(plan.sequence);
    for (int lane = 0; lane < layout_.num_lanes(); ++lane) {
      const int window = layout_.windows[static_cast<std::size_t>(lane)];
      int first = window == 0 ? 0 : std::max(0, plan.first_position - window + 1);
      for (int count = 0; first < num_positions; first += count) {
        count = std::min(block_size_ - first % block_size_, num_positions - first);
        const auto past = history.hashes(first, count);
        const std::uint64_t* there = &place(plan, lane, first);
        for (int i = 0; i < count; ++i)
          require(there[i] == in_lane(past[static_cast<std::size_t>(i)], lane), "a wrong key is attended",
                  plan.sequence);
      }
    }
  }

  void write_span(const SequencePlan& plan) {
    const Seat& seat = seats_[static_cast<std::size_t>(plan.seat)];
    History& history = histories.at(plan.sequence);
    const bool given = !plan.tokens.empty();
    require(static_cast<int>(plan.tokens.size()) == (given ? plan.num_tokens : 0), "a span's ids are amiss",
            plan.sequence);
    require(given || plan.num_tokens == 1, "a span has no ids", plan.sequence);
    for (int i = 0; i < plan.num_tokens; ++i) {
      const TokenId token = given ? plan.tokens[static_cast<std::size_t>(i)] : seat.last_sample;
      const int position = plan.first_position + i;
      require(token == history.token(position), "a wrong token is computed", plan.sequence);
      for (int lane = 0; lane < layout_.num_lanes(); ++lane)
        place(plan, lane, position) = in_lane(history.hashes(position, 1)[0], lane);
    }
  }

  SequenceResult sample(const SequencePlan& plan) {
    SequenceResult result;
    result.sequence = plan.sequence;
    if (plan.output == OutputKind::kAll)  // a position stands for its logits
      for (int i = 0; i < plan.num_tokens; ++i)
        result.logits.push_back(static_cast<float>(plan.first_position + i));
    if (is_pooled(plan.output)) return pool(plan);
    if (!plan.sample) return result;
    History& history = histories.at(plan.sequence);
    const int position = plan.first_position + plan.num_tokens;
    require(plan.output != OutputKind::kNone, "a sample without logits", plan.sequence);
    require(plan.mask_stop == history.masks_stop(position), "a wrong mask", plan.sequence);
    seats_[static_cast<std::size_t>(plan.seat)].last_sample = history.token(position);
    result.token =
        std::exchange(poison_next_, false) ? SequenceResult::kInvalidLogits : history.token(position);
    return result;
  }

  // The number of positions stands for what is pooled.
  SequenceResult pool(const SequencePlan& plan) {
    SequenceResult result;
    result.sequence = plan.sequence;
    require(!plan.sample, "a sample of what is pooled", plan.sequence);
    const int num_positions = plan.first_position + plan.num_tokens;
    int& num_summed = seats_[static_cast<std::size_t>(plan.seat)].num_summed;
    if (adds_up(plan.output)) {
      require(num_summed == plan.first_position, "a sum has a hole", plan.sequence);
      num_summed = num_positions;
    }
    if (plan.output == OutputKind::kHiddenSum) return result;
    if (std::exchange(poison_next_, false))
      result.token = SequenceResult::kInvalidLogits;
    else
      result.hidden = {static_cast<float>(num_positions)};
    return result;
  }

  std::uint64_t& cell(BlockId block, int offset) {
    return cells_.at(static_cast<std::size_t>(block * block_size_ + offset));
  }
  std::uint64_t& host_cell(BlockId block) {
    return host_cells_.at(static_cast<std::size_t>(block * block_size_));
  }
  std::uint64_t& place(const SequencePlan& plan, int lane, int position) {
    const Seat& seat = seats_[static_cast<std::size_t>(plan.seat)];
    const auto row = layout_.row(seat.table, position / block_size_);
    return cell(row[static_cast<std::size_t>(lane)], position % block_size_);
  }
  // Each lane has keys of its own.
  static std::uint64_t in_lane(std::uint64_t hash, int lane) {
    return lane == 0 ? hash : hash ^ mix(static_cast<std::uint64_t>(lane));
  }

  CacheLayout layout_;
  int block_size_;
  std::vector<std::uint64_t> cells_;       // [num_blocks, block_size]: the history each position holds
  std::vector<std::uint64_t> host_cells_;  // [num_host_blocks, block_size]
  std::vector<std::uint64_t> slots_, host_slots_;  // of fixed states
  std::vector<Seat> seats_;
  std::deque<StepPlan> plans_;
  bool poison_next_ = false;
};

}  // namespace quire::testing
