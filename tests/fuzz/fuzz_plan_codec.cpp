// The message of a step plan from arbitrary bytes. One that is accepted is the only one of its plan.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "scheduler/plan_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  try {
    if (!std::ranges::equal(quire::encode(quire::decode_plan(message)), message)) std::abort();
  } catch (const quire::Error&) {
  }
  return 0;
}
