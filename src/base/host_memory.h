#pragma once

#include <cstddef>
#include <filesystem>

namespace quire {

// Bytes of memory this machine has.
std::size_t host_memory();

// Those that this process may have: less where its control group has a limit.
std::size_t allowed_memory();

// The least of the limits, memory.max, that a control group and those around it have in the tree `root`; the
// largest number where there is none.
std::size_t control_group_memory(const std::filesystem::path& root, const std::filesystem::path& group);

// What was freed stays with the process: glibc gives back only what lies at the end of a heap, and each large
// allocation raises its idea of how much to keep there, up to 64 MiB a heap. The first, once and early, keeps
// that at 4 MiB; the second gives back all within the heaps, which takes milliseconds.
void limit_kept_memory();
void give_back_memory();

}  // namespace quire
