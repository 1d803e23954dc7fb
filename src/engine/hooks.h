#pragma once

#include <cstdint>
#include <functional>

#include "kvcache/ids.h"

namespace quire {

enum class EngineStage : std::uint8_t {
  kSchedule,
  kSubmit,
  kCollect,
  kCheck,
  kRank,
  kDrop,
  kSearch,
  kHold,
  kCompile,
  kDetokenize,
  kCallback
};

#ifdef QUIRE_HARSH_HOOKS
inline constexpr bool kHarshHooks = true;  // for every test of the engine, as tools/soak.sh builds them
#else
inline constexpr bool kHarshHooks = false;
#endif

// What tests change of an engine.
struct EngineHooks {
  int prefix_hash_bits = kHarshHooks ? 4 : 64;  // fewer make hashes collide
  bool pipelined = false;                       // two steps are in flight on any device
  // A block, or a slot of fixed states, is full of NaN when it is given to a sequence.
  bool poison_blocks = kHarshHooks;
  // Called where a sequence is about to go through a stage, a step is (kSubmit, kCollect, kCheck, kDrop: id
  // 0; kRank: by a rank in a thread, id: the rank), or a source is to be compiled (kHold: by the engine's
  // thread, for a request; kCompile: id 0), on the thread of that stage. What it throws is that stage's
  // failure.
  using Fault = std::function<void(EngineStage, SequenceId)>;
  Fault fault = {};

  void visit(EngineStage stage, SequenceId id = 0) const {
    if (fault) fault(stage, id);
  }
};

}  // namespace quire
