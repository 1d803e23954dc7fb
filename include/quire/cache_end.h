#pragma once

#include <cstdint>
#include <string_view>

namespace quire {

// Why no more of a prompt was taken from the prefix cache than was, as it was when the prompt's first step
// was planned.
struct CacheEnd {
  enum class Reason : std::uint8_t {
    kNone,   // it did not come to a step
    kWhole,  // all was that can be: never the last token, whole blocks, with fixed states whole intervals
    kNoCheckpoint,  // more of it is known, but none of the model's fixed states behind that
    kDiffers,       // from what was computed last that begins like it, at `token`
    kSalt,          // it has a salt under which nothing that begins so is known
    kEvicted,       // more of it was known, and made room for others
    kNew,           // nothing is known that goes on like it
    kOff,           // there is no prefix cache, or every position of the prompt was asked for
  };
  static constexpr int kNumReasons = 8;

  Reason reason = Reason::kNone;
  int token = -1;  // of the prompt, from 0; -1: no reason but kDiffers has one
};

// "whole", "no_checkpoint", "differs", "salt", "evicted", "new", "off"; "" for kNone.
std::string_view to_string(CacheEnd::Reason reason);

}  // namespace quire
