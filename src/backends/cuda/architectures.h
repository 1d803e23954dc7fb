#pragma once

#include <string_view>

namespace quire::cuda {

// Whether kernels compiled for `architectures` run on a GPU of compute capability major.minor. The form is
// CMake's CMAKE_CUDA_ARCHITECTURES with spaces ("80-real 90a 100-virtual"); "native" and the like are taken
// for right. Machine code runs within its major version from its minor one on, what has a letter only there,
// and PTX on all that is newer (CUDA C++ Programming Guide, "Compute Capabilities").
bool runs_on(std::string_view architectures, int major, int minor);

}  // namespace quire::cuda
