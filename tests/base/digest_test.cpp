#include "base/digest.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string digest_of(Digest::Kind kind, std::string_view text, std::size_t piece) {
  Digest digest(kind);
  for (std::size_t at = 0; at < text.size(); at += piece) digest.add(text.substr(at, piece));
  return digest.hex();
}

// FIPS 180-4's examples.
TEST(DigestTest, IsTheStandards) {
  for (const std::size_t piece : {1U, 7U, 64U, 100U}) {
    EXPECT_EQ(
        digest_of(Digest::Kind::kSha256, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece),
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(digest_of(Digest::Kind::kSha1, "abc", piece), "a9993e364706816aba3e25717850c26c9cd0d89d");
  }
}

}  // namespace
}  // namespace quire
