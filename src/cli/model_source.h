#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "hub/hub_cache.h"

namespace quire::cli {

// Where a MODEL that is a hub id comes from.
struct ModelSource {
  std::string revision = "main";
  bool offline = false;

  // The directory of a hub id, downloaded where it is not in the cache; anything else as it is. Ctrl-C throws
  // Stopped.
  std::string find(const std::string& model, ModelParts parts = ModelParts::kAll) const;
  // The same without a hand on SIGINT.
  std::string find(const std::string& model, ModelParts parts, const std::function<bool()>& stopped) const;
};

void add_source_options(CLI::App& command, ModelSource& source);

// Whether that is a hub id: what exists on disk never is.
bool is_hub_model(const std::string& model);

}  // namespace quire::cli
