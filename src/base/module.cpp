#include "base/module.h"

#include <dlfcn.h>

#include "base/error.h"

namespace quire {

std::filesystem::path find_module(const char* file) {
  Dl_info info{};
  QUIRE_CHECK(dladdr(reinterpret_cast<const void*>(&find_module), &info) != 0);
  const auto folder = std::filesystem::weakly_canonical(info.dli_fname).parent_path();
  for (const auto& candidate : {folder / "quire" / file, folder.parent_path() / "lib" / "quire" / file}) {
    if (std::filesystem::exists(candidate)) return candidate;
  }
  return {};
}

}  // namespace quire
