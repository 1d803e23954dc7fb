#pragma once

#include "backends/cuda/matmul.h"
#include "ops/device.h"

namespace quire::cuda {

// Best of eight each: 2 GiB read once, and a product of 8192 x 8192 x 8192 of random bfloat16 values. Takes
// 2.4 GiB of the device's memory for a moment; where they are not to be had, the ceiling is 0.
DeviceCeiling measure_ceiling(const LaunchContext& context, LibraryMatmul& library);

}  // namespace quire::cuda
