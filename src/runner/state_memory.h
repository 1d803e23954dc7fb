#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/ops.h"
#include "runner/runtime_config.h"

namespace quire {

// Fixed states of one rank: slots on the device and, of preempted sequences, in host memory. A slot holds the
// states of all layers of a sequence, one behind the other.
class StateMemory {
 public:
  StateMemory(Backend& backend, const RuntimeConfig& config);

  std::span<const Tensor> states() const { return states_; }  // by FixedStateId: f32 [slots, its shape]
  // Pairs i32 [n, 2] of slots: saved to host memory, then restored.
  void copy(const Tensor& saves, const Tensor& restores);
  // Fills slots with NaN, with the next copies and behind their saves. For tests.
  void poison(std::vector<BlockId> slots) { to_poison_ = std::move(slots); }

 private:
  struct Slots {
    Slots(Backend& backend, std::size_t slot_bytes, int num_slots, MemoryKind kind);

    Buffer memory;
    Tensor bytes;  // u8 [1, slots, bytes of a slot]
  };

  Backend& backend_;
  std::optional<Slots> device_, host_;
  std::vector<Tensor> states_;
  std::vector<BlockId> to_poison_;
};

}  // namespace quire
