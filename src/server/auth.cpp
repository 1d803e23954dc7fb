#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>

#include "base/error.h"

namespace quire::server {
namespace {

constexpr std::string_view kBlank = " \t";

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

// The key of "Bearer KEY"; empty: there is none.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer";
  authorization = without_blanks(authorization);
  const std::string_view scheme = authorization.substr(0, authorization.find_first_of(kBlank));
  if (!boost::beast::iequals(scheme, kScheme)) return {};
  return without_blanks(authorization.substr(kScheme.size()));
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].empty()) fail("API key {} is empty", i + 1);
    const bool is_visible = std::ranges::all_of(keys[i], [](char c) { return c > ' ' && c < 0x7f; });
    if (!is_visible) fail("API key {} has a character that is not visible ASCII", i + 1);
    digests_.push_back(digest(keys[i]));
  }
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest{};
  const int done = EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  QUIRE_CHECK(done == 1, "SHA-256 failed");
  return digest;
}

std::optional<std::size_t> ApiKeys::find(std::string_view authorization, std::string_view x_api_key) const {
  if (digests_.empty()) return 0;
  const std::string_view bearer = bearer_key(authorization);
  const Digest given = digest(bearer.empty() ? without_blanks(x_api_key) : bearer);
  std::size_t found = digests_.size();
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    const bool same = CRYPTO_memcmp(given.data(), digests_[i].data(), given.size()) == 0;
    found = same ? i : found;
  }
  return found == digests_.size() ? std::nullopt : std::optional(found);
}

}  // namespace quire::server
