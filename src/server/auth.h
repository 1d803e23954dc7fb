#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

// The keys that open the server. Thread contract: constant, so from any thread.
class ApiKeys {
 public:
  // No keys: everybody may come in. Error where no header could carry a key.
  explicit ApiKeys(const std::vector<std::string>& keys = {});

  // authorization: the header's value, "Bearer KEY", or empty where there is none. How long it takes says
  // nothing of the keys.
  bool accept(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;  // SHA-256

  static Digest digest(std::string_view key);

  std::vector<Digest> digests_;
};

}  // namespace quire::server
