#pragma once

#include <cstdint>

#include "backends/cuda/kernels/launch.h"

namespace quire::cuda {

// Keeps the stream busy for a time, and the device idle.
void occupy(const LaunchContext& context, std::int64_t nanoseconds);

// Reads `bytes` (a multiple of 16) once, as fast as the memory gives them. result: 4 bytes that nobody needs.
void read_all(const LaunchContext& context, const void* data, std::size_t bytes, unsigned* result);

// Random bfloat16 values, uniform in [-1, 1).
void fill_random(const LaunchContext& context, void* data, std::int64_t count);

}  // namespace quire::cuda
