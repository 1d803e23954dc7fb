#pragma once

#include <string>

#include "cli/commands.h"

namespace quire::cli {

// MODEL as a hub id, which cli/hub implements, and cli/absent/hub.cpp where that part is left out.

// Where a MODEL that is a hub id comes from.
struct ModelSource {
  std::string revision = "main";
  bool offline = false;
  bool interruptible = true;  // Ctrl-C throws Stopped

  // The directory of a hub id, downloaded where it is not in the cache; anything else as it is.
  std::string find(const std::string& model, bool with_weights = true) const;
};

void add_source_options(Flags flags, ModelSource& source);

// Whether that is a hub id: what exists on disk never is.
bool is_hub_model(const std::string& model);

}  // namespace quire::cli
