#include "base/module.h"

#include <dlfcn.h>

#include "base/error.h"

namespace quire {

std::filesystem::path library_folder() {
  Dl_info info{};
  QUIRE_CHECK(dladdr(reinterpret_cast<const void*>(&library_folder), &info) != 0);
  return std::filesystem::weakly_canonical(info.dli_fname).parent_path();
}

std::filesystem::path find_module(const char* file) {
  const auto folder = library_folder();
  for (const auto& candidate : {folder / "quire" / file, folder.parent_path() / "lib" / "quire" / file})
    if (std::filesystem::exists(candidate)) return candidate;
  return {};
}

}  // namespace quire
