#include "engine/bundled_model.h"

#include <dlfcn.h>

#include "base/error.h"

namespace quire {

std::filesystem::path bundled_model_directory() {
  Dl_info info{};
  QUIRE_CHECK(dladdr(reinterpret_cast<const void*>(&bundled_model_directory), &info) != 0);
  const auto library = std::filesystem::weakly_canonical(info.dli_fname);
  const auto directory = library.parent_path().parent_path() / "share" / "quire" / "models" / "toy";
  if (!std::filesystem::is_directory(directory))
    fail("{}: the bundled model is not there; name a model directory", directory.string());
  return directory;
}

}  // namespace quire
