#pragma once

#include <filesystem>

namespace quire {

// Where the bundled model lies: beside this library, in the installed tree as in the build tree.
std::filesystem::path bundled_model_directory();

}  // namespace quire
