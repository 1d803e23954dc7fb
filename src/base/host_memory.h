#pragma once

#include <cstddef>

namespace quire {

// Bytes of memory this machine has.
std::size_t host_memory();

}  // namespace quire
