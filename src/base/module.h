#pragma once

#include <filesystem>

namespace quire {

// The folder of this library, or of the program that has it in it: what is installed, or built, lies beside.
std::filesystem::path library_folder();

// A module of this program that is opened at run time, such as "libquire_cuda.so": in lib/quire beside the
// library or below the program's folder. Empty where it is not installed.
std::filesystem::path find_module(const char* file);

}  // namespace quire
