#include "engine/bundled_model.h"

#include "base/error.h"
#include "base/module.h"

namespace quire {

std::filesystem::path bundled_model_directory() {
  const auto directory = library_folder().parent_path() / "share" / "quire" / "models" / "toy";
  if (!std::filesystem::is_directory(directory))
    fail("{}: the bundled model is not there; name a model directory", directory.string());
  return directory;
}

}  // namespace quire
