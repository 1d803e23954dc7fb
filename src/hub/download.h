#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/hub_settings.h"

namespace quire {

struct HubModel {
  std::string id;
  std::string revision = "main";  // a branch, a tag or a commit
  bool with_weights = true;       // or configuration, tokenizer and chat templates alone
  std::string gguf = {};  // a GGUF file, or its quantisation, such as Q4_K_M: of the model nothing else
};
// Whether that is ORG/NAME, ORG/NAME:FILE or ORG/NAME:Q4_K_M: what exists on disk never is.
bool is_hub_model(const std::string& name);
// What such a name is of; behind its colon stands the GGUF file. Error where nothing does.
HubModel parse_hub_model(const std::string& name, std::string revision, bool with_weights);

struct DownloadHooks {
  // Both on the caller's thread, some times a second while files come.
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress;  // bytes of the files under way
  std::function<bool()> stopped = [] { return false; };  // true: give up with Stopped; what has come is kept
};

// The folder of a model's files, or its GGUF file, ready to be opened: found in the cache, or brought there
// first. Online the hub is asked which commit a branch or tag is now; where it does not answer, the cache's
// copy has to do, with a warning. Error where there is no whole one.
std::filesystem::path find_hub_model(const HubSettings& settings, const HubModel& model,
                                     const DownloadHooks& hooks);

}  // namespace quire
