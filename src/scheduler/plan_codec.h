#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "scheduler/step_plan.h"

namespace quire {

// Step plans as messages, for ranks in other processes: a magic number, the format's version, the plan's
// fields. Numbers are little-endian and of fixed width, a vector is its size (uint32) and its elements, an
// optional a bool and the value that it may have. One plan has one message.
std::vector<std::byte> encode(const StepPlan& plan);

// The plan that a message says. Throws Error if the message is not one that encode() makes: cut short or too
// long, of another version, with a size that what is left of it cannot hold (nothing is allocated for that),
// or with a byte that is no bool or no OutputKind. What the numbers mean is not looked at.
StepPlan decode_plan(std::span<const std::byte> message);

// The same of what sampling needs, and of masks.
std::vector<std::byte> encode(const SamplingState& sampling);
SamplingState decode_sampling(std::span<const std::byte> message);
std::vector<std::byte> encode(const StepMasks& masks);
StepMasks decode_masks(std::span<const std::byte> message);

}  // namespace quire
