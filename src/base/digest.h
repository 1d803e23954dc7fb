#pragma once

#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace quire {

// SHA-1 or SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Digest {
 public:
  enum class Kind { kSha1, kSha256 };

  explicit Digest(Kind kind);

  void add(std::string_view bytes);
  // Of all of them, in hexadecimal digits; nothing may be added behind.
  std::string hex();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace quire
