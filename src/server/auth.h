#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

// The keys that open the server. Thread contract: constant, so from any thread.
class ApiKeys {
 public:
  // No keys: everybody may come in. Error where no header could carry a key.
  explicit ApiKeys(const std::vector<std::string>& keys = {});

  // Which of the keys a request brings, in Authorization ("Bearer KEY") or in x-api-key; 0 where there are no
  // keys; nothing: none of them. How long it takes says nothing of the keys.
  std::optional<std::size_t> find(std::string_view authorization, std::string_view x_api_key = {}) const;

 private:
  using Digest = std::array<unsigned char, 32>;  // SHA-256

  static Digest digest(std::string_view key);

  std::vector<Digest> digests_;
};

}  // namespace quire::server
