#pragma once

#include <cstddef>

namespace quire {

// Bytes of memory this machine has.
std::size_t host_memory();

// What was freed stays with the process: glibc gives back only what lies at the end of a heap, and each large
// allocation raises its idea of how much to keep there, up to 64 MiB a heap. The first, once and early, keeps
// that at 4 MiB; the second gives back all within the heaps, which takes milliseconds.
void limit_kept_memory();
void give_back_memory();

}  // namespace quire
