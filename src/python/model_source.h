#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json.h"

namespace quire::python {

// Bytes of the files under way, or 0 of 0, some times a second; true: give up.
using DownloadProgress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// Of what quire_find_model takes: the directory or file of a hub id, downloaded where it is not in the cache;
// anything else as it is. hub/ implements it, and absent/hub.cpp where that part is left out. Stopped where
// `progress` says so.
std::string find_model(const OrderedJson& source, const DownloadProgress& progress);

}  // namespace quire::python
