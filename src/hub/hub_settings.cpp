#include "hub/hub_settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <initializer_list>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::size_t kMaxTokenBytes = 4096;

// The first of these variables that is set and not empty, or "".
std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

std::filesystem::path home() { return variable({"HOME"}); }

std::filesystem::path without_tilde(const std::string& path) {
  return path.starts_with("~/") ? home() / path.substr(2) : std::filesystem::path(path);
}

std::filesystem::path hf_home() {
  if (const std::string path = variable({"HF_HOME"}); !path.empty()) return without_tilde(path);
  const std::string cache = variable({"XDG_CACHE_HOME"});
  return (cache.empty() ? home() / ".cache" : without_tilde(cache)) / "huggingface";
}

std::filesystem::path cache_folder() {
  const std::string path = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  const std::filesystem::path folder = path.empty() ? hf_home() / "hub" : without_tilde(path);
  if (path.empty() && folder.is_relative()) fail("no HOME to keep models in; set HF_HOME to a folder");
  return folder;
}

// Also of line ends within, which an editor may have made.
std::string cleaned(std::string token) {
  std::erase_if(token, [](unsigned char c) { return std::isspace(c) != 0; });
  return token;
}

std::string find_token() {
  std::string token = cleaned(variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}));
  if (token.empty()) {
    const std::string named = variable({"HF_TOKEN_PATH"});
    const std::filesystem::path file = named.empty() ? hf_home() / "token" : without_tilde(named);
    std::error_code ec;
    if (std::filesystem::exists(file, ec)) token = cleaned(read_text_file(file, kMaxTokenBytes));
  }
  const auto printable = [](unsigned char c) { return c > ' ' && c < 0x7f; };
  if (!std::ranges::all_of(token, printable))
    fail("the token in HF_TOKEN or its file has characters that no token has");
  return token;
}

bool find_offline() {
  std::string value = variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"});
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
  constexpr std::array<std::string_view, 4> kTrue{"1", "ON", "YES", "TRUE"};
  return std::ranges::find(kTrue, value) != kTrue.end();
}

}  // namespace

HubSettings hub_settings_from_environment(bool offline) {
  HubSettings settings;
  if (std::string endpoint = variable({"HF_ENDPOINT"}); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
      fail("HF_ENDPOINT is {}; it must begin with https:// or http://", in_quotes(endpoint));
    settings.endpoint = endpoint;
  }
  settings.token = find_token();
  settings.cache = cache_folder();
  settings.offline = offline || find_offline();
  return settings;
}

}  // namespace quire
