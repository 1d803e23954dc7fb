#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "http/http_client.h"
#include "hub/hub_settings.h"
#include "hub/partial_file.h"

namespace quire {

struct HubRevision {
  std::string commit;
  std::vector<std::string> files;  // as the hub names them: unchecked
};

struct HubFile {
  std::string etag;  // 64 digits: SHA-256 of the bytes; 40: git's hash of a blob of them
  std::uint64_t size = 0;
};

// Asks the hub for one model, again where asking again may help. The token goes to the hub's own host alone,
// and to huggingface.co where that leads there; a redirect from https to http is not followed. Each call
// throws Error for a refusal, or when the hub stays silent, and Stopped when `stopped` says so. For one
// thread.
class HubClient {
 public:
  // Both outlive it.
  HubClient(const HubSettings& settings, const std::string& id, std::function<bool()> stopped)
      : settings_(settings), id_(id), stopped_(std::move(stopped)) {}

  HubRevision revision(const std::string& revision);
  HubFile look_up(const std::string& commit, const std::string& file);
  // Until the file is full.
  void fetch(const std::string& commit, const std::string& file, PartialFile& partial);

 private:
  std::string file_url(const std::string& commit, const std::string& file) const;
  // Of the hub, or of the one that it may be a mirror of, where some mirrors lead.
  bool is_home(const std::string& url) const;
  // One request and what it is redirected to; with home_only as far as that is on the hub's own host.
  HttpOutcome request(HttpCall call, bool home_only = false);
  // As often as it takes: `attempt` makes a request. What makes `progress` grow is no attempt in vain.
  HttpOutcome insist(
      const std::string& url, const std::function<HttpOutcome()>& attempt,
      const std::function<std::uint64_t()>& progress = [] { return 0; });
  [[noreturn]] void refuse(const std::string& url, const HttpOutcome& outcome) const;

  const HubSettings& settings_;
  const std::string& id_;
  const std::function<bool()> stopped_;
  HttpClient client_;
};

}  // namespace quire
