#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace quire::python {

// Where a model that is a hub id comes from.
struct ModelSource {
  std::string model;  // a hub id, or what EngineConfig::model takes
  std::string revision = "main";
  bool offline = false;
  bool with_weights = true;
};

// Bytes of the files under way; true: give up.
using DownloadProgress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// The directory or file of a hub id, downloaded where it is not in the cache; anything else as it is.
// hub/ implements it, and absent/hub.cpp where that part is left out. Stopped where `progress` says so.
std::string find_model(const ModelSource& source, const DownloadProgress& progress);

}  // namespace quire::python
