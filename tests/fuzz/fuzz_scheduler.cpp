#include <cstddef>
#include <cstdint>

#include "scheduler/harness.h"

// Bytes are a configuration and operations on a scheduler; whatever the harness throws is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (const auto scenario = quire::testing::Scenario::parse({data, size}))
    quire::testing::Harness(*scenario).run(scenario->operations);
  return 0;
}
