// Models from directories alone.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "cli/commands.h"

namespace quire::cli {

std::string ModelSource::find(const std::string& model, bool /*with_weights*/) const {
  // What has the form of a hub id; any other path is looked for, and missed, where it is opened.
  const bool is_id = !model.empty() && model[0] != '/' && model[0] != '.' && !model.ends_with(".gguf") &&
                     std::ranges::count(model, '/') == 1;
  std::error_code ec;
  if (is_id && !std::filesystem::exists(model, ec))
    fail("{}: no such directory, and this build has no hub (QUIRE_HUB=OFF)", model);
  return model;
}

void add_source_options(Flags /*flags*/, ModelSource& /*source*/) {}

}  // namespace quire::cli
