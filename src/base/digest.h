#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace quire {

// SHA-1 or SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Digest {
 public:
  enum class Kind { kSha1, kSha256 };

  explicit Digest(Kind kind);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void add(std::string_view bytes);
  // Of all of them, in hexadecimal digits; nothing may be added behind.
  std::string hex();

 private:
  struct Context;

  std::unique_ptr<Context> context_;
};

}  // namespace quire
