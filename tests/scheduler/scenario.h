#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/format.h"
#include "scheduler/scheduler.h"

namespace quire::testing {

// One thing done to a scheduler, as four bytes; every byte string means something.
struct Operation {
  enum Kind { kAdd, kAbort, kSchedule, kApply, kPoison, kForesee, kFailInFlight };
  std::uint8_t code, a, b, c;

  Kind kind() const {
    static constexpr Kind kKinds[16] = {kAdd,      kAdd,   kSchedule, kSchedule, kSchedule, kSchedule,
                                        kSchedule, kApply, kApply,    kApply,    kApply,    kApply,
                                        kSchedule, kApply, kAbort,    kPoison};
    return code >= 252 ? kFailInFlight : code >= 232 ? kForesee : kKinds[code % 16];
  }
};

struct Scenario {
  static constexpr std::size_t kHeader = 9;
  static constexpr std::size_t kMaxOperations = 1024;

  SchedulerConfig config;
  int depth = 1;  // steps in flight at most
  std::vector<Operation> operations;

  static std::optional<Scenario> parse(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kHeader) return std::nullopt;
    Scenario scenario;
    SchedulerConfig& config = scenario.config;
    config.max_num_seqs = 1 + bytes[0] % 6;
    config.max_num_batched_tokens = bytes[1] % 4 == 0 ? 1 + bytes[1] / 4 % 8 : 1 + bytes[1] % 50;
    config.max_span = bytes[6] / 3 % 4 == 0 ? 1 + bytes[6] / 12 % 8 : 0;
    config.max_model_len = 2 + bytes[2] % 200;
    config.layout.block_size = bytes[3] % 4 == 0 ? 16 : 8;
    config.enable_prefix_caching = bytes[5] % 4 != 0;
    config.policy = bytes[5] / 4 % 2 == 0 ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
    constexpr int kHashBits[] = {1, 4, 64};
    config.hash_bits = kHashBits[bytes[6] % 3];
    config.hash_seed = bytes[6];
    scenario.depth = 1 + bytes[7] % 3;
    constexpr int kHostBlocks[] = {0, 5, 40};
    config.num_host_blocks = kHostBlocks[bytes[7] / 3 % 3];
    config.layout.windows = windows_of(bytes[7] / 9 % 8, bytes[3] / 4);
    config.num_blocks =
        config.layout.num_lanes() * (1 + bytes[4] % 20) - bytes[4] / 20 % config.layout.num_lanes();
    if (bytes[8] % 3 != 0) {  // fixed states
      config.num_state_slots = 1 + bytes[8] / 3 % 12;
      config.num_host_state_slots = bytes[8] / 36 % 4;
      config.layout.state_interval = config.layout.block_size * (1 + bytes[8] / 144);
    }
    bytes = bytes.subspan(kHeader);
    for (; bytes.size() >= 4 && scenario.operations.size() < kMaxOperations; bytes = bytes.subspan(4))
      scenario.operations.push_back({bytes[0], bytes[1], bytes[2], bytes[3]});
    return scenario;
  }

  // Of one to four lanes, of which the first is any and the others repeat it or not.
  static std::vector<int> windows_of(int first, int others) {
    constexpr int kWindows[] = {0, 0, 1, 5, 8, 13, 24, 70};
    std::vector<int> windows = {kWindows[first]};
    for (; others % 4 != 0 && windows.size() < 4; others /= 4)
      windows.push_back(others % 4 == 1 ? windows.back() : kWindows[(first + 3 * others) % 8]);
    return windows;
  }

  std::string describe() const {
    std::string windows;
    for (const int window : config.layout.windows) windows += format_text(" {}", window);
    std::string text = format_text(
        "seats {} budget {} span {} context {} windows{} block size {} blocks {} host blocks {} priorities "
        "{} "
        "caching {} hash bits {} depth {} state slots {} host slots {} interval {}\n",
        config.max_num_seqs, config.max_num_batched_tokens, config.max_span, config.max_model_len, windows,
        config.layout.block_size, config.num_blocks, config.num_host_blocks,
        config.policy == SchedulingPolicy::kPriority, config.enable_prefix_caching, config.hash_bits, depth,
        config.num_state_slots, config.num_host_state_slots, config.layout.state_interval);
    static constexpr const char* kNames[] = {"add",    "abort",   "schedule",      "apply",
                                             "poison", "foresee", "fail_in_flight"};
    for (const Operation& operation : operations)
      text +=
          format_text("{}({}, {}, {})\n", kNames[operation.kind()], operation.a, operation.b, operation.c);
    return text;
  }
};

}  // namespace quire::testing
