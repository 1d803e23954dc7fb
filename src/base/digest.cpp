#include "base/digest.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <new>

#include "base/error.h"

namespace quire {

Digest::Digest(Kind kind) : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  const EVP_MD* const type = kind == Kind::kSha256 ? EVP_sha256() : EVP_sha1();
  if (context_ == nullptr) throw std::bad_alloc();
  if (EVP_DigestInit_ex(context_.get(), type, nullptr) == 1) return;
  const char* const why = ERR_reason_error_string(ERR_peek_last_error());
  fail("OpenSSL makes no {} digest: {}", kind == Kind::kSha256 ? "SHA-256" : "SHA-1",
       why != nullptr ? why : "no reason is told");
}

void Digest::add(std::string_view bytes) {
  QUIRE_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Digest::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  QUIRE_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &length) == 1);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += format_text("{:02x}", digest[i]);
  return text;
}

}  // namespace quire
