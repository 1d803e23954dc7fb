#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>

#include "base/error.h"

namespace quire::server {
namespace {

// The key of "Bearer KEY"; empty: there is none.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer";
  constexpr std::string_view kBlank = " \t";
  const std::size_t begin = std::min(authorization.find_first_not_of(kBlank), authorization.size());
  authorization.remove_prefix(begin);
  const auto same = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
  if (authorization.size() <= kScheme.size() ||
      !std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), same))
    return {};
  authorization.remove_prefix(kScheme.size());
  const std::size_t key = authorization.find_first_not_of(kBlank);
  if (key == 0 || key == std::string_view::npos) return {};
  return authorization.substr(key, authorization.find_last_not_of(kBlank) + 1 - key);
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].empty()) fail("API key {} is empty", i + 1);
    const bool is_visible =
        std::all_of(keys[i].begin(), keys[i].end(), [](char c) { return c > ' ' && c < 0x7f; });
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

bool ApiKeys::accept(std::string_view authorization) const {
  if (digests_.empty()) return true;
  const Digest given = digest(bearer_key(authorization));
  int found = 0;
  for (const Digest& digest : digests_)
    found |= static_cast<int>(CRYPTO_memcmp(given.data(), digest.data(), digest.size()) == 0);
  return found != 0;
}

}  // namespace quire::server
