#pragma once

#include <string>

#include "cli/commands.h"
#include "hub/hub_cache.h"

namespace quire::cli {

// Where a MODEL that is a hub id comes from.
struct ModelSource {
  std::string revision = "main";
  bool offline = false;
  bool interruptible = true;  // Ctrl-C throws Stopped

  // The directory of a hub id, downloaded where it is not in the cache; anything else as it is.
  std::string find(const std::string& model, ModelParts parts = ModelParts::kAll) const;
};

void add_source_options(Flags flags, ModelSource& source);

// Whether that is a hub id: what exists on disk never is.
bool is_hub_model(const std::string& model);

}  // namespace quire::cli
