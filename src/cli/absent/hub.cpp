// Models from directories alone.
#include <filesystem>

#include "base/error.h"
#include "cli/model_source.h"

namespace quire::cli {

std::string ModelSource::find(const std::string& model, bool /*with_weights*/) const {
  std::error_code ec;
  if (!model.empty() && !std::filesystem::exists(model, ec))
    fail("{}: no such directory, and this build has no hub (QUIRE_HUB=OFF)", model);
  return model;
}

void add_source_options(Flags /*flags*/, ModelSource& /*source*/) {}

bool is_hub_model(const std::string& /*model*/) { return false; }

}  // namespace quire::cli
