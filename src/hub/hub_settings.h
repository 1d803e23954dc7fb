#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace quire {

// Where models come from and where they are kept.
struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string mirrored = "https://huggingface.co";  // where an endpoint may lead that is a mirror
  std::string token;                                // empty: none
  std::filesystem::path cache;                      // holds a folder models--ORG--NAME for each model
  bool offline = false;                             // nothing is asked of the network
  std::chrono::seconds stall_timeout{30};           // an answer that brings no byte for so long is cut
  std::chrono::milliseconds first_backoff{1000};    // before the second attempt; then twice as long each time
  int max_attempts = 6;                             // in a row that bring nothing
};

// As Python's huggingface_hub reads its variables: HF_ENDPOINT, HF_TOKEN or the file HF_TOKEN_PATH names,
// HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HF_HUB_OFFLINE. Error where one cannot be used.
HubSettings hub_settings_from_environment(bool offline = false);

}  // namespace quire
