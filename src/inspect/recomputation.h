#pragma once

#include <cstdint>
#include <optional>

#include "engine/model_files.h"
#include "record/recording.h"
#include "record/replayer.h"

namespace quire {

// What came of it: until the first difference, or the recording's end.
struct Recomputation {
  // A token that was sampled otherwise.
  struct Difference {
    std::uint64_t step = 0;
    SequenceId sequence = 0;
    TokenId recorded = 0, computed = 0;  // below 0: none, as SequenceResult says
  };

  std::optional<Difference> difference;
  std::optional<Replayer::Difference> plans;  // between the plans
  std::uint64_t num_steps = 0;
  std::uint64_t num_compared = 0;  // tokens
  std::uint64_t num_masked = 0;  // tokens sampled under a mask, which are given: a recording has no grammars
  bool whole = false;            // the recording is

  bool passed() const { return !difference && !plans; }
};

// Has a model compute the steps of a recording again, and compares each sampled token. On a CPU, and of a
// deterministic engine, all are the same bits if the model, the numbers it is computed in and the instruction
// set are; else two tokens that are nearly as likely may change places. What of `config` the scheduler knows
// is as it was recorded. Error where the recording has no ids of tokens or not its beginning, or ids that the
// model does not have, or the cache is smaller than the recorded one or of another layout.
Recomputation recompute(const Recording& recording, EngineConfig config, ModelFiles model);

}  // namespace quire
